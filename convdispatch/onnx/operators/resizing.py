"""Resize and Upsample: each axis' places and weights by ONNX's formulas, on the host; one kernel for all axes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from ...elementwise import apply, sample
from ...elementwise.tensor import Tensor
from ..call import BoundNode, operator

_COORDINATES = (
    "half_pixel",
    "half_pixel_symmetric",
    "pytorch_half_pixel",
    "align_corners",
    "asymmetric",
    "tf_half_pixel_for_nn",
    "tf_crop_and_resize",
)
_NEAREST = ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")
_LONGEST = 1 << 24
"""The most elements along a resized axis, because the host computes a table of all of them."""


@operator("Upsample")
def _upsample(call: BoundNode) -> Tensor:
    x = call.tensor(0)
    scales = [float(s) for s in (call.known(1).reshape(-1) if call.has(1) else call.get("scales"))]
    sizes = [_scaled(call, n, s) for n, s in zip(x.shape, scales, strict=True)]
    mode = call.get("mode", "nearest")
    return _resized(call, x, dict(enumerate(sizes)), dict(enumerate(scales)), _How(mode, "asymmetric", "floor"))


@operator("Resize")
def _resize(call: BoundNode) -> Tensor:
    x, old = call.tensor(0), call.opset < 11
    axes = [a % x.ndim for a in call.get("axes", range(x.ndim))]
    mode, nearest = call.get("mode", "nearest"), call.word("nearest_mode", _NEAREST)
    how = call.word("coordinate_transformation_mode", _COORDINATES)
    if old:
        how, nearest = "asymmetric", "floor"
    index = 1 if old else 2
    scales = call.known(index).reshape(-1).tolist() if call.has(index) and call.shape(index)[0] else None
    if scales is not None:
        factors = dict(zip(axes, scales, strict=True))
        sizes = {a: _scaled(call, x.shape[a], s) for a, s in factors.items()}
    else:
        sizes = dict(zip(axes, call.ints(3), strict=True))
        factors = {a: n / x.shape[a] for a, n in sizes.items()}
        policy = call.word("keep_aspect_ratio_policy", ("stretch", "not_larger", "not_smaller"))
        if policy != "stretch":
            factor = (min if policy == "not_larger" else max)(factors.values())
            factors = dict.fromkeys(axes, factor)
            sizes = {a: math.floor(factor * x.shape[a] + 0.5) for a in axes}
    region = call.known(1).reshape(2, -1) if how == "tf_crop_and_resize" else None
    regions = {} if region is None else {a: (float(region[0, i]), float(region[1, i])) for i, a in enumerate(axes)}
    return _resized(call, x, sizes, factors, _How(mode, how, nearest, regions))


class _How(NamedTuple):
    """Interpolation, coordinates, rounding, and the part of each axis that is cut out."""

    mode: str
    coordinates: str
    nearest: str
    regions: Mapping[int, tuple[float, float]] = MappingProxyType({})


def _scaled(call: BoundNode, size: int, scale: float) -> int:
    """The size that a scale gives. Raises Unsupported for a scale that is none."""
    if not 0 < scale < math.inf:
        raise call.refuse(f"a scale is a number above 0, got {scale}")
    return math.floor(min(size * scale, 2.0**62))


def _resized(call: BoundNode, x: Tensor, sizes: dict[int, int], factors: dict[int, float], how: _How) -> Tensor:
    tables, narrow, mode = {}, x.dtype.kind in "iu", how.mode
    if any(not 0 <= size <= _LONGEST for size in sizes.values()):
        raise call.refuse(f"an axis has 0 to {_LONGEST} places, got {list(sizes.values())}")
    for axis, size in sizes.items():
        n = x.shape[axis]
        same = size == n and factors[axis] == 1
        cropped, region = how.coordinates == "tf_crop_and_resize", how.regions.get(axis, (0.0, 1.0))
        if same and (not cropped or region == (0, 1)):
            continue
        coordinates = _coordinates(how.coordinates, size, n, factors[axis], region)
        outside = (coordinates < 0) | (coordinates > n - 1) if cropped else np.zeros(size, bool)
        if mode == "nearest":
            taps, weights = _nearest(coordinates, how.nearest, n)[:, None], None
        elif mode in ("linear", "bilinear", "trilinear", "cubic"):
            shrink = min(1.0, factors[axis]) if call.get("antialias", 0) else 1.0
            a = call.get("cubic_coeff_a", -0.75) if mode == "cubic" else None
            taps, weights = _taps(coordinates, n, a, shrink, bool(call.get("exclude_outside", 0)))
        else:
            raise call.refuse(f"the mode {mode!r} is not here")
        tables[axis] = (np.where(outside[:, None], -1, taps), weights)
    if not tables:
        return x
    weighted = any(weights is not None for _, weights in tables.values())
    floating = x.astype(np.float32) if narrow and weighted else x
    y = sample(floating, tables, float(call.get("extrapolation_value", 0.0)))
    return apply("round(y)", y=y, dtype=x.dtype) if narrow and weighted else y  # type: ignore[no-any-return]


def _coordinates(how: str, size: int, n: int, scale: float, region: tuple[float, float]) -> np.ndarray:
    """Return the coordinate in the input of n elements for each of ``size`` output elements."""
    positions = np.arange(size, dtype=np.float64)
    if how == "half_pixel":
        return (positions + 0.5) / scale - 0.5
    if how == "half_pixel_symmetric":
        adjustment = size / (scale * n)
        return n / 2 * (1 - adjustment) + (positions + 0.5) / scale - 0.5
    if how == "pytorch_half_pixel":
        return (positions + 0.5) / scale - 0.5 if size > 1 else np.zeros(size)
    exact = scale * n  # The exact size is the output size before it was rounded to a whole number.
    if how == "align_corners":
        return positions * (n - 1) / (exact - 1) if exact != 1 else np.zeros(size)
    if how == "tf_half_pixel_for_nn":
        return (positions + 0.5) / scale
    if how == "tf_crop_and_resize":
        start, end = region
        if size > 1:
            return start * (n - 1) + positions * (end - start) * (n - 1) / (exact - 1)
        return np.full(size, 0.5 * (start + end) * (n - 1))
    return positions / scale


def _nearest(coordinates: np.ndarray, mode: str, n: int) -> np.ndarray:
    rounded = {
        "round_prefer_floor": lambda: np.ceil(coordinates - 0.5),
        "round_prefer_ceil": lambda: np.floor(coordinates + 0.5),
        "floor": lambda: np.floor(coordinates),
        "ceil": lambda: np.ceil(coordinates),
    }[mode]()
    return np.clip(rounded, 0, n - 1).astype(np.int64)


def _kernel(distance: np.ndarray, a: float | None) -> np.ndarray:
    """The weight at a distance: a triangle, or the cubic with coefficient ``a``."""
    d = np.abs(distance)
    if a is None:
        return np.maximum(0, 1 - d)
    inner_weight = (a + 2) * d**3 - (a + 3) * d**2 + 1
    outer_weight = a * d**3 - 5 * a * d**2 + 8 * a * d - 4 * a
    return np.where(d <= 1, inner_weight, np.where(d < 2, outer_weight, 0))


def _taps(
    coordinates: np.ndarray, n: int, a: float | None, shrink: float, exclude: bool
) -> tuple[np.ndarray, np.ndarray]:
    """Places and weights around each coordinate; with ``shrink`` below 1 the weights reach as much farther."""
    reach = (1 if a is None else 2) / shrink
    count = 2 * math.ceil(reach) + (shrink < 1)
    first_tap = np.floor(coordinates - reach) + 1 if shrink < 1 else np.floor(coordinates) - (count // 2 - 1)
    taps = first_tap[:, None] + np.arange(count)
    weights = _kernel((taps - coordinates[:, None]) * shrink, a)
    if exclude:
        weights = np.where((taps < 0) | (taps >= n), 0, weights)
    if exclude or shrink < 1:
        weights = weights / weights.sum(1, keepdims=True)
    return np.clip(taps, 0, n - 1).astype(np.int64), weights
