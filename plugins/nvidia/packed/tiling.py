"""A problem under a tile whose instruction is ``mma.sync`` or ``wgmma``."""

from __future__ import annotations

from dataclasses import dataclass

from convdispatch.api.matrix import ProductTile, ProductTiling

from ..instructions import Instructions, NvidiaTile, Wgmma


@dataclass(frozen=True)
class Tile(NvidiaTile, ProductTile):
    """A tile of the product; ``engine`` is ``mma`` (products of registers) or ``wgmma`` (Hopper's)."""


@dataclass(unsafe_hash=True)
class Tiling(ProductTiling):
    """The numbers of a problem under a tile, and the PTX that its product calls."""

    tile: Tile

    b_row_bytes = 0
    """Bytes of a row of B in local memory, if B is transposed and its rows differ from A's; otherwise 0."""

    @property
    def narrow_pair(self) -> str:  # type: ignore[override]
        return "cvt_bf16x2_f32(low, high)" if self.format.type == "bf16" else super().narrow_pair

    @property
    def narrow_relu_pair(self) -> str:  # type: ignore[override]
        return f"cvt_relu_{self.format.type}x2_f32(low, high)"

    @property
    def instructions(self) -> Instructions:
        if self.tile.engine == "mma":
            return Instructions(self.format.type, ("copies", "mma"))
        return Instructions(self.format.type, ("copies",), self._wgmma)

    @property
    def conversions(self) -> Instructions:
        return Instructions(self.format.type)

    @property
    def _wgmma(self) -> Wgmma:
        b_transposed = not self.data or self.transposed_weights
        columns, b_row_bytes = self.tile.bn // self.tile.wn, self.b_row_bytes if b_transposed else 0
        return Wgmma(columns, not self.data, b_transposed, self.row_bytes, b_row_bytes)
