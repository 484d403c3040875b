"""Float32 copies of 16-bit tensors, for tensors that several matrix products sum."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from convdispatch.api import DTYPES, OPERANDS, Areas, ConvProblem, Launch, build, define, kernel_text, storage_macros

CONVERTED_OPS = 45.0
"""Operations at peak rate per element that is converted between 16 bits and float32: 0.11 to 0.16 ms per
million on two cores of a Xeon."""


class WideCopies:
    """Float32 copies of y and w in the workspace if the problem's tensors have 16 bits; otherwise there are none."""

    def __init__(self, problem: ConvProblem, cpu: bool, areas: Areas) -> None:
        self.problem, self._chunk = problem, 4096 if cpu else 1
        self._sizes = {"y": math.prod(problem.y_shape), "w": math.prod(problem.w_shape)}
        if not DTYPES[problem.dtype].widened:
            self._sizes = {}
        self._offsets = {name: areas.add(4 * size) // 4 for name, size in self._sizes.items()}

    def place(self, name: str) -> tuple[str, int]:
        """(operand, offset in elements) that products read or write instead of operand ``name``, or itself."""
        return ("workspace", self._offsets[name]) if name in self._sizes else (name, 0)

    def cost(self, launch: float) -> float:
        """Return operations at the device's peak rate; a launch takes ``launch``."""
        return 2 * launch + CONVERTED_OPS * sum(self._sizes.values()) if self._sizes else 0.0

    def read(self, context: Any, *names: str) -> list[Launch]:
        """The launches that convert operands to their copies."""
        parts = ((name, 0, *self.place(name)) for name in names if name in self._sizes)
        return [self._launch(context, part, self._sizes[part[0]], outward=0, add=0) for part in parts]

    def write(self, context: Any, name: str) -> list[Launch]:
        """The launch that converts a copy into its operand, or adds to it if the problem accumulates."""
        part, add = (*self.place(name), name, 0), int(self.problem.accumulate)
        return [self._launch(context, part, self._sizes[name], outward=1, add=add)] if name in self._sizes else []

    def _launch(self, context: Any, operands: tuple[str, int, str, int], size: int, **macros: int) -> Launch:
        text = storage_macros(self.problem.dtype)
        text += define(OUTWARD=macros["outward"], ADD=macros["add"], CHUNK=self._chunk)
        program = build(context, text + kernel_text(__package__, "convert.cl"))
        source, source_offset, target, target_offset = operands
        arguments = [source, np.int64(source_offset), target, np.int64(target_offset), np.int64(size)]
        return Launch(program, "convert", (-(-size // self._chunk),), None, arguments, names=OPERANDS)
