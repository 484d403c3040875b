"""Converts tiles to a configuration's JSON values and back; helpers of cost models that rate many tiles together."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Self

import numpy as np

from .instruction import TileInstruction

MAX_BYTES = 1 << 48
"""The most bytes of a problem's tensors, because arrays of tiles have int64 sizes."""
ACCEPTED = 1.04
"""Predicted time of a usual tile, over that of the fastest tile, up to which it is taken where nothing was measured."""
ALIKE = 1.02
"""Predicted time over that of the fastest usual tile up to which the most usual tile is taken."""


class Configured:
    """A dataclass that is created from a configuration; ``config`` has only the fields that differ from defaults."""

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> Self:
        """A tile from a configuration's JSON values."""
        return cls(**config)

    def config(self) -> dict[str, Any]:
        """The tile as a configuration: the fields that differ from their defaults."""
        fields = ((name, getattr(self, name), default) for name, default in _defaults(type(self)))
        return {name: value for name, value, default in fields if value != default}


class WarpTile(Configured):
    """A tile of bm by bn, cut into wm by wn parts for warps, or for groups of warps that multiply together."""

    @property
    def instruction(self) -> TileInstruction:
        """The instruction that multiplies."""
        raise NotImplementedError

    @property
    def items(self) -> int:
        """Work items of a work group."""
        return self.wm * self.wn * (self.instruction.lanes * self.instruction.warps)

    @property
    def frag_m(self) -> int:
        """The instruction's tiles along the rows of a warp's part."""
        return self.bm // self.wm // self.instruction.m

    @property
    def frag_n(self) -> int:
        """The instruction's tiles along the columns of a warp's part."""
        return self.bn // self.wn // self.instruction.n


@functools.cache
def _defaults(kind: type) -> tuple[tuple[str, Any], ...]:
    return tuple((field.name, field.default) for field in dataclasses.fields(kind))


def first_fault(tiling: Any, faults: Iterable[tuple[Any, str]]) -> str | None:
    """The message of the first violated constraint, with ``{tiling...}`` filled in; None if none is violated."""
    return next((message.format(tiling=tiling) for is_violated, message in faults if is_violated), None)


def largest(a: Any, b: Any) -> Any:
    """The larger of two numbers; of arrays, element by element."""
    return np.maximum(a, b) if isinstance(a, np.ndarray) or isinstance(b, np.ndarray) else max(a, b)


def smallest(a: Any, b: Any) -> Any:
    """The smaller of two numbers; of arrays, element by element."""
    return -largest(-a, -b)


def many(tile: Any, names: Sequence[str], rows: np.ndarray) -> Any:
    """Many tiles, which differ in the named fields only, as one tile whose fields are arrays; each row is a tile."""
    return dataclasses.replace(tile, **dict(zip(names, rows.T, strict=True)))


def fitting(tiling: Any, count: int) -> np.ndarray:
    """Whether each of ``count`` tiles can run the tiling's problem: an array of bool."""
    violated = np.zeros(count, bool)
    for fault, _ in tiling.faults():
        if fault is not False:
            violated = violated | fault
            if violated.all():
                break
    return ~violated


def usual(costs: Sequence[float], names: Iterable[str], places: Mapping[str, int]) -> int:
    """The index of the tile to take where nothing was measured, so that layers share programs: one of ``places`` (the
    most usual one has the lowest), if one of them is predicted nearly as fast as the fastest one, which else is taken.

    ``costs`` are predicted times in ascending order, ``names`` those of the tiles in ``places``.
    """
    near = itertools.takewhile(lambda cost: cost <= ACCEPTED * costs[0], costs)
    listed = [(places[name], index) for index, (_, name) in enumerate(zip(near, names)) if name in places]
    if not listed:
        return 0
    fastest = costs[min(index for _, index in listed)]
    return min(each for each in listed if costs[each[1]] <= ALIKE * fastest)[1]


def part_counts(room: int, groups: int, most: int) -> list[int]:
    """The numbers of parts of a sum that are worth trying: those that fill a device of ``room`` work groups once, twice
    and three times, and a few small numbers if the device is not full."""
    filling = {times * room // groups for times in (1, 2, 3)}
    small = (2, 3, 4, 6, 8, 12, 16) if groups < 2 * room else ()
    return sorted(parts for parts in filling.union(small) if 1 < parts <= min(most, 512))


def in_waves(tiling: Any, units: int, resident: Any, together: Callable[[Any], Any]) -> Any:
    """Cycles of all work groups on ``units`` multiprocessors, ``resident`` on each at a time.

    ``together(count)`` returns the cycles of ``count`` work groups that run on one multiprocessor at once.
    """
    full_waves, rest_groups = np.divmod(tiling.work_groups, units * resident)
    return full_waves * together(resident) + np.where(rest_groups > 0, together(-(-rest_groups // units)), 0)
