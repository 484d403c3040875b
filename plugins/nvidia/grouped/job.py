"""GroupedJob: a convolution over slabs of 32 channels, whose pixels tensor cores read where they lie.

    y[place, n] = sum over (tap, k) of source[place * step + origin + tap * spread, k] w[n, tap, k]

A slab of 32 target channels reads those slabs of the source whose groups it has: one or two where groups are small,
all of them where there is one group. Weights between channels of different groups are zeros.
"""

from __future__ import annotations

import functools
import itertools
from dataclasses import dataclass

from convdispatch.api import ConvProblem, Phase, Walk, walk_of

from ..configured import Configured

__all__ = ["SLAB", "GroupedJob", "GroupedTile"]

SLAB = 32
"""Channels: eight of each of four lanes, 16 bytes."""
_INT = 2**31
_LOCAL = 98304  # bytes of weights: two work groups fit on a multiprocessor


@dataclass(frozen=True)
class GroupedTile(Configured):
    """How many places a warp has, and how many warps share weights."""

    frag_m: int = 2
    """Fragments of 16 places of a warp."""
    warps: int = 4
    turns: int = 1
    """Tiles of a warp, one after another."""

    @property
    def items(self) -> int:
        """Work items of a group."""
        return self.warps * 32

    @property
    def places(self) -> int:
        """Places of a work group."""
        return self.frag_m * 16 * self.warps * self.turns


@dataclass(frozen=True)
class GroupedJob:
    """One forward or data gradient problem under one tile."""

    problem: ConvProblem
    tile: GroupedTile

    @functools.cached_property
    def walk(self) -> Walk:
        """The walk."""
        return walk_of(self.problem)

    @property
    def bfloat(self) -> bool:
        """Whether values are bfloat16."""
        return self.problem.dtype == "bfloat16"

    @property
    def targets(self) -> int:
        """Slabs of the target."""
        return -(-self.walk.target.channels // SLAB)

    def first(self, target: int) -> int:
        """The first slab of the source that a slab of the target reads."""
        return target * SLAB // self.walk.m * self.walk.c // SLAB

    @functools.cached_property
    def sources(self) -> int:
        """Slabs of the source that a slab of the target reads, at most."""
        most = 0
        for target in range(self.targets):
            last = min(self.walk.target.channels, (target + 1) * SLAB) - 1
            end = (last // self.walk.m + 1) * self.walk.c
            most = max(most, -(-end // SLAB) - self.first(target))
        return most

    def taps(self, phase: Phase) -> list[tuple[int, int, int, int]]:
        """(tap of the kernel, z, y, x) of a phase's taps: where they read, from the place's own position on."""
        walk, found = self.walk, []
        for tap in itertools.product(*map(range, phase.taps)):
            at = [o + t * d for o, t, d in zip(phase.origin, tap, walk.spread, strict=True)]
            kernel = [first + t * s for first, t, s in zip(phase.tap0, tap, walk.tap_step, strict=True)]
            found.append(((kernel[0] * walk.kernel[1] + kernel[1]) * walk.kernel[2] + kernel[2], *at))
        return found

    @functools.cached_property
    def most_taps(self) -> int:
        """Taps of the phase that has most."""
        return max(phase.volume for phase in self.walk.phases)

    @property
    def pairs(self) -> list[tuple[int, int]]:
        """(step of k, fragment of columns) whose weights are not all zeros: with groups of four, half of them are."""
        return [(k, n) for k in range(2) for n in range(4) if not self.split_groups or n // 2 == k]

    @property
    def split_groups(self) -> bool:
        """Whether a lane's eight channels are two groups or more, of as many channels in as out."""
        return self.walk.c == self.walk.m and self.walk.c in (1, 2, 4)

    @property
    def local_bytes(self) -> int:
        """Bytes of weights in local memory."""
        return self.sources * self.most_taps * len(self.pairs) * 256

    @property
    def blocks(self) -> int:
        """Work groups of a phase and a slab."""
        return -(-self.walk.most_places // self.tile.places)

    @property
    def work_groups(self) -> int:
        """Work groups."""
        return self.blocks * self.targets * len(self.walk.phases)

    @property
    def index(self) -> str:
        """OpenCL type of offsets in the source."""
        return "int" if self.walk.images * self.walk.source.image < _INT else "long"

    @property
    def out_index(self) -> str:
        """OpenCL type of offsets in the output."""
        return "int" if self.walk.images * self.walk.target.image < _INT else "long"

    @property
    def misfit(self) -> str | None:
        """Why this cannot run; None when it can."""
        if self.local_bytes > _LOCAL:
            return f"{_LOCAL} bytes of weights a slab, got {self.local_bytes}"
        return None
