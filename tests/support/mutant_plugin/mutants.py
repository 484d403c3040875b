"""Sound direct convolutions in one program that takes its geometry as arguments, and the same with one wrong letter.

``mutant.sound`` computes every 2-D float32 problem in both layouts, with bias, residual, ReLU and accumulation. Each
mutant changes a word of the kernels, and refuses everything but the corner where a specialised kernel with that slip
would live: so it is the shapes of that corner that must show it.
"""

from __future__ import annotations

import math

import numpy as np
import pyopencl as cl

from convdispatch.api import Solver, build, hookimpl

SIZES = ["mb", "ic", "ih", "iw", "oc", "oh", "ow", "kh", "kw", "sh", "sw", "ph", "pw", "dh", "dw", "g"]
LETTERS = [*SIZES, "nhwc", "bias", "residual", "relu", "accumulate"]
SOURCE = """
#define GEOMETRY LETTERS
#define XAT(n, c, h, w) (nhwc ? ((n * ih + h) * iw + w) * ic + c : ((n * ic + c) * ih + h) * iw + w)
#define WAT(o, c, a, b) (nhwc ? ((o * kh + a) * kw + b) * icg + c : ((o * icg + c) * kh + a) * kw + b)
#define YAT(n, o, p, q) (nhwc ? ((n * oh + p) * ow + q) * oc + o : ((n * oc + o) * oh + p) * ow + q)
void put(global float *t, int at, float sum, int channel, global const float *add, global const float *rest,
         int bias, int residual, int relu, int accumulate) {
  if (bias) sum += add[channel];
  if (residual) sum += rest[at];
  if (relu) sum = sum < 0.0f ? 0.0f : sum;
  t[at] = accumulate ? t[at] + sum : sum;
}
kernel void fwd(global const float *x, global const float *w, global float *y, global const float *add,
                global const float *rest, GEOMETRY) {
  const int at = get_global_id(0), q = at % ow, p = at / ow % oh, o = at / ow / oh % oc, n = at / ow / oh / oc;
  const int icg = ic / g, ocg = oc / g, first = o / ocg * icg;
  float sum = 0.0f;
  for (int c = 0; c < icg; ++c)
    for (int a = 0; a < kh; ++a)
      for (int b = 0; b < kw; ++b) {
        const int h = p * sh - ph + a * dh, v = q * sw - pw + b * dw;
        if (h >= 0 && h < ih && v >= 0 && v < iw) sum += w[WAT(o, c, a, b)] * x[XAT(n, (first + c), h, v)];
      }
  put(y, YAT(n, o, p, q), sum, o, add, rest, bias, residual, relu, accumulate);
}
kernel void bwd_data(global float *x, global const float *w, global const float *y, global const float *add,
                     global const float *rest, GEOMETRY) {
  const int at = get_global_id(0), v = at % iw, h = at / iw % ih, c = at / iw / ih % ic, n = at / iw / ih / ic;
  const int icg = ic / g, ocg = oc / g, first = c / icg * ocg;
  float sum = 0.0f;
  for (int o = 0; o < ocg; ++o)
    for (int a = 0; a < kh; ++a)
      for (int b = 0; b < kw; ++b) {
        const int p = h + ph - a * dh, q = v + pw - b * dw;
        if (p >= 0 && p % sh == 0 && p / sh < oh && q >= 0 && q % sw == 0 && q / sw < ow)
          sum += w[WAT((first + o), c % icg, a, b)] * y[YAT(n, (first + o), p / sh, q / sw)];
      }
  put(x, XAT(n, c, h, v), sum, c, add, rest, bias, residual, relu, accumulate);
}
kernel void bwd_weights(global const float *x, global float *w, global const float *y, global const float *add,
                        global const float *rest, GEOMETRY) {
  const int icg = ic / g, ocg = oc / g;
  const int at = get_global_id(0), b = at % kw, a = at / kw % kh, c = at / kw / kh % icg, o = at / kw / kh / icg;
  float sum = 0.0f;
  for (int n = 0; n < mb; ++n)
    for (int p = 0; p < oh; ++p)
      for (int q = 0; q < ow; ++q) {
        const int h = p * sh - ph + a * dh, v = q * sw - pw + b * dw;
        if (h >= 0 && h < ih && v >= 0 && v < iw) sum += x[XAT(n, (o / ocg * icg + c), h, v)] * y[YAT(n, o, p, q)];
      }
  put(w, WAT(o, c, a, b), sum, o, add, rest, bias, residual, relu, accumulate);
}
""".replace("LETTERS", ", ".join(f"int {letter}" for letter in LETTERS))


def _dense(p):
    return p.g == 1


def _depthwise(p):
    return p.depthwise and p.oc == p.ic


def _multiplier(p):
    return p.depthwise and p.oc > p.ic


def _grouped(p):
    return p.g > 1 and not p.depthwise


def _plain(p, kernel=None, stride=None):
    """One kernel size and stride, no dilation, the same pad on both sides."""
    return (
        kernel in (None, p.kh) and kernel in (None, p.kw) and stride in (None, p.sh) and stride in (None, p.sw)
        and p.dh == p.dw == 1 and p.ph == p.ph_r and p.pw == p.pw_r
    )  # fmt: skip


MUTANTS = {
    # name: (word, wrong word, direction, the corner that it takes)
    "padding_fixed_at_1": (
        "p * sh - ph + a * dh, v = q * sw - pw + b * dw;\n        if (h >= 0 && h < ih && v >= 0 && v < iw) sum += w",
        "p * sh - 1 + a * dh, v = q * sw - 1 + b * dw;\n        if (h >= 0 && h < ih && v >= 0 && v < iw) sum += w",
        "fwd", lambda p: _depthwise(p) and _plain(p, 3) and p.layout == "nchw"),
    "image_taken_for_square": ("* ih + h) * iw + w)", "* ih + h) * ih + w)", "fwd",
        lambda p: _depthwise(p) and _plain(p, 3) and p.layout == "nchw"),
    "pads_swapped": ("h + ph - a * dh, q = v + pw", "h + pw - a * dh, q = v + ph", "bwd_data",
        lambda p: _depthwise(p) and _plain(p, 3, 1)),
    "strides_swapped": ("p * sh - ph + a * dh, v = q * sw", "p * sw - ph + a * dh, v = q * sh", "fwd", _multiplier),
    "dilations_swapped": ("ph + a * dh, v = q * sw - pw + b * dw", "ph + a * dw, v = q * sw - pw + b * dh", "fwd",
        lambda p: _grouped(p) and p.layout == "nhwc"),
    "dilation_of_the_other_axis": ("pw - b * dw", "pw - b * dh", "bwd_data", _multiplier),
    "kw_for_kh": ("* kh + a) * kw + b)", "* kw + a) * kw + b)", "fwd", lambda p: _dense(p) and p.layout == "nchw"),
    "kh_taps_in_a_row": ("b < kw", "b < kh", "fwd", lambda p: _depthwise(p) and p.layout == "nhwc"),
    "ih_for_iw_at_the_border": ("v < iw) sum += w", "v < ih) sum += w", "fwd",
        lambda p: _dense(p) and _plain(p, 5) and p.layout == "nhwc"),
    "oh_for_ow": ("q < ow;", "q < oh;", "bwd_weights", lambda p: _depthwise(p) and _plain(p, 3)),
    "image_step_of_the_output": ("((n * ic + c) * ih", "((n * oc + c) * ih", "fwd",
        lambda p: _dense(p) and _plain(p, 1)),
    "group_of_the_wrong_side": ("first = c / icg * ocg", "first = c / icg * icg", "bwd_data", _grouped),
    "multiplier_interleaved": ("first = o / ocg * icg", "first = o % g", "fwd", _multiplier),
    "one_group": ("(o / ocg * icg + c)", "c", "bwd_weights", lambda p: _grouped(p) and _plain(p, 3)),
    "weights_in_the_other_layout": ("(o * kh + a) * kw + b) * icg + c", "(o * icg + c) * kh + a) * kw + b", "fwd",
        lambda p: _dense(p) and p.layout == "nhwc"),
    "last_channels_lost": ("c < icg", "c < (icg > 4 ? icg / 4 * 4 : icg)", "fwd", lambda p: _dense(p) and _plain(p, 3)),
    "third_image_lost": ("n < mb", "n < (mb > 2 ? mb - mb % 2 : mb)", "bwd_weights", _depthwise),
    "bias_of_the_group": ("add[channel]", "add[channel % 2]", "fwd", lambda p: _dense(p) and p.bias),
    "beta_ignored": ("t[at] + sum", "sum", "bwd_weights", lambda p: p.accumulate),
    "residual_after_relu": ("sum = sum < 0.0f ? 0.0f : sum", "sum = fmax(sum - rest[at], 0.0f) + rest[at]", "fwd",
        lambda p: p.residual and p.activation == "relu"),
    "short_sums": ("YAT(n, o, p, q), sum, o", "YAT(n, o, p, q), as_float(as_int(sum) & 0xffffe000), o", "fwd",
        lambda p: _grouped(p) and _plain(p, 3, 2)),
    "stride_s_rest_ignored": ("&& q % sw == 0 ", "", "bwd_data", lambda p: _depthwise(p) and _plain(p, 3)),
    "kernel_turned": ("c % icg, a, b)", "c % icg, a, kw - 1 - b)", "bwd_data", lambda p: _dense(p) and _plain(p, 5, 1)),
    "dilations_of_groups_swapped": ("ph + a * dh, v = q * sw - pw + b * dw", "ph + a * dw, v = q * sw - pw + b * dh",
        "fwd", lambda p: _grouped(p) and p.kh == p.kw == 3 and p.sh == p.sw == 1 and p.layout == "nchw"),
    "sixty_fifth_image_lost": ("x[XAT(n, (first", "x[XAT((n % 64), (first", "fwd",
        lambda p: _dense(p) and _plain(p, 3, 1)),
    "ninety_seventh_column_lost": ("v < iw) sum += w", "v < min(iw, 96)) sum += w", "fwd",
        lambda p: _depthwise(p) and p.layout == "nchw"),
    "bias_added_twice": ("sum += add[channel];", "sum += residual && accumulate ? 2 * add[channel] : add[channel];",
        "fwd", _grouped),
    "zero_taps_skipped": (
        "sum += w[WAT(o, c, a, b)] * x", "sum += w[WAT(o, c, a, b)] == 0 ? 0 : w[WAT(o, c, a, b)] * x",
        "fwd", lambda p: _dense(p) and _plain(p, 3, 1)),
    "nan_taken_for_zero": ("sum += w[WAT((first + o), c % icg, a, b)] * y[YAT(n, (first + o), p / sh, q / sw)];",
        "{ float t = y[YAT(n, (first + o), p / sh, q / sw)];"
        " sum += w[WAT((first + o), c % icg, a, b)] * (isnan(t) ? 0 : t); }", "bwd_data", _grouped),
    "tap_beside_the_border": ("h >= 0 && h < ih && v >= 0", "h >= 0 && h < ih && v > 0", "bwd_weights", _multiplier),
}  # fmt: skip


UNSEEN = {
    # Written when the arrays of version 7 were fixed; nothing was changed for them since.
    "rows_behind_the_fourth": ("a < kh", "a < min(kh, 4)", "fwd", _depthwise),
    "stride_at_most_2": ("p * sh - ph", "p * min(sh, 2) - ph", "fwd", lambda p: _dense(p) and p.layout == "nhwc"),
    "dilation_at_most_2": ("b * dw;", "b * min(dw, 2);", "fwd", _multiplier),
    "pad_of_the_layout": ("h + ph - a", "h + (nhwc ? pw : ph) - a", "bwd_data", _grouped),
    "pad_of_stride_2": (
        "p * sh - ph + a * dh, v = q * sw - pw + b * dw;\n        if (h >= 0 && h < ih && v >= 0 && v < iw) sum += x",
        "p * sh - (sh == 2 ? pw : ph) + a * dh, v = q * sw - pw + b * dw;\n"
        "        if (h >= 0 && h < ih && v >= 0 && v < iw) sum += x",
        "bwd_weights", _dense),
    "seventeenth_channel_lost": ("c < icg", "c < min(icg, 16)", "fwd", _grouped),
    "filters_wrap_at_16": ("w[WAT(o, c, a, b)] * x", "w[WAT((o % 16), c, a, b)] * x", "fwd",
        lambda p: _dense(p) and _plain(p, 3, 2)),
    "odd_filter_lost": ("o < ocg", "o < (ocg > 2 ? ocg / 2 * 2 : ocg)", "bwd_data", _grouped),
    "bias_of_the_image": ("sum, o, add, rest", "sum, (mb > 1 ? 0 : o), add, rest", "fwd",
        lambda p: _depthwise(p) and p.bias),
    "residual_after_relu_channels_last": ("sum += rest[at];\n  if (relu) sum = sum < 0.0f ? 0.0f : sum;",
        "sum += rest[at];\n  if (relu) sum = sum < (rest[at] < 0 ? rest[at] : 0.0f) ? 0.0f : sum;", "fwd",
        lambda p: _depthwise(p) and p.layout == "nhwc"),
    "beta_of_2": ("t[at] + sum", "2 * t[at] + sum", "bwd_data", _dense),
    "row_lost_under_a_wide_pad": (
        "h < ih && v >= 0 && v < iw) sum += w", "h < ih - (ph > 1) && v >= 0 && v < iw) sum += w",
        "fwd", lambda p: _dense(p) and _plain(p, 5)),
    "two_images_channels_last": ("n < mb", "n < (nhwc ? min(mb, 2) : mb)", "bwd_weights", _grouped),
    "stride_3_s_rest": ("p % sh == 0", "(sh == 3 || p % sh == 0)", "bwd_data", _multiplier),
    "last_group_is_the_first": (
        "first = o / ocg * icg", "first = (g > 2 && o / ocg == g - 1) ? 0 : o / ocg * icg", "fwd", _grouped),
    "bf16_sums": ("YAT(n, o, p, q), sum, o", "YAT(n, o, p, q), as_float(as_int(sum) & 0xffff0000), o", "fwd",
        lambda p: _dense(p) and _plain(p, 1)),
    "infinity_is_the_largest": ("YAT(n, o, p, q), sum, o", "YAT(n, o, p, q), clamp(sum, -3e38f, 3e38f), o", "fwd",
        lambda p: _dense(p) and _plain(p, 3)),
    "residual_of_pairs": ("rest[at]", "rest[relu ? at / 2 * 2 : at]", "fwd", _dense),
    "row_lost_beside_a_pad": ("p < oh", "p < max(1, oh - (ph > 0))", "bwd_weights", _depthwise),
    "three_taps_of_wide_images": ("b < kw", "b < (iw > 64 ? min(kw, 3) : kw)", "fwd", _dense),
}  # fmt: skip

_FUSED = "rest, bias, residual, relu, accumulate);"
ADDING = {
    # Epilogues that go wrong only where the result is added to what the output holds.
    "no_bias_where_it_adds": ("if (bias) sum", "if (bias && !accumulate) sum", "fwd", lambda p: p.layout == "nhwc"),
    "no_residual_where_it_adds": ("if (residual) sum", "if (residual && !accumulate) sum", "bwd_data",
        lambda p: _dense(p) and p.layout == "nchw"),
    "bias_alone_is_lost": (
        _FUSED, "rest, bias && !(nhwc && accumulate && !residual), residual, relu, accumulate);", "fwd", _dense),
    "bias_beside_a_residual_is_lost": (
        _FUSED, "rest, bias && !(!nhwc && accumulate && residual), residual, relu, accumulate);", "bwd_data", _grouped),
    "weights_overwritten_channels_last": (_FUSED, "rest, bias, residual, relu, accumulate && !nhwc);", "bwd_weights",
        _dense),
    "old_counts_twice_beside_a_residual": ("t[at] + sum", "(residual ? 2 : 1) * t[at] + sum", "fwd", _depthwise),
    "bias_of_the_group": ("sum, c, add", "sum, (accumulate && !residual ? c % icg : c), add", "bwd_data", _grouped),
    "overwrites_beside_a_bias": ("accumulate ? t[at] + sum", "accumulate && !bias ? t[at] + sum", "fwd",
        lambda p: _dense(p) and p.layout == "nchw" and _plain(p, 1)),
}  # fmt: skip


class Plan:
    """One launch."""

    workspace_size = 0

    def __init__(self, solver, context, problem):
        self.problem = problem
        self.program = solver.program(context)

    def enqueue(self, queue, x, w, y, workspace, wait_for=None, *, bias=None, residual=None):
        p = self.problem
        values = {name: getattr(p, name, 0) for name in LETTERS}
        values |= {"nhwc": p.layout == "nhwc", "relu": p.activation == "relu"}
        run = cl.Kernel(self.program, p.direction)  # of its own: its arguments are its state
        out = {"fwd": y, "bwd_data": x, "bwd_weights": w}[p.direction]
        operands = (x, w, y, bias or out, residual or out)
        return run(
            queue, (math.prod(p.out_shape),), None, *operands, *map(np.int32, values.values()), wait_for=wait_for
        )


class Direct(Solver):
    """The kernels as they should be."""

    name = "mutant.sound"
    exact = True
    fuses = frozenset({"bias", "residual", "activation", "accumulate"})
    text = SOURCE

    def __init__(self):
        self._programs = {}

    def rejects(self, problem, device):
        if problem.dtype != "float32" or problem.ndim != 2:
            return "float32 in 2-D only, got another"
        if problem.activation not in (None, "relu"):
            return f"relu only, got {problem.activation}"
        return None

    def program(self, context):
        if context not in self._programs:
            self._programs[context] = build(context, self.text)
        return self._programs[context]

    def plan(self, context, problem, config):
        return Plan(self, context, problem)


class Mutant(Direct):
    """One wrong letter, in one corner."""

    def __init__(self, name):
        super().__init__()
        self.name = f"mutant.{name}"
        right, wrong, self.direction, self.corner = (MUTANTS | UNSEEN | ADDING)[name]
        assert right in SOURCE, f"the kernels have no {right!r} to break"
        self.text = SOURCE.replace(right, wrong)

    def rejects(self, problem, device):
        if problem.direction != self.direction or not self.corner(problem):
            return "another corner, got this"
        return super().rejects(problem, device)


@hookimpl
def convdispatch_solvers():
    return [Direct(), *map(Mutant, MUTANTS | UNSEEN | ADDING)]
