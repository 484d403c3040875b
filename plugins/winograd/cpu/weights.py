"""The kernel of the weights' gradient under one configuration: sizes, text, launches."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from convdispatch.api import Areas, Step, StepPlan, define
from convdispatch.api.cpu import LINE, PAGE
from convdispatch.api.cpu import cdiv as ceil

from .case import Case
from .kernel import ITEM_CHANNELS, Kernel, even, pitch

JOB_BYTES = 640 << 10
"""Most bytes of the products M of one job of the weights' gradient: the second-level cache holds them."""


class WeightsKernel(Kernel):
    """The weights' gradient under one configuration: sizes, text, launches."""

    def __init__(self, case: Case, config: Mapping[str, Any]) -> None:
        super().__init__(case, config)
        size = case.size
        self.cm = ceil(case.c, config["mr"]) * config["mr"]
        rows = self.s * case.strip
        self.joined = self.chunks == 1
        self.cr = ceil(case.c, case.lanes) * case.lanes
        if self.joined:
            self.cr = self._job_channels(case.products * self.nvl * size)
        max_rows = ceil(self.cr, config["mr"]) * config["mr"]
        self.me = pitch(max_rows * self.nvl, size)
        # The last rows of a register tile may read the next tile's rows, or beyond the part; the results of these rows
        # are not used.
        self.vt = self.cr if self.joined else pitch(max_rows, size)
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

    def _job_channels(self, channel_bytes: int) -> int:
        """Source channels per job: its M, ``channel_bytes`` per channel, fits the second-level cache; no item idles."""
        lanes = self.case.lanes
        max_vectors = max(1, JOB_BYTES // (channel_bytes * lanes))
        jobs = ceil(self.config["items"], self.blocks)
        return even(ceil(self.case.c, lanes), max(1, min(max_vectors, ceil(self.case.c, lanes * jobs)))) * lanes

    def text(self) -> str:
        case, config = self.case, self.config
        th, tw = case.transforms
        text = self.macros(
            CM=self.cm, CR=self.cr, VT=self.vt, VB=self.vb, VE=f"{self.ve}L", DB=self.db, DE=f"{self.de}L",
            D_AT=f"{self.d_at}L", M_AT=f"{self.m_at}L", TB=even(self.s * case.strip, case.summed),
        )  # fmt: skip
        if self.joined:
            text += define(PARTS=ceil(case.c, self.cr), ITEMS=config["items"], ME=f"{self.me}L")
        parts: list[tuple[str, dict[str, Any]]] = [
            ("transpose.cl.mako", {"wanted": True}),
            self.spread("x"),
            self.spread("d"),
            ("multiply.cl.mako", {
                "mr": config["mr"], "nv": config["nv"], "a_row": 1, "a_k": self.vt, "adds": True,
                "ahead": not self.joined, "fetched": 0, "line": 0,
            }),
            ("weights.cl.mako", self.programs("at") | case.strides() | {
                "patch_h": th.alpha, "patch_w": tw.alpha, "tile_h": th.m, "tile_w": tw.m,
                "accumulate": case.problem.accumulate, "joined": self.joined,
            }),
        ]  # fmt: skip
        return text + self.rendered(parts, self.m_at * case.size, True)

    def plan(self, context: Any) -> StepPlan:
        case, groups, items = self.case, self.case.problem.g, self.config["items"]
        parts = max(1, min(self.blocks, ceil(4 * items, case.products)))
        steps: list[Step] = []
        for g in range(groups):
            for strip in range(0, case.strips, self.s):
                strips = min(self.s, case.strips - strip)
                arguments: list[Any] = ["x", "y", "workspace", np.int32(strip), np.int32(g)]
                parts_of_channels = ceil(max(case.c, case.n), ITEM_CHANNELS)
                steps.append(self.launch(context, "spread", [strips, parts_of_channels], arguments))
                sizes, rows = [parts, case.products], np.int32(strips * case.strip)
                arguments = ["workspace", np.int32(g), rows, np.int32(strip == 0)]
                if self.joined:
                    sizes, arguments = [items], ["workspace", "w", np.int32(g), rows]
                steps.append(self.launch(context, "products", sizes, arguments))
        if not self.joined:
            sizes = [ceil(case.c, case.lanes), groups * self.blocks]
            steps.append(self.launch(context, "collect", sizes, ["workspace", "w"]))
        return StepPlan(self.workspace_size, steps)
