"""GroupedSums: the weights' gradient of small groups as products of slabs of 32 channels, in parts of the places."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

from convdispatch.api import ConvProblem

from ..configured import Configured
from ..pace import COPY
from .job import GroupedJob, GroupedTile

__all__ = ["GroupedSums", "SumsTile", "choices", "seconds"]

_CLOCK = 1.7e9
_ISSUED = 2.4  # instructions a cycle that four schedulers reach together
_READ = 5.0  # cycles of a load of a warp's pixels
_PRODUCT = 1.8  # cycles of a product of tensor cores
_MEMORY = 0.8  # of a copy's bandwidth
_RESIDENT = 16  # warps of a multiprocessor that hide what each waits for
_LAUNCH, _FILL = 5.5e-6, 3.5e-6  # seconds: of a launch, and from a part's first read to its last write
_MOST_COLUMNS = 5  # taps of a row: 32 sums each


@dataclass(frozen=True)
class SumsTile(Configured):
    """How many parts the places are cut into, and how many warps share a part."""

    parts: int = 1
    warps: int = 4

    @property
    def items(self) -> int:
        """Work items of a group."""
        return self.warps * 32


@dataclass(frozen=True)
class GroupedSums:
    """One weights' gradient under one tile."""

    problem: ConvProblem
    tile: SumsTile

    @functools.cached_property
    def slabs(self) -> GroupedJob:
        """Which slabs meet."""
        return GroupedJob(self.problem, GroupedTile())

    @property
    def walk(self):  # noqa: ANN201 the walk of the slabs
        """The walk."""
        return self.slabs.walk

    @property
    def bfloat(self) -> bool:
        """Whether values are bfloat16."""
        return self.slabs.bfloat

    @property
    def sources(self) -> int:
        """Slabs of x that a slab of dy meets."""
        return self.slabs.sources

    @property
    def slab_pairs(self) -> int:
        """Pairs of slabs."""
        return self.slabs.targets * self.sources

    @property
    def runs(self) -> int:
        """Runs of 16 places."""
        return -(-self.walk.most_places // 16)

    @property
    def per(self) -> int:
        """Runs of a part."""
        return -(-self.runs // self.tile.parts)

    @property
    def size(self) -> int:
        """Elements of a part, which lies as the weights do."""
        return math.prod(self.problem.w_shape)

    @property
    def workspace_size(self) -> int:
        """Bytes of all parts."""
        return 4 * self.size * self.tile.parts

    @property
    def work_groups(self) -> int:
        """Work groups of the sums."""
        return self.tile.parts * self.slab_pairs * self.walk.kernel[0] * self.walk.kernel[1]

    @property
    def index(self) -> str:
        """OpenCL type of offsets in x and dy."""
        walk = self.walk
        return "int" if walk.images * max(walk.source.image, walk.target.image) < 2**31 else "long"

    @property
    def misfit(self) -> str | None:
        """Why this cannot run; None when it can."""
        if self.walk.kernel[2] > _MOST_COLUMNS:
            return f"kernels of up to {_MOST_COLUMNS} columns for the weights' gradient, got {self.walk.kernel[2]}"
        return None


def seconds(job: GroupedSums, units: int, copy: float = COPY) -> float:
    """Predicted seconds on a device of ``units`` multiprocessors."""
    t, columns = job.tile, job.walk.kernel[2]
    turns = -(-job.per // t.warps)
    turn = 4 * 26 + 12 + columns * (4 * 5 + 8 + 8)
    issued = turns * turn + columns * 32 * 12
    cycles = turns * math.hypot((columns + 1) * 4 * _READ, columns * 8 * _PRODUCT)
    warps = job.work_groups * t.warps
    busy = min(1.0, warps / (units * _RESIDENT))
    work = warps * math.hypot(issued / _ISSUED, cycles) / (units * _CLOCK * busy)
    moved = job.problem.bytes / (_MEMORY * copy)
    return math.hypot(work, moved) + 2 * _LAUNCH + _FILL + 2 * job.workspace_size / copy + job.tile.parts * 1e-8


@functools.lru_cache(maxsize=256)
def choices(problem: ConvProblem, units: int) -> tuple[SumsTile, ...]:
    """Parts and warps, the fastest by prediction first."""
    one = GroupedSums(problem, SumsTile())
    jobs = []
    for warps in (2, 4):
        wanted = {max(1, min(one.runs // warps, units * groups // one.work_groups)) for groups in (1, 2, 3, 4, 6, 8)}
        jobs += [GroupedSums(problem, SumsTile(parts, warps)) for parts in sorted(wanted)]
    return tuple(job.tile for job in sorted(jobs, key=lambda job: seconds(job, units)))
