"""The depthwise kernels of a pass, worked out without compiling: NCHW copies bands, NHWC reads rows where they lie."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from convdispatch.api import (
    DTYPES,
    OPERANDS,
    ConvProblem,
    Launch,
    build,
    define,
    epilogue_macros,
    kernel_text,
    storage_macros,
)
from convdispatch.api.cpu import cdiv

from .passes import Pass

_VECTORS = 4  # vectors of places that NCHW computes at a time
_NEAR = 32 * 1024  # bytes of the rows and weights that a tile of NHWC meets again at the next row: a first-level cache
_LEAST_ROWS = 4  # of a band: its neighbours read some of its rows again


class Bands:
    """How a band's source rows lie in a slot, zeros round them (planes.cl.mako)."""

    def __init__(self, p: Pass, config: Mapping[str, Any]) -> None:
        self.p, self.config = p, config
        self.lanes, self.size = config["lanes"], 8 if p.dtype == "float64" else 4
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
        # Vectors may run a tile beyond the last place: the parts keep room for that.
        self.over = (_VECTORS + 1) * self.lanes
        self.part = p.taps[0] * self.prows * self.wp + self.over
        slot_x = p.taps[0] * rows * self.width * self.cb + self.lanes if p.nhwc else self.part * p.step[1] * p.step[2]
        self.slot_x = cdiv(slot_x, 16) * 16

    def _channels(self) -> int:
        """NHWC channels at a time: all of them, copied in whole rows, unless that leaves too few jobs."""
        p, block = self.p, self.config["cb"]
        if block:
            return min(block, p.groups)
        few = cdiv(16, max(1, p.images * p.places[0] * cdiv(p.places[1], 8)))
        return min(p.groups, cdiv(cdiv(p.groups, few), self.lanes) * self.lanes)


class DepthwiseKernel:
    """One pass under one configuration; ``items`` work items, each with ``slot`` elements of the workspace."""

    files: tuple[str, ...]
    items: int
    slot = 0

    def __init__(self, p: Pass, problem: ConvProblem, config: Mapping[str, Any]) -> None:
        self.p, self.problem, self.config = p, problem, config
        self.lanes, self.size = config["lanes"], 8 if p.dtype == "float64" else 4
        self.ct = cdiv(p.groups, self.lanes) * self.lanes
        self.packed_size = self.ct * p.volume * self.size

    @property
    def slots_size(self) -> int:
        """Bytes of workspace."""
        return self.items * self.slot * self.size

    def _macros(self) -> str:
        """What both kernels and the packing ask for."""
        p = self.p
        text = storage_macros(p.dtype) + epilogue_macros(self.problem)
        text += define(V=f"{DTYPES[p.dtype].accumulator}{self.lanes}", LANES=self.lanes)
        text += p.macros("XYZTSDU")
        text += define(IMAGES=p.images, G=p.groups, ITEMS=self.items, CT=self.ct, WG=math.prod(p.kernel))
        text += define(EMPTY=int(p.empty), KH_=p.kernel[1], KW_=p.kernel[2], INTER=int(p.nhwc))
        return text + define(**{f"KS{axis}": f"({step})" for axis, step in zip("DHW", p.w_step, strict=True)})

    def text(self) -> str:
        """The program: packing and convolution."""
        raise NotImplementedError

    def _text(self, **values: Any) -> str:
        p = self.p
        values |= {"taps_w": p.taps[2], "step_w": p.step[2], "spread_w": p.spread[2], "bias": self.problem.bias}
        return "".join(kernel_text(__package__, file, **values) for file in (*self.files, "depthwise_pack.cl"))

    def packer(self, context: Any, offset: int) -> Launch:
        """Packs w into the workspace, or the packed buffer in its place, from byte ``offset`` on."""
        first = [np.int32(f) for f in self.p.w_first]
        arguments = ["w", "workspace", np.int64(offset // self.size), *first]
        return Launch(
            build(context, self.text()), "pack", (self.ct // self.lanes, 1, 1), (1, 1, 1), arguments, names=OPERANDS
        )

    def launch(self, context: Any, weights: str, offset: int) -> Launch:
        """The convolution itself; ``offset`` of the weights in bytes."""
        source, target = ("x", "y") if self.problem.direction == "fwd" else ("y", "x")
        extras = [name for name in ("bias", "residual") if getattr(self.problem, name)]
        slots = ["workspace"] if self.slot else []
        arguments = [source, weights, np.int64(offset // self.size), *slots, target, *extras]
        arguments += [np.int32(v) for v in (*self.p.pad, *self.p.start)]
        return Launch(
            build(context, self.text()), "depthwise", (self.items, 1, 1), (1, 1, 1), arguments, names=OPERANDS
        )


class PlaneKernel(DepthwiseKernel):
    """NCHW: bands are copied, a vector is neighbouring places."""

    files = ("runs.cl", "planes.cl.mako", "depthwise_nchw.cl.mako")

    def __init__(self, p: Pass, problem: ConvProblem, config: Mapping[str, Any]) -> None:
        super().__init__(p, problem, config)
        self.bands = b = Bands(p, config)
        self.slot = cdiv(b.slot_x + b.rows * b.wp + b.over, 16) * 16
        self.items = min(p.images * p.places[0] * cdiv(p.places[1], b.rows) * p.groups, config["items"])

    def text(self) -> str:
        """The program."""
        p, b = self.p, self.bands
        text = self._macros() + define(R=b.rows, SLOT=f"{self.slot}L", SLOT_X=b.slot_x, WP=b.wp, PART=b.part)
        flat = (b.rows - 1) * b.wp + p.places[2]
        return text + define(PROWS=b.prows) + self._text(
            inter=False, vectors=min(_VECTORS, cdiv(flat, self.lanes)), dense=p.stride[2] == 1, taps_h=p.taps[1],
            step_h=p.step[1], spread_h=p.spread[1],
        )  # fmt: skip


class RowKernel(DepthwiseKernel):
    """NHWC: rows are read where they lie, a vector is neighbouring channels."""

    files = ("depthwise_nhwc.cl.mako",)

    def __init__(self, p: Pass, problem: ConvProblem, config: Mapping[str, Any]) -> None:
        super().__init__(p, problem, config)
        width = p.places[2]
        places = cdiv(width, cdiv(width, config["p"]))
        self.widths = [places, width % places] if width % places else [places]
        # A tile goes down a band's rows. What it reads again at the next row stays near while it has few channels.
        columns = (places - 1) * p.step[2] + (p.taps[2] - 1) * p.spread[2] + 1
        near = _NEAR // (self.size * (columns * p.taps[0] * p.taps[1] + p.volume))
        most = config["cb"] or max(self.lanes, near // self.lanes * self.lanes)
        self.cb = cdiv(cdiv(p.groups, cdiv(p.groups, most)), self.lanes) * self.lanes
        self.chunks = cdiv(p.groups, self.cb)
        bands = cdiv(config["items"], p.images * p.places[0] * self.chunks)
        self.rows = min(p.places[1], max(_LEAST_ROWS, cdiv(p.places[1], bands)))
        self.bands = cdiv(p.places[1], self.rows)
        self.items = min(p.images * p.places[0] * self.bands * self.chunks, config["items"])

    def text(self) -> str:
        """The program."""
        text = self._macros() + define(R=self.rows, CB=self.cb, BANDS=self.bands, CHUNKS=self.chunks)
        tiles = [(self.widths[0], False), *((width, True) for width in self.widths)]
        return text + self._text(tiles=tiles, widths=self.widths)
