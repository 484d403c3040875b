"""Converts tiles to a configuration's JSON values and back; helpers of cost models that rate many tiles together."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Self

import numpy as np

from .instruction import TileInstruction

MAX_BYTES = 1 << 48
"""Most bytes of a problem's tensors: sizes are int64 in arrays of tiles."""


class Configured:
    """A dataclass that a configuration makes; only what differs from the defaults is written."""

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> Self:
        """A tile from a configuration's JSON values."""
        return cls(**config)

    def config(self) -> dict[str, Any]:
        """The tile as a configuration: the fields that differ from their defaults."""
        found = ((name, getattr(self, name), default) for name, default in _defaults(type(self)))
        return {name: value for name, value, default in found if value != default}


class WarpTile(Configured):
    """A tile bm by bn that warps, or groups of warps that multiply together, cut into wm by wn."""

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
    return next((words.format(tiling=tiling) for wrong, words in faults if wrong), None)


def largest(one: Any, other: Any) -> Any:
    """The larger of two numbers; of arrays, element by element."""
    return np.maximum(one, other) if isinstance(one, np.ndarray) or isinstance(other, np.ndarray) else max(one, other)


def many(tile: Any, names: Sequence[str], rows: np.ndarray) -> Any:
    """Tiles that differ in the named fields alone, a row each, as one tile whose fields are arrays."""
    return dataclasses.replace(tile, **dict(zip(names, rows.T, strict=True)))


def fitting(tiling: Any, count: int) -> np.ndarray:
    """Whether each of ``count`` tiles can run the tiling's problem: an array of bool."""
    wrong = np.zeros(count, bool)
    for fault, _ in tiling.faults():
        wrong = wrong | fault
        if wrong.all():
            break
    return ~wrong


def part_counts(room: int, groups: int, most: int) -> list[int]:
    """Parts of a sum that are worth trying: those that fill a device of ``room`` work groups once, twice and three
    times, and, where it is not full, a few small ones."""
    filling = {times * room // groups for times in (1, 2, 3)}
    small = (2, 3, 4, 6, 8, 12, 16) if groups < 2 * room else ()
    return sorted(parts for parts in filling.union(small) if 1 < parts <= min(most, 512))


def in_waves(tiling: Any, units: int, resident: Any, together: Callable[[Any], Any]) -> Any:
    """Cycles of all work groups on ``units`` multiprocessors, ``resident`` on each at a time.

    ``together`` returns the cycles of so many work groups on one multiprocessor at once.
    """
    whole, rest = np.divmod(tiling.work_groups, units * resident)
    return whole * together(resident) + np.where(rest > 0, together(-(-rest // units)), 0)
