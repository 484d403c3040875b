"""The framework's kernels in families, each a function of a width: what the device gave and what is right.

A family's options are its kernels' forms: layouts, dtypes, windows, axes. ``run`` computes one.
"""

from __future__ import annotations

import itertools
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


def forms(**choices: Any) -> list[dict[str, Any]]:
    """Every combination of a word's choices; a choice of the word ``also`` is several words at once."""
    found = [dict(zip(choices, values, strict=True)) for values in itertools.product(*choices.values())]
    return [form.pop("also", {}) | form for form in found]


def windows(kind: str, dtypes: tuple[str, ...], also: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """A pooling's; of dtypes but float32 those of stride 1."""
    every = forms(kind=(kind,), layout=LAYOUTS, dtype=dtypes, also=also)
    return [form for form in every if form["dtype"] == "float32" or form["stride"] == 1]


LAYOUTS, FEW, SINGLE = ("nchw", "nhwc"), ("float32", "float16"), ("float32",)
_GATED = [{"kernel": 3, "stride": 1, "padding": 1}, {"kernel": 2, "stride": 1, "padding": 0},
          {"kernel": 3, "stride": 2, "padding": 1}]  # fmt: skip
_LRN = [{"size": 5, "beta": 0.75}, {"size": 4, "beta": 0.5}, {"size": 3, "beta": 0.6}]
_NORM = [{"relu": False, "plus": False}, {"relu": True, "plus": False}, {"relu": True, "plus": True}]
ACROSS = ("channels", "pixels")
FAMILIES: dict[str, tuple[Callable[..., Found], list[dict[str, Any]]]] = {
    "max_pool": (images.pooling, windows("max", ("float32", "float64", "float16"), _MAX)),
    "avg_pool": (images.pooling, windows("avg", ("float32", "float64"), _MEAN)),
    "adaptive_pool": (images.pooling, forms(kind=("avg",), layout=LAYOUTS, dtype=SINGLE, also=_SIZES)),
    "relu_max_pool": (images.gated_pooling, forms(layout=LAYOUTS, also=_GATED)),
    "lrn": (images.lrn, forms(layout=LAYOUTS, also=_LRN, dtype=SINGLE, across=ACROSS)),
    "batch_norm": (images.batch_norm, forms(layout=LAYOUTS, also=_NORM, across=ACROSS)),
    "softmax": (elements.softmax, forms(dtype=("float32", "float64"), axis=(-1, 1))),
    "cross_entropy": (elements.cross_entropy, forms(dtype=("float32", "float64"), reduction=("mean", "none"))),
    "reduction": (
        elements.reduction,
        forms(operation=("sum",), shape=_SHAPES, dtype=FEW)
        + forms(operation=("max", "min", "mean"), shape=_SHAPES, dtype=SINGLE),
    ),
    "formula": (
        elements.formula,
        forms(shapes=("w w", "3xw w", "3xw 3x1", "wx3 3", "2x5xw 5x1", "wx2x3 2x1"), dtype=(*FEW, "float64")),
    ),
    "activation": (elements.activation, forms(name=ACTIVATIONS, dtype=FEW)),
    "views": (elements.views, forms(dtype=("float32", "float64", "float16", "int8"))),
    "joining": (elements.joining, forms(axis=(1, 2), dtype=FEW)),
    "linear": (elements.linear, forms(across=("rows", "inner", "outer"))),
    "optimiser": (elements.optimiser, forms(kind=("sgd", "adam"))),
    "look": (elements.look, forms(itemsize=(2, 4, 8))),
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
