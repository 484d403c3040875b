"""A plan made of steps: launches and matrix products in a row, chained by events."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from convdispatch.api import GemmPlan

__all__ = ["ALIGN", "NAMES", "Areas", "Product", "StepPlan"]

NAMES = ("x", "w", "y", "workspace", "bias", "residual")
"""What an enqueue brings, in this order, to every step."""
ALIGN = 128
"""Bytes between the areas of a workspace."""

Step = Callable[[Any, Sequence[Any], Any], Any]


class Areas:
    """Lays areas of a workspace one after the other: ``add`` answers where each begins, ``size`` is their sum."""

    def __init__(self) -> None:
        self.size = 0

    def add(self, size: int) -> int:
        """Byte offset of a new area of ``size`` bytes."""
        start, self.size = self.size, self.size + -(-size // ALIGN) * ALIGN
        return start


@dataclass(frozen=True)
class Product:
    """One matrix product as a step: which operands, from which element on."""

    plan: GemmPlan
    a: str
    b: str
    c: str
    a_offset: int = 0
    b_offset: int = 0
    c_offset: int = 0
    scratch: int = 0
    """Byte offset of the product's own workspace."""
    bias_offset: int = 0
    places: tuple[int, ...] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "places", tuple(NAMES.index(name) for name in (self.a, self.b, self.c)))

    def __call__(self, queue: Any, operands: Sequence[Any], wait_for: Any) -> Any:
        """Enqueue on ``queue``; operands in the order of NAMES."""
        a, b, c = self.places
        _, _, _, workspace, bias, residual = operands
        return self.plan.enqueue(
            queue,
            operands[a],
            operands[b],
            operands[c],
            workspace,
            wait_for,
            bias=bias,
            residual=residual,
            a_offset=self.a_offset,
            b_offset=self.b_offset,
            c_offset=self.c_offset,
            bias_offset=self.bias_offset,
            residual_offset=self.c_offset,
            workspace_offset=self.scratch,
        )


class StepPlan:
    """A Plan that runs ``steps`` in order; ``packer(queue, w, packed, wait_for)`` packs constant weights."""

    def __init__(
        self,
        workspace_size: int,
        steps: Sequence[Step],
        packed_size: int = 0,
        packer: Callable[..., Any] | None = None,
        pack_key: str | None = None,
    ) -> None:
        self.workspace_size, self.packed_size, self.pack_key = workspace_size, packed_size, pack_key
        self._steps, self._packer = tuple(steps), packer

    def pack(self, queue: Any, w: Any, packed: Any, wait_for: Any = None) -> Any:
        """Write the weights' packed form, which ``enqueue`` then takes in the place of ``w``."""
        return self._packer(queue, w, packed, wait_for)

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
