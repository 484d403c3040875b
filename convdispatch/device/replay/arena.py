"""One arena for all memory of a recorded program: slots that are never in use together share bytes.

The first-fit rule by falling size, as in Pisarchyk and Lee, "Efficient Memory Management for Deep Neural Net
Inference" (2020), "greedy by size": each slot takes the lowest offset where no slot in use at the same time is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..commands.recording import Slot


@dataclass(frozen=True)
class Lifetime:
    """A root slot and the first and last command that use it."""

    slot: Slot
    first: int
    last: int

    def meets(self, other: Lifetime) -> bool:
        """Whether both slots are in use at some command."""
        return self.first <= other.last and other.first <= self.last


@dataclass(frozen=True)
class Arena:
    """The offset of each root slot, and the arena's size, both in bytes."""

    offsets: dict[Slot, int]
    size: int


def lifetimes(used: Sequence[Sequence[Slot]]) -> list[Lifetime]:
    """The lifetime of each root slot that is not persistent; ``used`` are the slots of each command."""
    between: dict[Slot, tuple[int, int]] = {}
    for index, slots in enumerate(used):
        for slot in slots:
            between[slot.root] = between.get(slot.root, (index, index))[0], index
    return [Lifetime(slot, *commands) for slot, commands in between.items() if not slot.persistent]


def lay_out(used: Sequence[Lifetime], align: int) -> Arena:
    """Give every slot its offset in the arena, a multiple of ``align`` bytes."""
    placed: list[tuple[int, int, Lifetime]] = []
    offsets: dict[Slot, int] = {}
    for life in sorted(used, key=lambda life: (-life.slot.size, life.first)):
        size = -(-life.slot.size // align) * align
        start = 0
        for low, high in sorted((low, high) for low, high, other in placed if other.meets(life)):
            if start + size <= low:
                break
            start = max(start, high)
        offsets[life.slot] = start
        placed.append((start, start + size, life))
    return Arena(offsets, max((high for _, high, _ in placed), default=0))
