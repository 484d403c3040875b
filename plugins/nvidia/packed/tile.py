"""Tile: one configuration of the product, as a value."""

from __future__ import annotations

from dataclasses import dataclass

from ..configured import Configured


@dataclass(frozen=True)
class Tile(Configured):
    """How a work group's tile is shaped and how the product is cut; see the head of ``product.cl.mako``."""

    bm: int
    bn: int
    wm: int
    """Warps (``mma``) or groups of four warps (``wgmma``) along m."""
    wn: int
    format: str
    """A key of ``formats.FORMATS``."""
    engine: str = "mma"
    """``mma``: mma.sync on registers; ``wgmma``: Hopper's products out of local memory."""
    bk: int = 64
    stages: int = 3
    split: int = 1
    window: bool = False
    """Whether a work group keeps a window of source pixels in local memory and reads every tap out of it."""
    stacked: bool = False
    """Data gradient with a stride: whether the phases are channels of one product."""
    flush_every: int = 1
    """``wgmma``: slices after which exact formats move their sums to float32 registers; 0: after every 16 of k."""
    compensated: bool = False
    """Exact formats: whether what such a move rounds away begins the next sums."""

    @property
    def items(self) -> int:
        """Work items of a group."""
        return self.wm * self.wn * (128 if self.engine == "wgmma" else 32)

    @property
    def frag_m(self) -> int:
        """16-row fragments of a warp."""
        return 1 if self.engine == "wgmma" else self.bm // self.wm // 16

    @property
    def frag_n(self) -> int:
        """8-column fragments of a warp."""
        return self.bn // self.wn // 8
