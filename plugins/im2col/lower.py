"""Lowering: writes a chunk of a window's source as a matrix, in the form that the product reads fastest.

- ``panel``: the product's packed operand, ``[g][block][k][width]``, which a CPU's product reads fastest.
- ``columns``: ``[g][k][ld]``, window positions are contiguous; NCHW's own order.
- ``rows``: ``[position][g][ld]``, k is contiguous; NHWC's own order, copied in runs of channels.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from convdispatch.api import DTYPES, GEMM_LAUNCH, OPERANDS, Axis, Launch, Matrix, build, define, kernel_text
from convdispatch.api.cpu import Balance

from .window import PatchWindow, Runs

BLOCK_PLACES = 256
"""Window positions that one CPU work item lowers, except in the form ``panel``."""
ITEM_ELEMENTS = 32768
"""Least elements of the lowered matrix that one CPU work item should write."""


@dataclass(frozen=True)
class Lowering:
    """The lowering of a window: its form, and the panel's width or the most window positions of a chunk."""

    window: PatchWindow
    form: str
    width: int = 0
    """Window positions in one panel."""
    most: int = 0
    """Window positions in the largest chunk, which determines the layout of the form ``columns``."""
    narrow_stored: bool = False
    """Whether the lowered matrix stores 16-bit elements as they are; a panel never does."""

    @property
    def itemsize(self) -> int:
        """Bytes of one element of the lowered matrix."""
        return DTYPES[self.window.dtype].itemsize if self.narrow_stored else self.window.accumulator_size

    @property
    def ld(self) -> int:
        """Row stride in elements; 0 for panels. It is never a multiple of a page: rows would share a cache's sets."""
        if self.form == "panel":
            return 0
        ld = -(-(self.most if self.form == "columns" else self.window.k) // 16) * 16
        return ld + 16 if ld % 256 == 0 else ld

    def size(self, count: int) -> int:
        """Return the bytes of a lowered chunk of ``count`` window positions."""
        window = self.window
        if self.form == "panel":
            return -(-count // self.width) * self.width * window.k * window.groups * self.itemsize
        return self.ld * (window.k if self.form == "columns" else count) * window.groups * self.itemsize

    def cost(self, chunks: Runs, balance: Balance) -> float:
        """Return the predicted time of all elements and launches on a CPU, in operations at peak rate."""
        window = self.window
        elements = window.k * window.groups * window.images * window.pixels
        return LOWERED_OPS[window.nhwc] * elements + GEMM_LAUNCH * balance.launch * chunks.count

    @property
    def matrix(self) -> Matrix:
        """The lowered matrix ``[k, window position]``, batched by group."""
        if self.form == "rows":
            return Matrix(Axis(1), Axis(self.ld * self.window.groups), Axis(self.ld))
        # The product reads only the batch axis of a packed operand, and only to check that groups share no memory.
        return Matrix(Axis(self.ld), Axis(1), Axis(max(1, self.window.k * self.ld)))

    def text(self, cpu: bool) -> str:
        """Return the OpenCL text of the lowering kernel."""
        window = self.window
        text = window.macros(self.narrow_stored)
        if not cpu:
            return text + define(NHWC=int(window.nhwc), LD=self.ld) + kernel_text(__package__, "lower_gpu.cl")
        kind = DTYPES[window.dtype].accumulator
        text += define(V16=f"{kind}16", V8=f"{kind}8", V4=f"{kind}4", DSTSIZE=self.itemsize)
        text += define(TO="global" if window.nhwc else "private")
        text += define(W=self._block, LD=self.ld, CB=self._channels, RUNS=self._block // window.positions[2] + 2)
        depth, height, width = (not window.inside(axis) for axis in range(3))
        text += define(OUTSIDE=int(depth or height), CLIPPED=int(width))
        text += define(DENSE=int(window.groups == 1 and window.spread[2] == 1))
        text += kernel_text(__package__, "copy.cl")
        return text + kernel_text(__package__, "lower_nhwc.cl" if window.nhwc else "lower_nchw.cl")

    def launches(self, context: Any, cpu: bool, source: str, chunks: Runs) -> list[Launch]:
        """Return one launch per chunk, which lowers operand ``source`` to the start of the workspace."""
        program, window = build(context, self.text(cpu)), self.window
        result = []
        for start, count in chunks:
            blocks = -(-count // self._block)
            local: tuple[int, ...] | None = (1, 1, 1)
            if not cpu:
                local = (128,)
                size: tuple[int, ...] = (-(-count * window.k * window.groups // 128) * 128,)
            elif window.nhwc:
                size = (blocks, window.groups, 1)
            else:
                size = (blocks, -(-window.group_channels // self._channels), window.groups)
            arguments = [source, "workspace", np.int64(start), np.int32(count), np.int32(blocks)]
            result.append(Launch(program, "lower", size, local, arguments, names=OPERANDS))
        return result

    @property
    def _block(self) -> int:
        """Window positions that a CPU work item lowers for some channels."""
        if self.form == "panel":
            return self.width
        return max(1, min(BLOCK_PLACES, ITEM_ELEMENTS // self.window.k)) if self.form == "rows" else BLOCK_PLACES

    @property
    def _channels(self) -> int:
        """Channels that one CPU work item lowers in NCHW."""
        return max(1, min(self.window.group_channels, ITEM_ELEMENTS // (self._block * self.window.volume)))


LOWERED_OPS = 101.0, 85.0
"""Operations at peak rate per element of the lowered matrix that is read and written, in NCHW and in NHWC."""
CACHED_WEIGHT_BYTES = 6 << 20
"""Bytes of weights that a CPU's caches are assumed to hold from one call to the next."""
UNCACHED_PACKING_OPS = 120.0, 240.0
"""Operations at peak rate per packed weight, along its rows and across them, if the weights exceed
``CACHED_WEIGHT_BYTES``: along rows 100 to 200 over nine layers of 9 to 38 MB, the more the longer their rows."""
WIDE_PACKING_OPS = 90.0, 140.0
"""Operations at peak rate per weight packed in panels of whole vectors, below and above ``CACHED_WEIGHT_BYTES``:
60 to 130 over 12 layers of 128 to 2048 channels and 4 to 49 pixels, 115 to 225 over ten layers of 9 to 85 MB (Xeon)."""
COLUMN_OPS = 32.0, 75.0
"""Operations at peak rate per element of the columns (or of x, if it has more) that is summed, in NCHW and in NHWC."""
COLUMN_RUN_OPS = 1000.0
"""Operations at peak rate per run of NHWC columns of one tap, pixel and group, even a short one: 16 loop cycles."""
