"""The weights' gradient under one configuration: sizes, text, launches."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from convdispatch.api import DTYPES, OPERANDS, Areas, Launch, Step, StepPlan, build, define, kernel_text, storage_macros
from convdispatch.api.cpu import LINE, PAGE

from .case import Case
from .data import SPREAD, ceil, even, pitch, printed, spread_store

_JOINED = 640 << 10  # bytes of M of a job: the second-level cache holds them


class WeightsKernel:
    """One configuration, worked out without compiling."""

    def __init__(self, case: Case, config: Mapping[str, Any]) -> None:
        self.case, self.config = case, config
        self.nvl, size = config["nv"] * case.lanes, case.size
        self.blocks = ceil(case.n, self.nvl)
        self.s = min(config["strips"], case.strips)
        self.chunks = ceil(case.strips, self.s)
        self.cm = ceil(case.c, config["mr"]) * config["mr"]
        rows = self.s * case.strip
        self.joined = self.chunks == 1
        self.cr = self._rows(case.products * self.nvl * size) if self.joined else ceil(case.c, case.lanes) * case.lanes
        most = ceil(self.cr, config["mr"]) * config["mr"]
        self.me = pitch(most * self.nvl, size)
        # A register tile's last rows may read into the next tile's, or beyond the part; nothing uses what they give.
        self.vt = self.cr if self.joined else pitch(most, size)
        self.vb = pitch(rows * self.vt + config["mr"], size)
        self.ve = ceil(case.c, self.cr) * self.vb
        self.db = rows * self.nvl
        self.de = pitch(self.blocks * self.db, size)
        areas = Areas(PAGE)
        areas.add(case.products * self.ve * size)
        self.d_at = areas.add(case.products * self.de * size + LINE) // size
        m = config["items"] * self.me if self.joined else case.problem.g * self.blocks * self.cm * self.nvl
        self.m_at = areas.add(case.products * m * size) // size
        self.workspace_size = areas.size

    def _rows(self, one: int) -> int:
        """Source channels of a job: its M, ``one`` byte each, fits the second-level cache; jobs for all items."""
        lanes = self.case.lanes
        most = max(1, _JOINED // (one * lanes))
        jobs = ceil(self.config["items"], self.blocks)
        return even(ceil(self.case.c, lanes), max(1, min(most, ceil(self.case.c, lanes * jobs)))) * lanes

    def text(self) -> str:
        """The program."""
        case, config, p = self.case, self.config, self.case.problem
        th, tw = case.transforms
        text = storage_macros(p.dtype)
        text += define(V=f"{DTYPES[p.dtype].accumulator}{case.lanes}", LANES=case.lanes, NVL=self.nvl, MR=config["mr"])
        text += define(ACROSS=case.across, TILES_H=case.tiles[0], XS=case.strip, NB=self.blocks, E=case.products)
        text += define(C=case.c, N=case.n, CM=self.cm, CR=self.cr, LOCAL=case.local)
        text += define(VT=self.vt, VB=self.vb, VE=f"{self.ve}L", DB=self.db)
        text += define(DE=f"{self.de}L", D_AT=f"{self.d_at}L", M_AT=f"{self.m_at}L", SPREAD_C=SPREAD)
        if self.joined:
            text += define(PARTS=ceil(case.c, self.cr), ITEMS=self.config["items"], ME=f"{self.me}L")
        text += define(TB=even(self.s * case.strip, case.summed))
        step = {"step_h": case.tile[0], "step_w": case.tile[1], "out_h": th.alpha, "out_w": tw.alpha}
        common = {
            "lanes": case.lanes, "nhwc": case.nhwc, "groups": p.g,
            "images": p.mb, "strip": case.strip, "store": spread_store(True, self.m_at * case.size),
        }  # fmt: skip
        parts: list[tuple[str, dict[str, Any]]] = [
            ("transpose.cl.mako", {"wanted": True}),
            ("spread.cl.mako", step | {
                "name": "x", "patch_h": th.alpha, "patch_w": tw.alpha, "c": case.c,
                "h": case.source[0], "w": case.source[1], "pad_h": case.pad[0], "pad_w": case.pad[1],
                "program_h": printed(th.bt, p.dtype), "program_w": printed(tw.bt, p.dtype),
            }),
            ("spread.cl.mako", step | {
                "name": "d", "patch_h": case.tile[0], "patch_w": case.tile[1], "c": case.n,
                "h": case.target[0], "w": case.target[1], "pad_h": 0, "pad_w": 0,
                "program_h": printed(th.g, p.dtype), "program_w": printed(tw.g, p.dtype),
            }),
            ("multiply.cl.mako", {
                "mr": config["mr"], "nv": config["nv"], "a_row": 1, "a_k": self.vt, "adds": True,
                "ahead": not self.joined, "fetched": 0, "line": 0,
            }),
            ("weights.cl.mako", case.strides() | {
                "patch_h": th.alpha, "patch_w": tw.alpha, "tile_h": th.m, "tile_w": tw.m,
                "program_h": printed(th.at, p.dtype), "program_w": printed(tw.at, p.dtype),
                "accumulate": p.accumulate, "joined": self.joined,
            }),
        ]  # fmt: skip
        return text + "".join(kernel_text(__package__, file, **(common | values)) for file, values in parts)

    def plan(self, context: Any) -> StepPlan:
        """Compile."""
        program, case, one = build(context, self.text()), self.case, (1, 1, 1)
        groups = case.problem.g
        parts = max(1, min(self.blocks, ceil(4 * self.config["items"], case.products)))
        steps: list[Step] = []
        for g in range(groups):
            for strip in range(0, case.strips, self.s):
                here = min(self.s, case.strips - strip)
                sizes = (here, ceil(max(case.c, case.n), SPREAD), 1)
                arguments: list[Any] = ["x", "y", "workspace", np.int32(strip), np.int32(g)]
                steps.append(Launch(program, "spread", sizes, one, arguments, names=OPERANDS))
                rows = np.int32(here * case.strip)
                if self.joined:
                    sizes, arguments = (self.config["items"], 1, 1), ["workspace", "w", np.int32(g), rows]
                else:
                    sizes = (parts, case.products, 1)
                    arguments = ["workspace", np.int32(g), rows, np.int32(strip == 0)]
                steps.append(Launch(program, "products", sizes, one, arguments, names=OPERANDS))
        if not self.joined:
            sizes = (ceil(case.c, case.lanes), groups * self.blocks, 1)
            steps.append(Launch(program, "collect", sizes, one, ["workspace", "w"], names=OPERANDS))
        return StepPlan(self.workspace_size, steps)
