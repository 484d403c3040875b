"""The framework's kernels in families, each a function of a width: what the device gave and what is right.

A family's options are its kernels' forms: layouts, dtypes, windows, axes. ``run`` computes one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from convdispatch.api.activations import ACTIVATIONS

from . import elements, images
from .bench import Bench, Found

TOLERANCE = {"float16": 4e-3, "bfloat16": 3e-2, "float32": 2e-5, "float64": 1e-12}
"""Relative to the largest value; those of more than one operation included."""

_MAX = [
    {"kernel": 3, "stride": 1, "padding": 1},
    {"kernel": 3, "stride": 2, "padding": 0, "ceil_mode": True},
    {"kernel": 2, "stride": 2, "padding": 0},
    {"kernel": 3, "stride": 2, "padding": 1},
    {"kernel": 5, "stride": 1, "padding": 2},
    {"kernel": 3, "stride": 1, "padding": 1, "dilation": 2},
    {"kernel": 2, "stride": 3, "padding": 1},
]
_MEAN = [
    {"kernel": 3, "stride": 1, "padding": 1},
    {"kernel": 3, "stride": 1, "padding": 1, "count_include_pad": False},
    {"kernel": 2, "stride": 2, "padding": 0, "ceil_mode": True},
    {"kernel": 5, "stride": 2, "padding": 2},
]
_SIZES = [{"size": (3, 5)}, {"size": (1, 7)}]
_SHAPES = ["-w", "4 -w", "-4 w", "3 w -5", "-3 w -5", "-2 3 -w", "2 -3 w"]
FAMILIES: dict[str, tuple[Callable[..., Found], list[dict[str, Any]]]] = {
    "max_pool": (
        images.pooling,
        [
            {"kind": "max", "layout": layout, "dtype": dtype, **window}
            for layout in ("nchw", "nhwc")
            for dtype in ("float32", "float64", "float16")
            for window in _MAX
            if dtype == "float32" or window["stride"] == 1
        ],
    ),
    "avg_pool": (
        images.pooling,
        [
            {"kind": "avg", "layout": layout, "dtype": dtype, **window}
            for layout in ("nchw", "nhwc")
            for dtype in ("float32", "float64")
            for window in _MEAN
            if dtype == "float32" or window["stride"] == 1
        ],
    ),
    "adaptive_pool": (
        images.pooling,
        [
            {"kind": kind, "layout": layout, "dtype": "float32", **size}
            for kind in ("max", "avg")
            for layout in ("nchw", "nhwc")
            for size in _SIZES
        ],
    ),
    "relu_max_pool": (
        images.gated_pooling,
        [
            {"layout": layout, "kernel": k, "stride": s, "padding": p}
            for layout in ("nchw", "nhwc")
            for k, s, p in ((3, 1, 1), (2, 1, 0), (3, 2, 1))
        ],
    ),
    "lrn": (
        images.lrn,
        [
            {"layout": layout, "size": size, "beta": beta, "dtype": "float32", "across": across}
            for layout in ("nchw", "nhwc")
            for size, beta in ((5, 0.75), (4, 0.5), (3, 0.6))
            for across in ("channels", "pixels")
        ],
    ),
    "batch_norm": (
        images.batch_norm,
        [
            {"layout": layout, "relu": relu, "plus": plus, "across": across}
            for layout in ("nchw", "nhwc")
            for relu, plus in ((False, False), (True, False), (True, True))
            for across in ("channels", "pixels")
        ],
    ),
    "softmax": (elements.softmax, [{"dtype": d, "axis": axis} for d in ("float32", "float64") for axis in (-1, 1)]),
    "cross_entropy": (
        elements.cross_entropy,
        [{"dtype": d, "reduction": r} for d in ("float32", "float64") for r in ("mean", "none")],
    ),
    "reduction": (
        elements.reduction,
        [{"operation": "sum", "shape": shape, "dtype": d} for shape in _SHAPES for d in ("float32", "float16")]
        + [{"operation": o, "shape": shape, "dtype": "float32"} for o in ("max", "min", "mean") for shape in _SHAPES],
    ),
    "formula": (
        elements.formula,
        [
            {"shapes": shapes, "dtype": dtype}
            for shapes in ("w w", "3xw w", "3xw 3x1", "wx3 3", "2x5xw 5x1", "wx2x3 2x1")
            for dtype in ("float32", "float16", "float64")
        ],
    ),
    "activation": (
        elements.activation,
        [{"name": name, "dtype": d} for name in ACTIVATIONS for d in ("float32", "float16")],
    ),
    "views": (elements.views, [{"dtype": d} for d in ("float32", "float64", "float16", "int8")]),
    "joining": (elements.joining, [{"axis": axis, "dtype": d} for axis in (1, 2) for d in ("float32", "float16")]),
    "random": (elements.random, [{"kind": kind} for kind in ("uniform", "normal")]),
    "dropout": (elements.dropout, [{"dtype": d} for d in ("float32", "float16")]),
    "linear": (elements.linear, [{"across": across} for across in ("rows", "inner", "outer")]),
    "optimiser": (elements.optimiser, [{"kind": kind} for kind in ("sgd", "adam")]),
    "look": (elements.look, [{"itemsize": size} for size in (2, 4, 8)]),
}
"""Name to what computes it and the forms there are."""


def run(queue: Any, family: str, options: dict[str, Any], width: int) -> Iterator[str]:
    """Compute one form at one width; a sentence for each result that is wrong."""
    function, _ = FAMILIES[family]
    bench = Bench(queue, width)
    limit = TOLERANCE[options.get("dtype", "float32")] if options.get("dtype") != "int8" else 0.0
    for what, got, expected in function(bench, width, **options):
        got, expected = np.asarray(got, np.float64), np.asarray(expected, np.float64)
        if got.shape != expected.shape:
            yield f"{what} has shape {got.shape}, not {expected.shape}"
            continue
        room = limit * max(1.0, float(np.abs(expected).max(initial=0)))
        wrong = ~(np.abs(got - expected) <= room)
        if wrong.any():
            at = tuple(int(i) for i in np.argwhere(wrong)[0])
            first = f"the first at {at}: {got[at]:.6g}, not {expected[at]:.6g}"
            yield f"{what}: {int(wrong.sum())} of {wrong.size} values are wrong, {first}"
