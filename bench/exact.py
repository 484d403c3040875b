"""Whole results compared on the device with a portable solver's, which sums directly in float64 there."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pyopencl as cl

from convdispatch.api import ConvProblem, DeviceInfo, Plan
from convdispatch.selection.plugins.loader import plugins

__all__ = ["Exact"]

TEXT = """
#pragma OPENCL EXTENSION cl_khr_fp64 : enable
#define float32(p, i) ((global const float *)(p))[i]
#define float16(p, i) vload_half(i, (global const half *)(p))
#define bfloat16(p, i) as_float((uint)((global const ushort *)(p))[i] << 16)
kernel void widen(global const void *from, global double *to, ulong count, int square) {
  for (ulong i = get_global_id(0); i < count; i += get_global_size(0)) {
    const double v = DTYPE(from, i);
    to[i] = square ? v * v : v;
  }
}
// Each work item's sums of squares: of the differences, and of what is expected.
kernel void differ(global const void *got, global const double *expected, global double2 *sums, ulong count) {
  double2 sum = 0;
  for (ulong i = get_global_id(0); i < count; i += get_global_size(0)) {
    const double e = expected[i], d = DTYPE(got, i) - e;
    sum += (double2)(d * d, e * e);
  }
  sums[get_global_id(0)] = sum;
}
"""
ITEMS = 1 << 16
SOLVERS = ("implicitgemm.tiled", "im2col")


class Exact:
    """For one device and dtype."""

    def __init__(self, queue: cl.CommandQueue, info: DeviceInfo, dtype: str) -> None:
        self.queue, self.info, self.context = queue, info, queue.context
        program = cl.Program(self.context, TEXT).build([f"-DDTYPE={dtype}"])
        self.widen, self.differ = cl.Kernel(program, "widen"), cl.Kernel(program, "differ")
        self.widen.set_scalar_arg_dtypes([None, None, np.uint64, np.int32])
        self.differ.set_scalar_arg_dtypes([None, None, None, np.uint64])

    def plan(self, problem: ConvProblem) -> Plan:
        """The problem's plan in float64."""
        wide = problem.replace(dtype="float64", math="float32")
        solver = next(s for s in (plugins().solvers[n] for n in SOLVERS) if not s.rejects(wide, self.info))
        return solver.plan(self.context, wide, next(iter(solver.configs(wide, self.info))))

    def expected(self, problem: ConvProblem, plan: Plan, memory: Mapping[str, cl.Buffer], square: bool) -> cl.Buffer:
        """The result in float64; with ``square`` that of the operands' squares. ``memory``: x, w and y by name."""
        made, flags = {}, cl.mem_flags.READ_WRITE
        for name in "xwy":
            count = int(np.prod(getattr(problem, name + "_shape")))
            made[name] = cl.Buffer(self.context, flags, count * 8)
            if name != problem.written:
                self.widen(self.queue, (ITEMS,), (256,), memory[name], made[name], count, int(square))
        scratch = cl.Buffer(self.context, flags, max(4, plan.workspace_size))
        plan.enqueue(self.queue, made["x"], made["w"], made["y"], scratch).wait()
        return made[problem.written]

    def error(self, problem: ConvProblem, plan: Plan, memory: Mapping[str, cl.Buffer]) -> float:
        """Relative error in norm of the whole output that lies in ``memory``; infinite where it is not finite."""
        expected, count = self.expected(problem, plan, memory, False), int(np.prod(problem.out_shape))
        sums, found = cl.Buffer(self.context, cl.mem_flags.READ_WRITE, ITEMS * 16), np.empty((ITEMS, 2))
        self.differ(self.queue, (ITEMS,), (256,), memory[problem.written], expected, sums, count)
        cl.enqueue_copy(self.queue, found, sums)
        difference, size = found.sum(axis=0)
        return float(np.sqrt(difference / size)) if np.isfinite(difference) else float("inf")
