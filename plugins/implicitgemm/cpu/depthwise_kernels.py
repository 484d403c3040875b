"""The depthwise kernels of one pass: NCHW copies bands of rows into slots, NHWC reads rows from the tensor."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from convdispatch.api import ConvProblem, Launch, define
from convdispatch.api.cpu import PAGE, cdiv

from .kernel import PackedKernel
from .passes import Pass

SUM_VECTORS = 4
"""Vectors of output pixels whose sums an NCHW kernel keeps in registers at the same time."""
CACHED_TILE_BYTES = 32 * 1024
"""Most bytes of source rows and weights that an NHWC tile reads again at the next row: a first-level cache."""
MIN_BAND_ROWS = 4
"""Least rows of a band: neighbouring bands read some of the same source rows."""


class Bands:
    """The layout of a band's source rows in a slot, with zeros around them (planes.cl.mako)."""

    def __init__(self, p: Pass, config: Mapping[str, Any]) -> None:
        self.p, self.config = p, config
        self.lanes, self.size = config["lanes"], p.accumulator_size
        self.ct = cdiv(p.groups, self.lanes) * self.lanes
        self.width = (p.places[2] - 1) * p.step[2] + (p.taps[2] - 1) * p.spread[2] + 1
        self.halo = (p.taps[1] - 1) * p.spread[1] + 1
        self.wp = cdiv(self.width, p.step[2])
        self.cb = self._channels() if p.nhwc else 1
        per_row = self.width * self.cb if p.nhwc else self.wp * p.step[2]
        fitting = (config["slot"] // (p.taps[0] * per_row * self.size) - self.halo) // p.step[1] + 1
        self.rows = max(1, min(p.places[1], max(fitting, min(4, p.places[1]))))
        self.rows = cdiv(p.places[1], cdiv(p.places[1], self.rows))
        rows = (self.rows - 1) * p.step[1] + self.halo
        self.prows = cdiv(rows, p.step[1])
        # The last vectors of a tile may reach beyond the last output pixel: each part of the slot has room for that.
        self.over = (SUM_VECTORS + 1) * self.lanes
        self.part = p.taps[0] * self.prows * self.wp + self.over
        slot_x = p.taps[0] * rows * self.width * self.cb + self.lanes if p.nhwc else self.part * p.step[1] * p.step[2]
        self.slot_x = cdiv(slot_x, 16) * 16

    def _channels(self) -> int:
        """Return the channels of an NHWC slot: all, so that whole rows are copied, unless that gives under 16 jobs."""
        p, block = self.p, self.config["cb"]
        if block:
            return min(block, p.groups)
        parts = cdiv(16, max(1, p.images * p.places[0] * cdiv(p.places[1], 8)))
        return min(p.groups, cdiv(cdiv(p.groups, parts), self.lanes) * self.lanes)


class DepthwiseKernel(PackedKernel):
    """The kernel of one pass under one configuration: ``items`` work items with ``slot`` elements of workspace each."""

    files: tuple[str, ...]
    items: int
    slot = 0

    def __init__(self, p: Pass, problem: ConvProblem, config: Mapping[str, Any]) -> None:
        super().__init__(problem, config, p)
        self.ct = cdiv(p.groups, self.lanes) * self.lanes
        self.packed_size = self.ct * p.volume * self.size

    @property
    def slots_size(self) -> int:
        """Bytes of all work items' slots, rounded up to whole pages."""
        return cdiv(self.items * self.slot * self.size, PAGE) * PAGE

    def _text(self, defined: Mapping[str, object], **values: Any) -> str:
        """The program from the macros and template values of a subclass."""
        p = self.p
        text = self.macros("XYZTSDU", G=p.groups, ITEMS=self.items, CT=self.ct, WG=math.prod(p.kernel))
        text += p.kernel_macros() + define(INTER=int(p.nhwc), **defined)
        values |= {"taps_w": p.taps[2], "step_w": p.step[2], "spread_w": p.spread[2], "bias": self.problem.bias}
        return text + self.rendered((*self.files, "depthwise_pack.cl"), **values)

    def packer(self, context: Any, offset: int) -> Launch:
        """Return the launch that packs w as [tap][channel] (NHWC) or [channel][tap] (NCHW)."""
        arguments = ["w", "workspace", np.int64(offset // self.size), *map(np.int32, self.p.w_first)]
        return self.launch(context, "pack", [self.ct // self.lanes], arguments)

    def convolution(self, context: Any, weights: str, offset: int) -> Launch:
        """Return the launch of the convolution, which reads the packed weights."""
        slots = ["workspace"] if self.slot else []
        arguments = [self.source, weights, np.int64(offset // self.size), *slots, self.target, *self.extras]
        arguments += [np.int32(v) for v in (*self.p.pad, *self.p.start)]
        return self.launch(context, "depthwise", [self.items], arguments)


class PlaneKernel(DepthwiseKernel):
    """The NCHW kernel: bands of rows are copied, and a vector holds consecutive output pixels of a row."""

    files = ("runs.cl", "planes.cl.mako", "depthwise_nchw.cl.mako")

    def __init__(self, p: Pass, problem: ConvProblem, config: Mapping[str, Any]) -> None:
        super().__init__(p, problem, config)
        self.bands = b = Bands(p, config)
        self.slot = cdiv(b.slot_x + b.rows * b.wp + b.over, 16) * 16
        self.items = min(p.images * p.places[0] * cdiv(p.places[1], b.rows) * p.groups, config["items"])

    def text(self) -> str:
        p, b = self.p, self.bands
        defined = {"R": b.rows, "SLOT": f"{self.slot}L", "SLOT_X": b.slot_x, "WP": b.wp, "PART": b.part}
        values = {"taps_h": p.taps[1], "step_h": p.step[1], "spread_h": p.spread[1], "dense": p.stride[2] == 1}
        vectors = min(SUM_VECTORS, cdiv((b.rows - 1) * b.wp + p.places[2], self.lanes))
        return self._text({**defined, "PROWS": b.prows}, inter=False, vectors=vectors, **values)


class RowKernel(DepthwiseKernel):
    """The NHWC kernel: rows are read from the tensor, and a vector holds consecutive channels."""

    files = ("depthwise_nhwc.cl.mako",)

    def __init__(self, p: Pass, problem: ConvProblem, config: Mapping[str, Any]) -> None:
        super().__init__(p, problem, config)
        width = p.places[2]
        pixels = cdiv(width, cdiv(width, config["p"]))
        self.widths = [pixels, width % pixels] if width % pixels else [pixels]
        # A tile moves down the rows of a band. With few channels, the elements that the next row reads again are still
        # in the cache.
        columns = (pixels - 1) * p.step[2] + (p.taps[2] - 1) * p.spread[2] + 1
        cached_channels = CACHED_TILE_BYTES // (self.size * (columns * p.taps[0] * p.taps[1] + p.volume))
        max_channels = config["cb"] or max(self.lanes, cached_channels // self.lanes * self.lanes)
        self.cb = cdiv(cdiv(p.groups, cdiv(p.groups, max_channels)), self.lanes) * self.lanes
        self.chunks = cdiv(p.groups, self.cb)
        bands = cdiv(config["items"], p.images * p.places[0] * self.chunks)
        self.rows = min(p.places[1], max(MIN_BAND_ROWS, cdiv(p.places[1], bands)))
        self.bands = cdiv(p.places[1], self.rows)
        self.items = min(p.images * p.places[0] * self.bands * self.chunks, config["items"])

    def text(self) -> str:
        defined = {"R": self.rows, "CB": self.cb, "BANDS": self.bands, "CHUNKS": self.chunks}
        tiles = [(self.widths[0], False), *((width, True) for width in self.widths)]
        return self._text(defined, tiles=tiles, widths=self.widths)
