"""A sound plugin, and the same with one fault each: the kit must pass the first and catch every other.

``shoddy.sound`` computes 2-D forward convolutions by direct sums in one kernel that takes its geometry as arguments,
so that it compiles once: zero an accumulator in the workspace, sum into it, copy it to the output. Each fault is an
edit of the kernel's text or of what the solver does, by the name of the solver.
"""

from __future__ import annotations

import itertools
import math
import threading
import time

import numpy as np
import pyopencl as cl

from convdispatch.api import OPERANDS, Launch, Solver, StepPlan, build, hookimpl, kernel_text

SOURCE = """
kernel void zero(global float *scratch) { scratch[get_global_id(0)] = 0.0f; }
kernel void direct(global const float *x, global const float *w, global float *scratch, int ic, int ih, int iw, int oc,
                   int oh, int ow, int kh, int kw, int sh, int sw, int ph, int pw, int ph_r, int pw_r, int dh, int dw,
                   int g) {
  const int at = get_global_id(0), q = at % ow, p = at / ow % oh, o = at / ow / oh % oc, n = at / ow / oh / oc;
  const int icg = ic / g, first = o / (oc / g) * icg;
  float sum = 0.0f;
  for (int c = 0; c < icg; ++c)
    for (int a = 0; a < kh; ++a)
      for (int b = 0; b < kw; ++b) {
        const int h = p * sh - ph + a * dh, v = q * sw - pw + b * dw;
        if (h >= 0 && h < ih && v >= 0 && v < iw)
          sum = fma(w[((o * icg + c) * kh + a) * kw + b], x[((n * ic + first + c) * ih + h) * iw + v], sum);
      }
  scratch[at] += sum;
}
kernel void copy(global const float *scratch, global float *y) { y[get_global_id(0)] = scratch[get_global_id(0)]; }
kernel void poke(global float *p, int at, float v) { p[at] += v; }
"""
LETTERS = ["ic", "ih", "iw", "oc", "oh", "ow", "kh", "kw", "sh", "sw", "ph", "pw", "ph_r", "pw_r", "dh", "dw", "g"]
KERNEL_FAULTS = {
    "forgets_stride": ("p * sh - ph + a * dh, v = q * sw - pw + b * dw", "p - ph + a * dh, v = q - pw + b * dw"),
    "far_pad_for_near": ("q * sw - pw +", "q * sw - pw_r +"),
    "open_at_the_far_side": ("v >= 0 && v < iw", "v >= 0"),
    "forgets_dilation": ("+ a * dh, v = q * sw - pw + b * dw", "+ a, v = q * sw - pw + b"),
    "ignores_group": ("first = o / (oc / g) * icg", "first = 0"),
    "last_channel_lost": ("c < icg", "c < max(1, icg - icg % 4)"),
    "last_output_lost": (
        "{ y[get_global_id(0)] =",
        "{ if (get_global_id(0) + 1 < get_global_size(0)) y[get_global_id(0)] =",
    ),
    "adds_to_the_output": ("{ y[get_global_id(0)] =", "{ y[get_global_id(0)] +="),
    "sloppy": ("scratch[at] += sum", "scratch[at] += sum * 1.0001f"),
    "cuts_an_infinity": ("= scratch[get_global_id(0)]; }", "= clamp(scratch[get_global_id(0)], -1e30f, 1e30f); }"),
    "sums_by_the_batch": (
        "for (int c = 0; c < icg; ++c)\n    for (int a = 0; a < kh; ++a)\n",
        "for (int i = 0; i < icg; ++i)\n    for (int a = 0, c = (i + (int)get_global_size(0) / (oc * oh * ow)) % icg; "
        "a < kh; ++a)\n",
    ),
    "spreads_to_a_neighbour": (
        "scratch[at] += sum",
        "for (int i = 0; i < ih * iw; ++i) sum += 0 * x[(n * ic + first) * ih * iw + i];\n  scratch[at] += sum",
    ),
}
"""What the kernel is made to say instead."""
KERNEL_FAULTS["sums_by_the_batch_of_few"] = KERNEL_FAULTS["sums_by_the_batch"]


class Plan:
    """Three launches in a row, and the fault."""

    def __init__(self, fault, context, problem):
        old, new = KERNEL_FAULTS.get(fault, ("", ""))
        assert old in SOURCE
        self.fault, self.problem, self.count = fault, problem, math.prod(problem.y_shape)
        self.program = build(context, SOURCE.replace(old, new))
        self.numbers = [np.int32(getattr(problem, letter)) for letter in LETTERS]
        self.workspace_size = 4 * self.count + (4 if fault == "unsure_of_its_workspace" else 0)
        self.lock, self.first, self.runs, self.context = threading.Lock(), True, itertools.count(), context
        self.weights = None
        self.size_of_w = 4 * math.prod(problem.w_shape)
        if fault == "one_key_for_all":  # where the weights lie in the packed form depends on the padding
            self.packed_size, self.pack_key, self.slot = 2 * self.size_of_w, "w", problem.ph % 2 * self.size_of_w
        self.kernels = {name: cl.Kernel(self.program, name) for name in ("zero", "direct", "copy", "poke")}

    def pack(self, queue, w, packed, wait_for=None):
        event = cl.enqueue_fill_buffer(queue, packed, np.uint8(0), 0, self.packed_size, wait_for=wait_for)
        return cl.enqueue_copy(queue, packed, w, byte_count=self.size_of_w, dst_offset=self.slot, wait_for=[event])

    def enqueue(self, queue, x, w, y, workspace, wait_for=None):
        run, fault = next(self.runs), self.fault
        if fault == "one_key_for_all" and self.problem.constant_weights:
            packed, w = w, cl.Buffer(self.context, cl.mem_flags.READ_WRITE, self.size_of_w)
            copied = cl.enqueue_copy(
                queue, w, packed, byte_count=self.size_of_w, src_offset=self.slot, wait_for=wait_for
            )
            wait_for = [copied]
        if fault == "waits":
            for event in wait_for or ():
                event.wait()
        if fault == "hurries":
            wait_for = None
        if fault == "keeps_the_first_weights":
            if self.weights is None:
                self.weights = cl.Buffer(self.context, cl.mem_flags.READ_WRITE, w.size)
                wait_for = [cl.enqueue_copy(queue, self.weights, w, wait_for=wait_for)]
            w = self.weights
        if fault == "raises_at_the_third" and run == 2:
            raise RuntimeError("no more")
        if fault != "reads_stale_workspace":
            wait_for = [self._run(queue, "zero", self.count, wait_for, workspace)]
        event = self._run(queue, "direct", self.count, wait_for, x, w, workspace, *self.numbers)
        event = self._run(queue, "copy", self.count, None if fault == "does_not_chain" else [event], workspace, y)
        at = {
            "one_element_too_many": (y, self.count, 1.0),
            "one_element_too_early": (y, -1, 1.0),
            "writes_past_its_workspace": (workspace, self.count, 1.0),
            "alters_its_input": (x, 0, 1.0),
            "alters_its_weights": (w, 0, 1.0),
            "never_the_same": (y, 0, 1e-6 * run),
        }.get(fault)
        if at:
            memory, place, value = at
            event = self._run(queue, "poke", 1, [event], memory, np.int32(place), np.float32(value))
        if fault == "unsure_of_its_workspace":
            self.workspace_size += 4
        return None if fault == "returns_no_event" else event

    def _run(self, queue, name, size, wait_for, *arguments):
        kernel = self.kernels[name]
        if self.fault == "not_for_threads":
            kernel.set_args(*arguments)
            time.sleep(0.002)
            return cl.enqueue_nd_range_kernel(queue, kernel, (size,), None, wait_for=wait_for)
        with self.lock:
            kernel.set_args(*arguments)
            return cl.enqueue_nd_range_kernel(queue, kernel, (size,), None, wait_for=wait_for)


FEW = 5
"""Most images of the solvers that refuse larger batches: fewer than the kit's largest batch."""


class Direct(Solver):
    """2-D forward, float32, NCHW; with one fault."""

    exact = batch_invariant = True

    def __init__(self, fault):
        self.fault, self.name = fault, f"shoddy.{fault}"
        self.exact = fault != "sloppy"
        self.asked = 0

    def rejects(self, problem, device):
        if self.fault == "refuses_without_words" and problem.g != 1:
            return ""
        if self.fault == "refuses_with_true" and problem.g != 1:
            return True
        if self.fault == "changes_its_mind":
            self.asked += 1
            if self.asked % 2 == 0:
                return "not today"
        if self.fault == "raises_when_asked" and problem.g != 1:
            raise KeyError("groups")
        if problem.direction != "fwd" and self.fault != "forgets_direction":
            return f"forward only, got {problem.direction}"
        if problem.ndim != 2 and self.fault != "forgets_rank":
            return f"2-D only, got {problem.ndim}-D"
        if problem.layout != "nchw" and self.fault != "forgets_layout":
            return f"nchw only, got {problem.layout}"
        if problem.dtype != "float32" and self.fault != "forgets_dtype":
            return f"float32 only, got {problem.dtype}"
        if problem.mb > FEW and self.fault in ("few_images", "sums_by_the_batch_of_few"):
            return f"{FEW} images at most, got {problem.mb}"
        return None

    def workspace(self, problem, device, config):
        wrong = 4 if self.fault == "states_another_workspace" else 0
        return None if self.fault == "unsure_of_its_workspace" else 4 * math.prod(problem.y_shape) + wrong

    def configs(self, problem, device):
        return [] if self.fault == "offers_nothing" else [{"size": {1}}] if self.fault == "offers_no_json" else [{}]

    def plan(self, context, problem, config):
        if self.fault == "does_not_plan":
            raise ValueError("no plan")
        return Plan(self.fault, context, problem)


FUSED_SOURCE = """
#if NORM
#define NORM_PARAM , global const float *norm
#define READ(i, c) normed(norm, x[i], c)
#else
#define NORM_PARAM
#define READ(i, c) x[i]
#endif
#if FWD
kernel void conv(global const float *x, global const float *w, global float *y NORM_PARAM) {
  const int at = get_global_id(0), q = at % OW, p = at / OW % OH, o = at / OW / OH % OC, n = at / OW / OH / OC;
  float sum = 0.0f;
  for (int c = 0; c < ICG; ++c)
    for (int a = 0; a < KH; ++a)
      for (int b = 0; b < KW; ++b) {
        const int h = p * SH - PH + a * DH, v = q * SW - PW + b * DW, channel = o / OCG * ICG + c;
        const bool inside = h >= 0 && h < IH && v >= 0 && v < IW;
        const float value = inside ? READ(((n * IC + channel) * IH + h) * IW + v, channel) : 0.0f;
        sum = fma(w[((o * ICG + c) * KH + a) * KW + b], value, sum);
      }
  y[at] = sum;
}
kernel void sums(global const float *y, global float *sums) {
  const int c = get_global_id(0);
  float count = 0.0f, mean = 0.0f, squares = 0.0f;
  for (int n = 0; n < MB; ++n)
    for (int i = 0; i < OH * OW; ++i) {
      const float v = y[(n * OC + c) * OH * OW + i], distance = v - mean;
      mean += distance / (count += 1.0f);
      squares += distance * (v - mean);
    }
  sums[c] = count, sums[OC + c] = mean, sums[2 * OC + c] = squares;
}
#else
kernel void conv(global const float *y, global const float *w, global float *x, global const float *saved NORM_PARAM) {
  const int at = get_global_id(0), v = at % IW, h = at / IW % IH, c = at / IW / IH % IC, n = at / IW / IH / IC;
  float sum = 0.0f;
  for (int o = 0; o < OCG; ++o)
    for (int a = 0; a < KH; ++a)
      for (int b = 0; b < KW; ++b) {
        const int p = h + PH - a * DH, q = v + PW - b * DW, channel = c / ICG * OCG + o;
        if (p < 0 || q < 0 || p % SH || q % SW || p / SH >= OH || q / SW >= OW) continue;
        const float value = y[((n * OC + channel) * OH + p / SH) * OW + q / SW];
        sum = fma(w[((channel * ICG + c % ICG) * KH + a) * KW + b], value, sum);
      }
  TIMES_SLOPE(sum, at, c)
  x[at] = sum;
}
kernel void sums(global const float *x, global float *sums, global const float *saved NORM_PARAM) {
  const int c = get_global_id(0);
  float sum = 0.0f, products = 0.0f;
  for (int n = 0; n < MB; ++n)
    for (int i = 0; i < IH * IW; ++i) {
      const int at = (n * IC + c) * IH * IW + i;
      sum += x[at];
      products += x[at] * (saved[at] - norm[c]);
    }
  sums[c] = sum, sums[IC + c] = products;
}
#endif
"""
"""A convolution that fuses a norm and sums: each output by a work item, and each channel's sums by one."""
FUSED_FAULTS = {
    "normed_padding": ("inside ? READ(((n * IC + channel) * IH + h) * IW + v, channel) : 0.0f",
                       "READ(((n * IC + channel) * IH + clamp(h, 0, IH - 1)) * IW + clamp(v, 0, IW - 1), channel)"),
    "norm_of_another_channel": ("IW + v, channel) : 0.0f", "IW + v, c) : 0.0f"),
    "variance_from_squares": ("squares += distance * (v - mean);\n    }", "squares += v * v;\n    }\n"
                              "  squares -= count * mean * mean;"),
    "sums_lose_an_image": ("n < MB; ++n)\n    for (int i = 0; i < OH",
                           "n < max(1, MB - 1); ++n)\n    for (int i = 0; i < OH"),
    "mask_of_the_result": ("TIMES_SLOPE(sum, at, c)", "sum = sum > 0 ? sum : 0;"),
    "products_without_the_mean": ("(saved[at] - norm[c])", "saved[at]"),
}  # fmt: skip


class Fused(Solver):
    """2-D forward and data gradients with a norm and sums, float32, NCHW; with one fault."""

    exact = batch_invariant = True
    fuses = frozenset({"norm", "sums"})

    def __init__(self, fault):
        self.fault, self.name = fault, f"shoddy.{fault}"

    def rejects(self, problem, device):
        if problem.direction == "bwd_weights" or not (problem.norm or problem.sums):
            return f"norms and sums of forward convolutions and data gradients only, got {problem.direction}"
        form = problem.ndim, problem.layout, problem.dtype, problem.residual
        if form != (2, "nchw", "float32", False) or problem.mb < 1:
            return f"2-D, nchw, float32 and no residual only, got {problem}"
        return None

    def plan(self, context, problem, config):
        old, new = FUSED_FAULTS.get(self.fault, ("", ""))
        assert old in FUSED_SOURCE
        text = problem.macros() + kernel_text("convdispatch.api", "norm.cl") + FUSED_SOURCE.replace(old, new)
        program = build(context, text)
        operands = ["x", "w", "y"] if problem.direction == "fwd" else ["y", "w", "x", "saved"]
        norm = ["norm"] if problem.norm else []
        size = (math.prod(problem.out_shape),)
        steps = [Launch(program, "conv", size, None, [*operands, *norm], names=OPERANDS)]
        if problem.sums:
            names = ["y", "sums"] if problem.direction == "fwd" else ["x", "sums", "saved", "norm"]
            steps.append(Launch(program, "sums", (problem.channels_out,), None, names, names=OPERANDS))
        return StepPlan(0, steps)


FAULTS = {
    # the five that any kit must catch
    "forgets_stride": "values", "far_pad_for_near": "values", "ignores_group": "values",
    "reads_stale_workspace": "stale", "one_element_too_many": "guards",
    # geometry and reach
    "open_at_the_far_side": "values", "forgets_dilation": "values", "forgets_direction": None, "forgets_rank": None,
    "forgets_layout": None, "forgets_dtype": None, "last_channel_lost": "values",
    # memory
    "last_output_lost": "written", "adds_to_the_output": "stale", "one_element_too_early": "guards",
    "writes_past_its_workspace": "workspace", "alters_its_input": "inputs", "alters_its_weights": "inputs",
    "unsure_of_its_workspace": "workspace", "states_another_workspace": "workspace",
    # what a plan promises
    "keeps_the_first_weights": "reuse", "never_the_same": "deterministic", "sloppy": "values", "waits": "waits",
    "spreads_to_a_neighbour": "nonfinite", "cuts_an_infinity": "nonfinite",
    "hurries": "order", "does_not_chain": "order", "not_for_threads": "threads", "raises_at_the_third": "plan",
    "does_not_plan": "plan", "returns_no_event": "plan", "one_key_for_all": "keys", "sums_by_the_batch": "batch",
    "sums_by_the_batch_of_few": "batch",
    # what a solver answers
    "refuses_without_words": "words", "refuses_with_true": "words", "changes_its_mind": "words",
    "raises_when_asked": "words", "offers_nothing": "configurations", "offers_no_json": "configurations",
    # norms and sums
    "normed_padding": "values", "norm_of_another_channel": "values", "variance_from_squares": "sums",
    "sums_lose_an_image": "sums", "mask_of_the_result": "values", "products_without_the_mean": "sums",
}  # fmt: skip
"""Fault to the check that must name it; None where it depends on the case which one sees it first."""


@hookimpl
def convdispatch_solvers():
    plain = [Direct(fault) for fault in FAULTS if fault not in FUSED_FAULTS]
    return [Direct("sound"), Direct("few_images"), Fused("fused_and_sound"), *plain, *map(Fused, FUSED_FAULTS)]
