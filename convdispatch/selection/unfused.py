"""The parts of a problem that its solver does not fuse, as passes of their own before and after the convolution.

Before: the norm of x, written to memory of its own. After: one pass over the written tensor for the rest of the
epilogue (a norm's gradient included), and the sums of its channels.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pyopencl as cl

from ..api.problem import EXTRAS, ConvProblem
from ..device import runtime
from ..device.plans.channel_sums import summing, summing_bytes
from ..device.plans.normalised import CPU_CHUNK, normalising
from ..device.programs.kernels import OPERANDS as LAUNCH_OPERANDS
from ..device.programs.kernels import Launch, build, define, kernel_text


class Unfused:
    """The passes that turn the plan of ``seen`` into one of ``problem``."""

    def __init__(self, context: cl.Context, problem: ConvProblem, seen: ConvProblem) -> None:
        self._chunk = CPU_CHUNK if runtime.device_info(context.devices[0]).type == "cpu" else 1
        self._written = "xwy".index(problem.written)
        self.accumulates = problem.accumulate and not seen.accumulate
        self._out_bytes, self._x_bytes = (math.prod(s) * problem.itemsize for s in (problem.out_shape, problem.x_shape))
        self._norm = self._epilogue = None
        rest = _epilogue_left(problem, seen)
        if problem.norm and not seen.norm and not problem.masked:
            names = ("normed", "x", "norm")
            self._norm = normalising(context, problem, names, names=names)
        if rest.extras or rest.activation or rest.accumulate:
            self._epilogue = self._epilogue_launch(context, rest)
        self._sums: list[Launch] = []
        if problem.sums and not seen.sums:
            self._sums, self._sums_bytes = summing(context, problem), summing_bytes(problem)

    def _epilogue_launch(self, context: cl.Context, rest: ConvProblem) -> Launch:
        size, shape = math.prod(rest.out_shape), rest.out_shape
        inner = 1 if rest.layout == "nhwc" else size // max(1, shape[0] * shape[1])
        text = rest.macros() + define(SIZE=size, INNER=inner, CHANNELS=rest.channels_out, CHUNK=self._chunk)
        arguments = ["out", "fresh" if rest.accumulate else "out"]
        arguments += [name if name in rest.extras else "out" for name in EXTRAS[:-1]]
        program = build(context, text + kernel_text(__package__, "epilogue.cl"))
        names = ("out", "fresh", *EXTRAS[:-1])
        return Launch(program, "epilogue", (max(1, -(-size // self._chunk)),), None, arguments, names=names)

    def __call__(self, run: Any, queue: Any, operands: Sequence[Any], wait_for: Any) -> Any:
        """Enqueue everything, and return the last event; ``run(operands, wait_for)`` enqueues the plan."""
        x, w, y, *extras = operands
        inner = [x, w, y, *extras]
        out = inner[self._written]
        if self._norm is not None:
            inner[0] = runtime.allocate(queue, self._x_bytes)
            wait_for = [self._norm(queue, (inner[0], x, extras[EXTRAS.index("norm")]), wait_for)]
        if self.accumulates:
            inner[self._written] = runtime.allocate(queue, self._out_bytes)
        event = run(inner, wait_for)
        if self._epilogue is not None:
            event = self._epilogue(queue, (out, inner[self._written], *extras[:-1]), [event])
        if self._sums:
            by_name = {"x": x, "w": w, "y": y, **dict(zip(EXTRAS, extras, strict=True))}
            by_name["workspace"] = runtime.allocate(queue, self._sums_bytes)
            launch_operands = [by_name[name] for name in LAUNCH_OPERANDS]
            for launch in self._sums:
                event = launch(queue, launch_operands, [event])
        return event


def _epilogue_left(problem: ConvProblem, seen: ConvProblem) -> ConvProblem:
    """The problem with only those parts of its epilogue, without sums, that the plan of ``seen`` lacks."""
    left = {part: getattr(problem, part) and not getattr(seen, part) for part in ("bias", "residual", "accumulate")}
    activation = None if seen.activation else problem.activation
    norm = problem.norm if problem.masked and not seen.norm else None
    return problem.replace(**left, activation=activation, norm=norm, sums=False)
