"""Few tiles: weights are transformed by blocks and used while a cache holds them, and never written to memory."""

from __future__ import annotations

from typing import Any

import numpy as np

from convdispatch.api import Areas, Step, StepPlan, define
from convdispatch.api.cpu import PAGE
from convdispatch.api.cpu import cdiv as ceil

from .data import DataKernel
from .kernel import pitch

BLOCK_WEIGHTS_BYTES = 340 << 10
"""Bytes of the transformed weights of a block of target channels that a work item holds."""


class JoinedKernel(DataKernel):
    """Products and inverse transform by blocks of target channels, each with its weights' transform.

    A work item goes through the source channels in parts: it transforms a part's weights for its block, adds the part's
    products to the block of M, and after the last one transforms M back. U and M are in the second-level cache, V is in
    the third; r^2 weights a pair of channels come from memory, instead of alpha^2 that are written and read.
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
        case, steps = self.case, []
        for g in range(case.problem.g):
            for first in range(0, case.strips, self.s):
                here, place = min(self.s, case.strips - first), [np.int32(first), np.int32(g)]
                steps.append(self.spread_launch(context, here, place))
                arguments = [weights, "workspace", self.target, *self.extras, *place, np.int32(here)]
                steps.append(self.launch(context, "products", [self.items], arguments))
        return steps

    def plan(self, context: Any) -> StepPlan:
        """No packing: weights are transformed where they are used."""
        return StepPlan(self.workspace_size, self.steps(context, "w", 0))
