"""``implicitgemm.pointwise``: 1x1, stride 1, unpadded: one matrix product of the tensors themselves."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from typing import Any

from convdispatch.api import (
    Axis,
    ConvProblem,
    DeviceInfo,
    Epilogue,
    GemmPlan,
    GemmSpec,
    Matrix,
    Product,
    Solver,
    StepPlan,
    gemm_configs,
    gemm_cost,
    gemm_workspace,
    rates,
)
from convdispatch.api.cpu import Balance

FOLDED_PIXELS = 32
"""NCHW images with fewer pixels are folded into one product, because short rows leave vectors half empty. Folded
columns are packed at every call."""
HEAVY_FOLDED_PIXELS = range(128, 256)
"""Images with so many pixels are folded too if weights of more than ``HEAVY_BYTES`` would be read again per image."""
HEAVY_BYTES = 3 << 19
WORSE_FORM_FACTOR = 1.07
"""Measured over predicted time of the form (folded or not) that is expected to be slower: 0.98 to 1.36 on 18 layers of
36 to 225 pixels and four images."""
_LONGEST_SIDE = 1 << 31
"""Each side of a product, and the number of products in a batch, stay below this limit."""


def _has_two_forms(problem: ConvProblem) -> bool:
    """Whether there is a choice between folding the images into one product and one product per image."""
    return problem.layout == "nchw" and problem.mb > 1 and problem.direction != "bwd_weights"


def _folds(problem: ConvProblem) -> bool:
    """Whether folding images into one product is expected to be faster."""
    pixels, weights = problem.id * problem.ih * problem.iw, problem.oc * problem.ic // problem.g
    exceeds_cache = weights * problem.accumulator_size > HEAVY_BYTES
    return pixels < FOLDED_PIXELS or (exceeds_cache and pixels in HEAVY_FOLDED_PIXELS)


def _forms(problem: ConvProblem) -> list[bool]:
    """The forms, True if images are folded, the expected best first; none whose product has too long a side."""
    pixels, folds = problem.id * problem.ih * problem.iw, _folds(problem)
    sides = {True: pixels * problem.mb, False: max(pixels, problem.g * problem.mb)}
    forms = [folds, not folds] if _has_two_forms(problem) else [True]
    if max(sides.values()) >= _LONGEST_SIDE and problem.direction != "bwd_weights":
        forms = [True, False]
    return [fold for fold in forms if sides[fold] < _LONGEST_SIDE]


def _spec(problem: ConvProblem, fold: bool) -> GemmSpec:
    """The product of a direction. ``fold``: columns are (image, pixel); otherwise there is one product per image."""
    g, mb, pixels = problem.g, problem.mb, problem.id * problem.ih * problem.iw
    icg, ocg = problem.ic // g, problem.oc // g
    nhwc = problem.layout == "nhwc"
    images = 1 if fold else mb

    def batch(group: int, image: int) -> Axis:
        """Return the batch axis whose index counts (image, group)."""
        return Axis(group, inner=g, outer=image) if images > 1 else Axis(group)

    def tensor(channels: int) -> Matrix:
        group_channels = channels // g
        if nhwc:
            return Matrix(Axis(1), Axis(channels), batch(group_channels, pixels * channels))
        columns = Axis(1, pixels, channels * pixels) if fold and mb > 1 else Axis(1)
        return Matrix(Axis(pixels), columns, batch(group_channels * pixels, channels * pixels))

    x, y, w = tensor(problem.ic), tensor(problem.oc), Matrix(Axis(icg), Axis(1), batch(ocg * icg, 0))
    columns = pixels * (mb if fold else 1)
    if problem.direction == "bwd_weights":
        sizes, operands, rows = (ocg, icg, columns), (y, x.transposed, w), ocg
    elif problem.direction == "fwd":
        sizes, operands, rows = (ocg, columns, icg), (w, x, y), ocg
    else:
        sizes, operands, rows = (icg, columns, ocg), (w.transposed, y, x), icg
    epilogue = Epilogue.of(problem, batch(rows, 0))
    return GemmSpec(*sizes, g * images, problem.dtype, *operands, epilogue=epilogue, a_packed=problem.constant_weights)


class Pointwise(Solver):
    """1x1 convolutions of stride 1 without padding, all directions, on a CPU."""

    def rejects(self, problem: ConvProblem, device: DeviceInfo) -> str | None:
        kernel = (problem.kd, problem.kh, problem.kw)
        if kernel != (1, 1, 1):
            return "1x1 only, got " + "x".join(map(str, kernel[3 - problem.ndim :]))
        same_size = (problem.od, problem.oh, problem.ow) == (problem.id, problem.ih, problem.iw)
        if not same_size or any(getattr(problem, "s" + a) > 1 and getattr(problem, "i" + a) > 1 for a in problem.axes):
            # Sizes may be equal in spite of a stride, because wide padding may make up for the stride.
            return "stride 1 and no padding only"
        if any(getattr(problem, "p" + axis) for axis in problem.axes):
            return "no padding only"
        if problem.mb < 1:
            return f"1 image or more, got {problem.mb}"
        if not _forms(problem):
            return f"a product of less than 2**31 places, got {problem.mb} x {problem.id * problem.ih * problem.iw}"
        return None

    def configs(self, problem: ConvProblem, device: DeviceInfo) -> Iterator[Mapping[str, Any]]:
        """The product's own configurations, with NCHW's images folded and not."""
        for fold in _forms(problem):
            spec = _spec(problem, fold)
            rated = functools.partial(gemm_cost, spec, balance=Balance.of(rates(device)))
            for gemm in sorted(gemm_configs(spec, device), key=rated):
                yield {"fold": fold, "gemm": gemm}

    def workspace(self, problem: ConvProblem, device: DeviceInfo, config: Mapping[str, Any]) -> int:
        return gemm_workspace(_spec(problem, config["fold"]), config["gemm"])

    def cost(self, problem: ConvProblem, device: DeviceInfo, config: Mapping[str, Any]) -> float:
        is_worse_form, peaks = _has_two_forms(problem) and config["fold"] != _folds(problem), rates(device)
        cost = gemm_cost(_spec(problem, config["fold"]), config["gemm"], Balance.of(peaks))
        return (WORSE_FORM_FACTOR if is_worse_form else 1.0) * cost / peaks.flops

    def plan(self, context: Any, problem: ConvProblem, config: Mapping[str, Any]) -> StepPlan:
        product = GemmPlan(context, _spec(problem, config["fold"]), config["gemm"])
        key = [self.name, problem.dtype, problem.direction, problem.w_shape, problem.g, dict(config)]
        operands = {"fwd": "wxy", "bwd_data": "wyx", "bwd_weights": "yxw"}[problem.direction]
        packers = [product.packing()] if problem.constant_weights else []
        steps, once, packed = [Product(product, *operands)], problem.constant_weights, product.packed_a_size
        return StepPlan.packing(once, product.workspace_size, packers, steps, packed, key)
