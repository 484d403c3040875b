"""Forward and data gradient under one configuration: sizes, text, launches."""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from convdispatch.api import (
    DTYPES,
    OPERANDS,
    Areas,
    Launch,
    Step,
    StepPlan,
    build,
    define,
    epilogue_macros,
    kernel_text,
    storage_macros,
)
from convdispatch.api.cpu import LINE, PAGE

from ..program import program
from ..transforms import Matrix
from .case import Case

SPREAD = 128
"""Channels of a work item that transforms."""
_STREAMED = 8 << 20
"""Bytes of a chunk's transformed tiles from which on they are written past the caches."""
_TURNED = 30 << 10
"""Bytes of weights that are turned at once: every device's local memory holds them."""
_CACHED = 256 << 10
"""Bytes of packed weights that a second-level cache keeps beside the tiles."""
FAR, PACKED = 16 << 20, 8 << 20
"""Bytes of packed weights that leave the third-level cache, and of the parts that are packed and used in turn."""


def ceil(a: int, b: int) -> int:
    """Quotient, rounded up."""
    return -(-a // b)


def even(size: int, most: int) -> int:
    """Size of the parts of ``size`` of at most ``most`` elements, as even as can be."""
    return ceil(size, ceil(size, most))


def pitch(elements: int, size: int) -> int:
    """A distance of an odd number of cache lines, so that rows spread over the cache's sets."""
    line = LINE // size
    return (ceil(elements, line) | 1) * line


@functools.lru_cache(maxsize=64)
def printed(matrix: Matrix, dtype: str) -> str:
    """``o = M d`` over vectors V."""
    inputs, outputs = [f"d{i}" for i in range(len(matrix[0]))], [f"o{i}" for i in range(len(matrix))]
    scalar = "double" if dtype == "float64" else "float"
    return program(matrix, inputs, outputs, type="V", dtype=scalar, declare=True, indent="      ").text


def turned(case: Case) -> str:
    """How vectors of target channels are read from the weights: pack.cl.mako."""
    if case.strides()["w_n"] == 1:
        return "none"
    if math.prod(case.taps) * case.lanes**2 * case.size > _TURNED:
        return "never"
    return "each" if case.rotated else "taps" if case.nhwc else "runs"


def turned_size(case: Case) -> int:
    """Elements of the squares in which weights are turned."""
    how, taps = turned(case), math.prod(case.taps)
    return {"none": 0, "never": 0, "each": ceil(taps, case.lanes)}.get(how, taps) * case.lanes**2


def spread_store(apart: bool, size: int) -> str:
    """How transformed tiles are written, where a chunk's take ``size`` bytes."""
    return "STREAMW" if apart and size > _STREAMED else "STOREW"


class DataKernel:
    """One configuration, worked out without compiling."""

    def __init__(self, case: Case, config: Mapping[str, Any]) -> None:
        self.case, self.config = case, config
        self.nvl = config["nv"] * case.lanes
        self.blocks = ceil(case.n, self.nvl)
        self.s = min(config["strips"], case.strips)
        self.chunks = ceil(case.strips, self.s)
        self.apart = config["form"] != "fused"
        self._areas(ceil(self.s * case.strip, config["mr"]) * config["mr"])

    def _areas(self, rows: int) -> None:
        """Places of V, M and the packed weights, in rows of tiles rounded up to a register tile."""
        case, config = self.case, self.config
        self.within = self.blocks if self.apart else min(config["blocks"], self.blocks)
        self.vt, self.mt = pitch(case.c, case.size), pitch(self.within * self.nvl, case.size)
        self.ve, self.me = pitch(rows * self.vt, case.size), pitch(rows * self.mt, case.size)
        slot = Areas(PAGE)
        slot.add(case.products * self.ve * case.size)
        self.slot_m = slot.add(case.products * self.me * case.size) // case.size
        self.slot = slot.size // case.size + LINE // case.size
        self.items = 1 if self.apart else min(config["items"], case.problem.g * self.chunks)
        self.slots_size = ceil(self.items * self.slot * case.size, PAGE) * PAGE
        one = case.products * case.c * self.nvl * case.size
        whole = case.problem.constant_weights or not self.apart or self.chunks > 1 or one * self.blocks < FAR
        self.packed_blocks = self.blocks if whole else even(self.blocks, max(1, PACKED // one))
        self.ue = pitch(self.packed_blocks * case.c * self.nvl, case.size)
        self.packed_size = (case.problem.g if whole else 1) * case.products * self.ue * case.size

    @property
    def workspace_size(self) -> int:
        """Bytes of V and M, and of the packed weights unless they are constant."""
        return self.slots_size + (0 if self.case.problem.constant_weights else self.packed_size)

    @property
    def fetched(self) -> int:
        """Cache lines of the weights multiplied next that a register tile's k asks for; 0 where a cache keeps all."""
        if self.packed_size <= _CACHED:
            return 0
        return ceil(self.nvl * self.case.size, LINE * ceil(self.s * self.case.strip, self.config["mr"]))

    @property
    def local_elements(self) -> int:
        """Elements of local memory of a work item that transforms weights and collects."""
        return max(self.case.local, turned_size(self.case))

    def sizes(self) -> str:
        """The text's own names for what _areas laid out."""
        return define(
            VT=self.vt, VE=f"{self.ve}L", MT=self.mt, ME=f"{self.me}L", UE=f"{self.ue}L", PASS=self.within,
            CHUNKS=self.chunks, SLOT=f"{self.slot}L", SLOT_M=f"{self.slot_m}L",
        )  # fmt: skip

    @functools.cached_property
    def text(self) -> str:
        """The program: packing and convolution."""
        case, config, p = self.case, self.config, self.case.problem
        th, tw = case.transforms
        text = storage_macros(p.dtype) + epilogue_macros(p)
        text += define(V=f"{DTYPES[p.dtype].accumulator}{case.lanes}", LANES=case.lanes, NVL=self.nvl, MR=config["mr"])
        text += define(ACROSS=case.across, TILES_H=case.tiles[0], STRIPS=case.strips, S=self.s, XS=case.strip)
        text += define(ITEMS=self.items, NB=self.blocks, E=case.products, C=case.c, N=case.n, G=p.g, SPREAD_C=SPREAD)
        text += define(LOCAL=case.local, TURNED=max(1, turned_size(case)), KEPT=self.local_elements) + self.sizes()
        common = {
            "lanes": case.lanes, "nhwc": case.nhwc, "groups": p.g,
            "images": p.mb, "strip": case.strip, "across": case.across, "c": case.c, "n_": case.n,
            "store": spread_store(self.apart, self.slots_size),
            "patch_h": th.alpha, "patch_w": tw.alpha, "tile_h": th.m, "tile_w": tw.m,
        }  # fmt: skip
        kb = even(case.c, case.summed)
        parts: list[tuple[str, dict[str, Any]]] = [
            ("transpose.cl.mako", {"wanted": not case.nhwc or turned(case) in ("runs", "taps", "each")}),
            ("spread.cl.mako", {
                "name": "x", "out_h": th.alpha, "out_w": tw.alpha, "step_h": th.m, "step_w": tw.m,
                "h": case.source[0], "w": case.source[1], "pad_h": case.pad[0], "pad_w": case.pad[1],
                "program_h": printed(th.bt, p.dtype), "program_w": printed(tw.bt, p.dtype),
            }),
            ("multiply.cl.mako", {
                "mr": config["mr"], "nv": config["nv"], "a_row": self.vt, "a_k": 1, "adds": self.adds, "ahead": False,
                "fetched": self.fetched, "line": LINE // case.size,
            }),
            ("gather.cl.mako", {
                "bias": p.bias,
                "h": case.target[0], "w": case.target[1],
                "program_h": printed(th.at, p.dtype), "program_w": printed(tw.at, p.dtype),
            }),
            ("pack.cl.mako", case.strides() | {
                "pack_c": self.pack_c, "turned": turned(case), "total": math.prod(p.w_shape),
                "packs": self.config["form"] != "joined",
                "out_h": th.alpha, "out_w": tw.alpha, "taps_h": th.r, "taps_w": tw.r,
                "program_h": printed(th.g, p.dtype), "program_w": printed(tw.g, p.dtype),
            }),
            ("data.cl.mako", {
                "form": self.config["form"], "adds": self.adds, "kb": kb, "near": max(1, 128 // kb) * kb,
                "nvl": self.nvl, "fetched": self.fetched, "line": LINE // case.size,
            }),
        ]  # fmt: skip
        return text + "".join(kernel_text(__package__, file, **(common | values)) for file, values in parts)

    @property
    def adds(self) -> bool:
        """Whether a sum of the products is made of several."""
        return self.case.c > even(self.case.c, self.case.summed)

    @property
    def pack_c(self) -> int:
        """Source channels of a packing work item."""
        fitting = max(1, min(self.case.c, 16384 // (self.case.products * self.nvl)))
        whole = turned(self.case) in ("runs", "taps")
        return ceil(fitting, self.case.lanes) * self.case.lanes if whole else fitting

    def packer(self, context: Any, offset: int, g: int | None = None, block: int = 0) -> Launch:
        """Packs w, or a part of a group, into the workspace or the buffer in its place, from byte ``offset`` on."""
        groups = self.case.problem.g if g is None else 1
        blocks = min(self.packed_blocks, self.blocks - block)
        sizes = (ceil(self.case.c, self.pack_c), blocks, groups)
        arguments = ["w", "workspace", np.int64(offset // self.case.size), np.int32(g or 0), np.int32(block)]
        return Launch(build(context, self.text), "pack", sizes, (1, 1, 1), arguments, names=OPERANDS)

    def steps(self, context: Any, weights: str, offset: int) -> list[Step]:
        """The convolution; packed weights lie in operand ``weights`` from byte ``offset`` on."""
        program_, case, p = build(context, self.text), self.case, self.case.problem
        source, target = ("y", "x") if case.rotated else ("x", "y")
        extras = [name for name in ("bias", "residual") if getattr(p, name)]
        at = np.int64(offset // case.size)
        one = (1, 1, 1)
        if not self.apart:
            arguments = [source, weights, at, "workspace", target, *extras]
            return [Launch(program_, "conv", (self.items, 1, 1), one, arguments, names=OPERANDS)]
        steps: list[Step] = []
        for g in range(p.g):
            for first in range(0, case.strips, self.s):
                here = min(self.s, case.strips - first)
                place = [np.int32(first), np.int32(g)]
                sizes = (here, ceil(case.c, SPREAD), 1)
                steps.append(Launch(program_, "spread", sizes, one, [source, "workspace", *place], names=OPERANDS))
                whole = self.packed_blocks == self.blocks
                for block in range(0, self.blocks, self.packed_blocks):
                    if not whole:  # a part of the weights, used while the cache holds it
                        steps.append(self.packer(context, offset, g, block))
                    here_at = np.int64(at + (g * case.products * self.ue if whole else 0))
                    blocks = min(self.packed_blocks, self.blocks - block)
                    arguments = [weights, here_at, "workspace", np.int32(here * case.strip)]
                    arguments += [np.int32(block), np.int32(blocks)]
                    sizes = (math.gcd(blocks, 4), case.products, 1)
                    steps.append(Launch(program_, "products", sizes, one, arguments, names=OPERANDS))
                sizes = (here, ceil(case.n, SPREAD), 1)
                arguments = ["workspace", target, *extras, *place]
                steps.append(Launch(program_, "collect", sizes, one, arguments, names=OPERANDS))
        return steps

    def plan(self, context: Any) -> StepPlan:
        """Compile."""
        p = self.case.problem
        if p.constant_weights:
            what = [self.case.m, p.dtype, p.layout, p.direction, p.w_shape, p.g, self.config["nv"], self.case.lanes]
            key = "winograd cpu 2 " + json.dumps(what)  # the number tells transforms of other powers of two apart
            steps = self.steps(context, "w", 0)
            return StepPlan(self.slots_size, steps, self.packed_size, [self.packer(context, 0)], key)
        packing = [self.packer(context, self.slots_size)] if self.packed_blocks == self.blocks else []
        return StepPlan(self.workspace_size, [*packing, *self.steps(context, "workspace", self.slots_size)])
