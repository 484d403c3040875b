"""Kernels of the forward convolution and the data gradient under one configuration: sizes, text, launches."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from convdispatch.api import Areas, Launch, Step, StepPlan, define
from convdispatch.api.cpu import LINE, PAGE
from convdispatch.api.cpu import cdiv as ceil

from .case import Case
from .kernel import ITEM_CHANNELS, Kernel, even, pitch

TURNED_BYTES = 30 << 10
"""Most bytes of weights that a work item transposes together: every device's local memory holds them."""
CACHED_BYTES = 256 << 10
"""Bytes of packed weights that a second-level cache holds besides the tiles."""
UNCACHED_PACKED_BYTES, PACKED_PART_BYTES = 16 << 20, 8 << 20
"""Packed weights of ``UNCACHED_PACKED_BYTES`` or more exceed the third-level cache; they are packed and used in parts
of ``PACKED_PART_BYTES``."""
BLOCK_WEIGHTS_BYTES = 340 << 10
"""Bytes of the transformed weights of a block of target channels that a work item holds."""


def transposition(case: Case) -> str:
    """Return how pack.cl.mako reads vectors of target channels from the weights, a key of its tables."""
    if case.strides()["w_n"] == 1:
        return "none"
    if math.prod(case.taps) * case.lanes**2 * case.size > TURNED_BYTES:
        return "never"
    return "each" if case.rotated else "taps" if case.nhwc else "runs"


def square_elements(case: Case) -> int:
    """Elements of local memory for the squares in which weights are transposed."""
    order, taps = transposition(case), math.prod(case.taps)
    return {"none": 0, "never": 0, "each": ceil(taps, case.lanes)}.get(order, taps) * case.lanes**2


class DataKernel(Kernel):
    """The forward convolution or data gradient under one configuration: sizes, text, launches."""

    def __init__(self, case: Case, config: Mapping[str, Any]) -> None:
        super().__init__(case, config)
        self.apart = config["form"] != "fused"
        self.source, self.target = ("y", "x") if case.rotated else ("x", "y")
        self.epilogue_operands = case.problem.epilogue_operands
        self._areas(ceil(self.s * case.strip, config["mr"]) * config["mr"])

    def _areas(self, rows: int) -> None:
        """Offsets and strides of V, M and the packed weights, in rows of tiles rounded up to a register tile."""
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
        block_bytes = case.products * case.c * self.nvl * case.size
        packs_once = case.problem.constant_weights or not self.apart or self.chunks > 1
        packs_once = packs_once or block_bytes * self.blocks < UNCACHED_PACKED_BYTES
        self.packed_blocks = self.blocks if packs_once else even(self.blocks, max(1, PACKED_PART_BYTES // block_bytes))
        self.ue = pitch(self.packed_blocks * case.c * self.nvl, case.size)
        self.packed_size = (case.problem.g if packs_once else 1) * case.products * self.ue * case.size

    @property
    def workspace_size(self) -> int:
        """Bytes of V and M, and of the packed weights unless they are constant."""
        return self.slots_size + (0 if self.case.problem.constant_weights else self.packed_size)

    @property
    def fetched(self) -> int:
        """Cache lines of the next weights that each k of a register tile prefetches; 0 if a cache holds all weights."""
        if self.packed_size <= CACHED_BYTES:
            return 0
        return ceil(self.nvl * self.case.size, LINE * ceil(self.s * self.case.strip, self.config["mr"]))

    @property
    def local_elements(self) -> int:
        """Elements of local memory of a work item that transforms weights or results."""
        return max(self.case.local, square_elements(self.case))

    def sizes(self) -> str:
        """Return the macros of offsets and strides as OpenCL text."""
        return define(
            VT=self.vt, VE=f"{self.ve}L", MT=self.mt, ME=f"{self.me}L", UE=f"{self.ue}L", PASS=self.within,
            CHUNKS=self.chunks, SLOT=f"{self.slot}L", SLOT_M=f"{self.slot_m}L",
        )  # fmt: skip

    def text(self) -> str:
        case, config, p = self.case, self.config, self.case.problem
        th, tw = case.transforms
        text = self.sizes() + self.macros(
            STRIPS=case.strips, S=self.s, ITEMS=self.items, G=p.g, TURNED=max(1, square_elements(case)),
            KEPT=self.local_elements,
        )  # fmt: skip
        run, order = even(case.c, case.summed), transposition(case)
        multiply_values = {"fetched": self.fetched, "line": LINE // case.size, "adds": self.adds}
        tile = {"patch_h": th.alpha, "patch_w": tw.alpha, "tile_h": th.m, "tile_w": tw.m, "n_": case.n}
        parts: list[tuple[str, dict[str, Any]]] = [
            ("transpose.cl.mako", {"wanted": not case.nhwc or order in ("runs", "taps", "each")}),
            self.spread("x"),
            ("multiply.cl.mako", multiply_values | {
                "mr": config["mr"], "nv": config["nv"], "a_row": self.vt, "a_k": 1, "ahead": False,
            }),
            ("gather.cl.mako", self.programs("at") | tile | {
                "bias": p.bias, "across": case.across, "h": case.target[0], "w": case.target[1],
            }),
            ("pack.cl.mako", self.programs("g") | case.strides() | {
                "pack_c": self.pack_c, "turned": order, "total": math.prod(p.w_shape), "n_": case.n,
                "packs": config["form"] != "joined", "out_h": th.alpha, "out_w": tw.alpha, "taps_h": th.r,
                "taps_w": tw.r,
            }),
            ("data.cl.mako", multiply_values | {
                "form": config["form"], "kb": run, "near": max(1, 128 // run) * run, "nvl": self.nvl, "c": case.c,
            }),
        ]  # fmt: skip
        return text + self.rendered(parts, self.slots_size, self.apart)

    @property
    def adds(self) -> bool:
        """Whether a sum of products is divided into several running sums, which are then added."""
        return self.case.c > even(self.case.c, self.case.summed)

    @property
    def pack_c(self) -> int:
        """Source channels whose weights one work item packs."""
        fitting = max(1, min(self.case.c, 16384 // (self.case.products * self.nvl)))
        whole_vectors = transposition(self.case) in ("runs", "taps")
        return ceil(fitting, self.case.lanes) * self.case.lanes if whole_vectors else fitting

    def packer(self, context: Any, offset: int, g: int | None = None, block: int = 0) -> Launch:
        """Return the launch that packs w, into the workspace (or the packed buffer) at ``offset``."""
        groups = self.case.problem.g if g is None else 1
        blocks = min(self.packed_blocks, self.blocks - block)
        sizes = (ceil(self.case.c, self.pack_c), blocks, groups)
        arguments = ["w", "workspace", np.int64(offset // self.case.size), np.int32(g or 0), np.int32(block)]
        return self.launch(context, "pack", sizes, arguments)

    def steps(self, context: Any, weights: str, offset: int) -> list[Step]:
        """The launches of the convolution; packed weights are in operand ``weights`` from byte ``offset`` on."""
        case, packed_offset = self.case, np.int64(offset // self.case.size)
        if not self.apart:
            arguments = [self.source, weights, packed_offset, "workspace", self.target, *self.epilogue_operands]
            return [self.launch(context, "conv", [self.items], arguments)]
        steps: list[Step] = []
        packs_once = self.packed_blocks == self.blocks
        for g in range(case.problem.g):
            for first_strip in range(0, case.strips, self.s):
                strips = min(self.s, case.strips - first_strip)
                piece = [np.int32(first_strip), np.int32(g)]
                steps.append(self.spread_launch(context, strips, piece))
                for block in range(0, self.blocks, self.packed_blocks):
                    if not packs_once:  # pack one part of the transformed weights and use it while the cache holds it
                        steps.append(self.packer(context, offset, g, block))
                    weights_offset = np.int64(packed_offset + (g * case.products * self.ue if packs_once else 0))
                    blocks = min(self.packed_blocks, self.blocks - block)
                    arguments = [weights, weights_offset, "workspace", np.int32(strips * case.strip)]
                    arguments += [np.int32(block), np.int32(blocks)]
                    steps.append(self.launch(context, "products", [math.gcd(blocks, 4), case.products], arguments))
                arguments = ["workspace", self.target, *self.epilogue_operands, *piece]
                steps.append(self.launch(context, "collect", [strips, ceil(case.n, ITEM_CHANNELS)], arguments))
        return steps

    def spread_launch(self, context: Any, strips: int, place: list[Any]) -> Launch:
        """Return the launch that transforms a chunk of the source; ``place`` is (first strip, group)."""
        arguments = [self.source, "workspace", *place]
        return self.launch(context, "spread", [strips, ceil(self.case.c, ITEM_CHANNELS)], arguments)

    def plan(self, context: Any) -> StepPlan:
        p = self.case.problem
        if p.constant_weights:
            nv, lanes = self.config["nv"], self.case.lanes
            weights_key = [self.case.m, p.dtype, p.layout, p.direction, p.w_shape, p.g, nv, lanes]
            # The number 2 in the key versions the transforms: packed weights of version 1 have other powers of two.
            key = "winograd cpu 2 " + json.dumps(weights_key)
            steps = self.steps(context, "w", 0)
            return StepPlan(self.slots_size, steps, self.packed_size, [self.packer(context, 0)], key)
        packing = [self.packer(context, self.slots_size)] if self.packed_blocks == self.blocks else []
        return StepPlan(self.workspace_size, [*packing, *self.steps(context, "workspace", self.slots_size)])


class JoinedKernel(DataKernel):
    """The form ``joined``: a work item transforms weights, multiplies, and transforms back a block of target channels.

    It goes through the source channels in parts: it transforms a part's weights for its block, adds the part's products
    to the block of M, and after the last part transforms M back. U and M are in the second-level cache, V in the third.
    Per pair of channels r^2 weights are read from memory, instead of alpha^2 that are written and read.
    """

    def _areas(self, rows: int) -> None:
        case = self.case
        self.within, self.mt = 1, self.nvl
        self.packed_blocks, self.packed_size = self.blocks, 0
        fitting = BLOCK_WEIGHTS_BYTES // (case.products * self.nvl * case.size) // case.lanes * case.lanes
        self.vt = min(max(case.lanes, fitting), case.summed, ceil(case.c, case.lanes) * case.lanes)
        self.ue = pitch(self.vt * self.nvl, case.size)
        self.ve, self.me = pitch(rows * self.vt, case.size), pitch(rows * self.nvl, case.size)
        self.vp = pitch(case.products * self.ve, case.size)
        self.items = min(self.config["items"], self.blocks)
        self.block = case.products * self.me * case.size
        slot = Areas(PAGE)
        slot.add(self.block)
        self.slot_u = slot.size // case.size
        slot.add(case.products * self.ue * case.size)
        self.slot = slot.size // case.size
        areas = Areas(PAGE)
        areas.add(ceil(case.c, self.vt) * self.vp * case.size)
        self.slot_m = areas.size // case.size
        areas.add(self.items * slot.size)
        self.slots_size = areas.size

    def sizes(self) -> str:
        return super().sizes() + define(VP=f"{self.vp}L", SLOT_U=f"{self.slot_u}L")

    @property
    def adds(self) -> bool:
        return self.case.c > self.vt

    def steps(self, context: Any, weights: str, offset: int) -> list[Step]:
        """The launches of the convolution; operand ``weights`` has the untransformed weights."""
        case, steps = self.case, []
        for g in range(case.problem.g):
            for first_strip in range(0, case.strips, self.s):
                strips, piece = min(self.s, case.strips - first_strip), [np.int32(first_strip), np.int32(g)]
                steps.append(self.spread_launch(context, strips, piece))
                arguments = [weights, "workspace", self.target, *self.epilogue_operands, *piece]
                steps.append(self.launch(context, "products", [self.items], [*arguments, np.int32(strips)]))
        return steps

    def plan(self, context: Any) -> StepPlan:
        return StepPlan(self.workspace_size, self.steps(context, "w", 0))
