"""PackedKernel: what the kernels by inline assembly share: slots of work items, packed weights, and the launches."""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from convdispatch.api import OPERANDS, Areas, ConvProblem, Launch, StepPlan, build
from convdispatch.api.cpu import PAGE

__all__ = ["PackedKernel"]


class PackedKernel:
    """One configuration, worked out without compiling."""

    problem: ConvProblem
    items: int
    slot: int
    """Bytes of workspace of a work item."""
    packed_size: int
    panels: int
    groups: int
    packing_group: tuple[int, int, int] = (1, 1, 32)
    """Work items of a group that packs weights: a panel of 32 channels."""

    def text(self) -> str:
        """The program: kernels ``conv`` and ``pack``."""
        raise NotImplementedError

    @property
    def packing(self) -> tuple[int, int, int]:
        """All that pack: a group for each panel of each group of channels, where weights lie so."""
        return self.panels, self.groups, 32

    @property
    def pack_key(self) -> list[Any]:
        """What packed bytes depend on."""
        raise NotImplementedError

    def areas(self) -> tuple[int, int]:
        """(bytes of workspace, where packed weights begin): slots first."""
        areas = Areas(PAGE)
        areas.add(self.items * self.slot)
        place = 0 if self.problem.constant_weights else areas.add(self.packed_size)
        return areas.size, place

    def plan(self, context: Any) -> StepPlan:
        """Compile."""
        problem, program = self.problem, build(context, self.text())
        (size, place), weights = self.areas(), "w" if self.problem.constant_weights else "workspace"
        extras = ["bias", *(["residual"] if problem.residual else [])]
        arguments = ["x", weights, np.int64(place), "y", *extras, "workspace"]
        run = Launch(program, "conv", (self.items, 1, 1), (1, 1, 1), arguments, names=OPERANDS)
        given = ["w", "workspace", np.int64(place)]
        pack = Launch(program, "pack", self.packing, self.packing_group, given, names=OPERANDS)
        if not problem.constant_weights:
            return StepPlan(size, [pack, run])
        return StepPlan(size, [run], self.packed_size, [pack], json.dumps(self.pack_key))
