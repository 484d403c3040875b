"""Few tiles: weights are transformed by blocks and used while a cache holds them, and never written to memory."""

from __future__ import annotations

from typing import Any

import numpy as np

from convdispatch.api import OPERANDS, Areas, Launch, Step, StepPlan, build, define
from convdispatch.api.cpu import PAGE

from .data import SPREAD, DataKernel, ceil, pitch

_WEIGHTS = 340 << 10
"""Bytes of the transformed weights of a block of target channels that a work item holds."""


class JoinedKernel(DataKernel):
    """Products and inverse transform by blocks of target channels, each with its weights' transform.

    A work item goes through the source channels in parts: it transforms a part's weights for its block, adds the part's
    products to the block of M, and after the last one transforms M back. U and M lie in the second-level cache, V in
    the third; of weights r^2 elements a pair of channels come from memory, for alpha^2 written and read otherwise.
    """

    def _areas(self, rows: int) -> None:
        case = self.case
        self.within, self.mt = 1, self.nvl
        self.packed_blocks, self.packed_size = self.blocks, 0
        fitting = _WEIGHTS // (case.products * self.nvl * case.size) // case.lanes * case.lanes
        self.vt = min(max(case.lanes, fitting), case.summed, ceil(case.c, case.lanes) * case.lanes)
        self.ue = pitch(self.vt * self.nvl, case.size)
        self.ve, self.me = pitch(rows * self.vt, case.size), pitch(rows * self.nvl, case.size)
        self.vp = pitch(case.products * self.ve, case.size)
        self.items = min(self.config["items"], self.blocks)
        self.block = case.products * self.me * case.size
        own = Areas(PAGE)
        own.add(self.block)
        self.slot_u = own.size // case.size
        own.add(case.products * self.ue * case.size)
        self.slot = own.size // case.size
        areas = Areas(PAGE)
        areas.add(ceil(case.c, self.vt) * self.vp * case.size)
        self.slot_m = areas.size // case.size
        areas.add(self.items * own.size)
        self.slots_size = areas.size

    def sizes(self) -> str:
        return super().sizes() + define(VP=f"{self.vp}L", SLOT_U=f"{self.slot_u}L")

    @property
    def adds(self) -> bool:
        return self.case.c > self.vt

    def steps(self, context: Any, weights: str, offset: int) -> list[Step]:
        """The convolution; the weights themselves are operand ``weights``."""
        program, case, p = build(context, self.text), self.case, self.case.problem
        source, target = ("y", "x") if case.rotated else ("x", "y")
        extras = [name for name in ("bias", "residual") if getattr(p, name)]
        steps: list[Step] = []
        for g in range(p.g):
            for first in range(0, case.strips, self.s):
                here, place = min(self.s, case.strips - first), [np.int32(first), np.int32(g)]
                sizes = (here, ceil(case.c, SPREAD), 1)
                arguments = [source, "workspace", *place]
                steps.append(Launch(program, "spread", sizes, (1, 1, 1), arguments, names=OPERANDS))
                arguments = [weights, "workspace", target, *extras, *place, np.int32(here)]
                steps.append(Launch(program, "products", (self.items, 1, 1), (1, 1, 1), arguments, names=OPERANDS))
        return steps

    def plan(self, context: Any) -> StepPlan:
        """Compile."""
        return StepPlan(self.workspace_size, self.steps(context, "w", 0))
