"""A configuration of the tiled product: the shape of a work group's tile, and how sums are split."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Tile:
    """One configuration of the tiled product; ``product.cl.mako`` explains it."""

    bm: int
    bn: int
    bk: int
    tm: int
    tn: int
    ln: int = 8
    stages: int = 2
    split: int = 1
    walk: str = "channels"
    """Rows of a slice. Forward and data gradient: ``channels`` of one tap, or (with few channels) ``taps`` of one
    channel. Weights' gradient: pixels; a tile's columns are ``channels`` of one tap or run ``flat`` over both."""
    order: str = "parity"
    """Order in which a step's multiply-adds are written, which the compiler mostly preserves: ``rows`` of the item's
    tile, or rows in alternating direction with even columns before odd ones (``parity``). Consecutive multiply-adds
    that share an operand save a read of the register file."""

    general: bool = False
    """Whether the geometry's numbers are arguments of the programs, which then serve every geometry of a ``Form``;
    otherwise they are literals."""

    @property
    def items(self) -> int:
        """Work items in a work group."""
        return (self.bm // self.tm) * (self.bn // self.tn)

    @property
    def steps(self) -> list[tuple[int, int]]:
        """(row, column) of each sum of a work item's tile, in the order of the multiply-adds."""
        if self.order == "rows":
            return [(m, n) for m in range(self.tm) for n in range(self.tn)]
        columns = [*range(0, self.tn, 2), *range(1, self.tn, 2)]
        return [(m, n) for m in range(self.tm) for n in (columns[::-1] if m % 2 else columns)]

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> Tile:
        return cls(**config)

    def config(self) -> dict[str, Any]:
        """The configuration: the fields that differ from their defaults."""
        fields = [(field.name, field.default) for field in dataclasses.fields(self)]
        return {name: value for name, default in fields if (value := getattr(self, name)) != default}
