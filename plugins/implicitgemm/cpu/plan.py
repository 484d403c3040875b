"""A plan made of launches in a row, chained by events, with packed weights where they are constant."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

__all__ = ["ALIGN", "NAMES", "Areas", "StepPlan", "lanes", "registers"]

NAMES = ("x", "w", "y", "workspace", "bias", "residual")
"""What an enqueue brings, in this order, to every step."""
ALIGN = 4096
"""Bytes between the areas of a workspace."""

Step = Callable[[Any, Sequence[Any], Any], Any]


def lanes(device: Any, dtype: str) -> int:
    """Elements of a vector of sums."""
    wide = max(4, min(16, device.simd_width))
    return wide // 2 if dtype == "float64" else wide


def registers(device: Any) -> int:
    """Vector registers: 32 with AVX-512, 16 otherwise."""
    return 32 if device.simd_width >= 16 else 16


class Areas:
    """Lays areas of a workspace one after the other: ``add`` answers where each begins, ``size`` is their sum."""

    def __init__(self) -> None:
        self.size = 0

    def add(self, size: int) -> int:
        """Byte offset of a new area of ``size`` bytes."""
        start, self.size = self.size, self.size + -(-size // ALIGN) * ALIGN
        return start


class StepPlan:
    """A Plan that runs ``steps`` in order; ``packers`` write the packed form of constant weights."""

    def __init__(
        self,
        workspace_size: int,
        steps: Sequence[Step],
        packed_size: int = 0,
        packers: Sequence[Step] = (),
        pack_key: str | None = None,
    ) -> None:
        self.workspace_size, self.packed_size, self.pack_key = workspace_size, packed_size, pack_key
        self._steps, self._packers = tuple(steps), tuple(packers)

    def pack(self, queue: Any, w: Any, packed: Any, wait_for: Any = None) -> Any:
        """Write the weights' packed form, which ``enqueue`` then takes in the place of ``w``."""
        for packer in self._packers:
            wait_for = (packer(queue, (None, w, None, packed, None, None), wait_for),)
        return wait_for[0]

    def enqueue(
        self,
        queue: Any,
        x: Any,
        w: Any,
        y: Any,
        workspace: Any,
        wait_for: Any = None,
        *,
        bias: Any = None,
        residual: Any = None,
    ) -> Any:
        """Enqueue the steps, each after the one before; the last one's event."""
        operands = (x, w, y, workspace, bias, residual)
        for step in self._steps:
            wait_for = (step(queue, operands, wait_for),)
        return wait_for[0]
