"""The work groups, the memory and the predicted cycles of the launch of the fused form."""

from __future__ import annotations

import dataclasses

from ..geometry import TileGeometry
from .work import Filter, Work

MAX_INT_OFFSET = 2**31 - 2**24
"""If all element offsets are below this limit, the kernel computes them as int, otherwise as long."""
ITEM_REGISTERS = 105
"""Registers that a work item needs for products, operands and addresses, apart from prefetched elements."""


@dataclasses.dataclass(unsafe_hash=True)
class FusedWork:
    """A geometry cut into work groups of 8 ``im`` channels and 8 ``jn`` tiles, in slices of ``bk`` source channels."""

    geometry: TileGeometry
    im: int
    jn: int
    bk: int

    def __post_init__(self) -> None:
        geo = self.geometry
        self.work = work = Work(geo)
        """The geometry as the batched solver's passes, whose transformed weights have the same layout."""
        self.accsize = work.accsize
        self.tm, self.tn = 8 * self.im, 8 * self.jn
        """Target channels and tiles that one work group computes."""
        self.items = geo.points * self.im * self.jn
        """Work items in a work group."""
        slice_elements, row_elements = 2 * geo.points * self.bk * self.tn, geo.points * self.im * self.tn
        self.er = next((er for er in (4, 2) if er * row_elements <= slice_elements), 1)
        """Rows of products that a work item stores together: as many as fit the local memory of the slices."""
        self.local = max(slice_elements, row_elements * self.er)
        """Elements of local memory that a work group needs."""
        self.slices = -(-work.k // self.bk)
        """Slices of the source's channels."""
        self.m_blocks, self.t_blocks = -(-work.m // self.tm), -(-geo.tiles // self.tn)
        """Groups along the target's channels and along the tiles."""
        self.work_groups = self.m_blocks * self.t_blocks * geo.groups
        self.weights_size = work.second_size * work.accsize
        """Bytes of transformed weights."""
        max_offset = max(geo.images * geo.source.image, work.second_size)
        self.index = "int" if max_offset < MAX_INT_OFFSET else "long"
        """OpenCL type of offsets."""

    @property
    def filter(self) -> Filter:
        """The transform of the weights, whose results are at the start of their memory."""
        return dataclasses.replace(self.work.filter, at=0)

    @property
    def slice_cycles(self) -> float:
        """Cycles of a compute unit per slice: for multiply-adds, and for accesses of 32 work items to 128 bytes."""
        a_h, a_w = self.geometry.alpha
        products = self.geometry.points * self.tm * self.tn * self.bk
        loads = self.items * 16 * self.bk
        reads = 1 + (16 / self.bk if self.geometry.nhwc else min(4, self.geometry.tile[1]) / 2)
        rows = a_h * self.bk * self.tn * a_w * (1 + reads)
        columns = a_w * self.bk * self.tn * a_h * 2 if a_h > 1 else 0
        slots = [-(-length * self.bk * self.tn // self.items) for length in (a_h, a_w)]
        registers = ITEM_REGISTERS + slots[0] * (a_w + 3)
        spilled = 1.2 if self.items * registers > 65536 else 1.0
        # The latencies of a single work item take at least this many cycles.
        latency = 600 + 100 * slots[0] + (100 * slots[1] if a_h > 1 else 0) + 130 * self.bk
        return max(latency, 600 + 1.2 * spilled * (products / 256 + (loads + rows + columns) / 32))

    @property
    def put_cycles(self) -> float:
        """Cycles of a work group's first loads and of the inverse transform of its products."""
        return 3000 + self.geometry.points * self.tm * self.tn * 3 / 32
