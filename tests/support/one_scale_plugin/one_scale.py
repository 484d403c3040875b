"""A plugin that splits float32 into two float16 with one scale for a whole tensor, in plain OpenCL C.

Its numbers are right on normal data, to about 22 bits, and lose digits where images, channels or filters differ in
scale: the level accuracy is there to see it.
"""

from __future__ import annotations

import math

import numpy as np
import pyopencl as cl

from convdispatch.api import Solver, build, hookimpl

SOURCE = """
// The largest magnitude of a tensor, by one work item: this is a test's plugin, not a fast one.
kernel void largest(global const float *t, int count, global float *space, int which) {
  float most = 0.0f;
  for (int i = 0; i < count; ++i) if (isfinite(t[i])) most = fmax(most, fabs(t[i]));
  space[which] = most > 0.0f ? exp2(floor(log2(most)) - 14.0f) : 1.0f;
}
float rounded(float v) {  // to float16 and back: 11 bits, smallest step 2^-24
  if (!isfinite(v)) return v;
  const float step = exp2(fmax(floor(log2(fabs(v))), -14.0f) - 10.0f);
  return v == 0.0f ? 0.0f : rint(v / step) * step;
}
kernel void halves(global const float *t, int count, global float *space, int which, int first) {
  const int i = get_global_id(0);
  const float v = t[i] / space[which], high = rounded(v);
  space[first + i] = high;
  space[first + count + i] = rounded(v - high);
}
kernel void conv(global const float *space, global float *y) {
  global const float *xs = space + 2, *ws = xs + 2 * XS;
  const int at = get_global_id(0), q = at % OW, p = at / OW % OH, o = at / OW / OH % OC, n = at / OW / OH / OC;
  float sum = 0.0f;
  for (int c = 0; c < IC; ++c)
    for (int a = 0; a < KH; ++a)
      for (int b = 0; b < KW; ++b) {
        const int h = p * SH - PH + a * DH, v = q * SW - PW + b * DW;
        if (h < 0 || h >= IH || v < 0 || v >= IW) continue;
        const int i = ((n * IC + c) * IH + h) * IW + v, j = ((o * IC + c) * KH + a) * KW + b;
        sum += xs[i] * ws[j] + (xs[XS + i] * ws[j] + xs[i] * ws[WS + j]);
      }
  y[at] = sum * space[0] * space[1];
}
"""


class Plan:
    """Two scales, two splits, the sum: in the workspace lie the scales, then x's planes and w's."""

    def __init__(self, context, problem):
        self.problem = problem
        self.xs, self.ws = math.prod(problem.x_shape), math.prod(problem.w_shape)
        text = problem.macros() + f"#define XS {self.xs}\n#define WS {self.ws}\n"
        self.program = build(context, text + SOURCE)
        self.workspace_size = 4 * (2 + 2 * self.xs + 2 * self.ws)

    def enqueue(self, queue, x, w, y, workspace, wait_for=None):
        kernel = lambda name: cl.Kernel(self.program, name)  # noqa: E731
        last = wait_for
        for which, (tensor, count, first) in enumerate(((x, self.xs, 2), (w, self.ws, 2 + 2 * self.xs))):
            size, number = np.int32(count), np.int32(which)
            last = [kernel("largest")(queue, (1,), None, tensor, size, workspace, number, wait_for=last)]
            last = [
                kernel("halves")(queue, (count,), None, tensor, size, workspace, number, np.int32(first), wait_for=last)
            ]
        return kernel("conv")(queue, (math.prod(self.problem.out_shape),), None, workspace, y, wait_for=last)


class OneScale(Solver):
    """Forward, float32, NCHW, no groups."""

    name = "one_scale.halves"

    def rejects(self, problem, device):
        if problem.direction != "fwd" or problem.dtype != "float32" or problem.layout != "nchw" or problem.ndim != 2:
            return "forward float32 in 2-D and nchw only"
        return f"1 group only, got {problem.g}" if problem.g > 1 else None

    def plan(self, context, problem, config):
        return Plan(context, problem)


@hookimpl
def convdispatch_solvers():
    return [OneScale()]
