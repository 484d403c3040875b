"""FusedWork: what one launch of the fused form does, in groups of channels and tiles; its memory and its cycles."""

from __future__ import annotations

import dataclasses
import functools

from .geometry import TileGeometry
from .work import Data, Filter, Work

_INT = 2**31 - 2**24
_REGISTERS = 105  # of an item: products, operands and addresses, without what is loaded ahead


@dataclasses.dataclass(frozen=True)
class FusedWork:
    """A geometry in groups of 8 ``im`` channels and 8 ``jn`` tiles, ``bk`` source channels at a time."""

    geometry: TileGeometry
    im: int
    jn: int
    bk: int

    @property
    def work(self) -> Work:
        """The same geometry as passes: its weights' form is this one's."""
        return Work(self.geometry)

    @property
    def tm(self) -> int:
        """Channels of a group."""
        return 8 * self.im

    @property
    def tn(self) -> int:
        """Tiles of a group."""
        return 8 * self.jn

    @property
    def items(self) -> int:
        """Work items of a group."""
        return self.geometry.points * self.im * self.jn

    @property
    def accsize(self) -> int:
        """Bytes of a sum."""
        return self.work.accsize

    @functools.cached_property
    def filter(self) -> Filter:
        """The weights, alone in their memory."""
        return dataclasses.replace(self.work.filter, at=0)

    @property
    def data(self) -> Data:
        """The source's tiles."""
        return self.work.source

    @property
    def er(self) -> int:
        """Rows of an item that leave at a time: as many as the slices' memory holds."""
        each = self.geometry.points * self.im * self.tn
        return next((er for er in (4, 2) if er * each <= self._slices_size), 1)

    @property
    def _slices_size(self) -> int:
        return 2 * self.geometry.points * self.bk * self.tn

    @property
    def local(self) -> int:
        """Elements of local memory."""
        return max(self._slices_size, self.geometry.points * self.im * self.tn * self.er)

    @property
    def slices(self) -> int:
        """Slices of the source's channels."""
        return -(-self.work.k // self.bk)

    @property
    def m_blocks(self) -> int:
        """Groups along the target's channels."""
        return -(-self.work.m // self.tm)

    @property
    def t_blocks(self) -> int:
        """Groups along the tiles."""
        return -(-self.geometry.tiles // self.tn)

    @property
    def work_groups(self) -> int:
        """Work groups."""
        return self.m_blocks * self.t_blocks * self.geometry.groups

    @property
    def slice_cycles(self) -> float:
        """Cycles of a compute unit for a slice: multiply-adds, and each access of 32 items to 128 bytes."""
        a_h, a_w = self.geometry.alpha
        products = self.geometry.points * self.tm * self.tn * self.bk
        loads = self.items * 16 * self.bk
        lines = 1 + (16 / self.bk if self.geometry.nhwc else min(4, self.geometry.tile[1]) / 2)
        rows = a_h * self.bk * self.tn * a_w * (1 + lines)
        columns = a_w * self.bk * self.tn * a_h * 2 if a_h > 1 else 0
        slots = [-(-length * self.bk * self.tn // self.items) for length in (a_h, a_w)]
        registers = _REGISTERS + slots[0] * (a_w + 3)
        crowded = 1.2 if self.items * registers > 65536 else 1.0  # some of them are moved to memory
        alone = 600 + 100 * slots[0] + (100 * slots[1] if a_h > 1 else 0) + 130 * self.bk  # what one item does in turn
        return max(alone, 600 + 1.2 * crowded * (products / 256 + (loads + rows + columns) / 32))

    @property
    def put_cycles(self) -> float:
        """Cycles for the products' way out, and a group's first loads."""
        return 3000 + self.geometry.points * self.tm * self.tn * 3 / 32

    @property
    def weights_size(self) -> int:
        """Bytes of transformed weights."""
        return self.work.second_size * self.accsize

    @property
    def index(self) -> str:
        """OpenCL type of offsets."""
        most = max(self.geometry.images * self.geometry.source.image, self.work.second_size)
        return "int" if most < _INT else "long"
