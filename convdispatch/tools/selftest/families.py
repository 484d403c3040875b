"""The framework's kernels in families, each a function of a width: what the device gave and what is right.

A family's options are its kernels' forms: layouts, dtypes, windows, axes. ``run`` computes one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from ...elementwise import Generator, apply, concatenate, fill, reduce
from ...measurement.search.look import PATTERN, Look
from ...nn import functional
from ...nn.activations import FORMULAS
from ...nn.optim import SGD, Adam
from ...tape import Tape
from ...tensor import Parameter, Tensor
from ...train.batches import Batches
from . import oracle

__all__ = ["FAMILIES", "TOLERANCE", "run"]

TOLERANCE = {"float16": 4e-3, "bfloat16": 3e-2, "float32": 2e-5, "float64": 1e-12}
"""Relative to the largest value; those of more than one operation included."""
Found = Iterator[tuple[str, np.ndarray, np.ndarray]]
"""What it is, what the device gave, what is right."""


class _Bench:
    """Random values on one queue, and how layouts and gradients are taken."""

    def __init__(self, queue: Any, seed: int) -> None:
        self.queue, self.rng = queue, np.random.default_rng(seed)

    def draw(self, *shape: int, dtype: Any = np.float32) -> np.ndarray:
        """Normal numbers, rounded to the dtype."""
        return self.rng.standard_normal(shape).astype(dtype)

    def put(self, array: np.ndarray, layout: str = "nchw") -> Tensor:
        """A tensor, an array of images turned to the layout."""
        return Tensor.from_numpy(np.ascontiguousarray(turned(array, layout)), self.queue)

    def gradients(
        self, of: Callable[..., Tensor], inputs: list[Tensor], dy: Callable[[tuple[int, ...]], Tensor]
    ) -> Any:
        """The result of ``of(*inputs)`` and the gradients of its inputs, for ``dy`` made of the result's shape."""
        with Tape() as tape:
            for tensor in inputs:
                tape.watch(tensor)
            y = of(*inputs)
            given = dy(y.shape)
        return y, tape.backward(y, given, keep=inputs)


def turned(array: np.ndarray, layout: str) -> np.ndarray:
    """Images ``[mb, c, h, w]`` as the layout has them."""
    return np.moveaxis(array, 1, -1) if layout == "nhwc" else array


# --- windows and channels -------------------------------------------------------------------------------------------


def _pooling(bench: _Bench, width: int, kind: str, layout: str, dtype: str, **window: Any) -> Found:
    """``window``: what functional's pooling takes, or ``size`` for an adaptive one."""
    height = max(5, width % 9 + 3)
    x = bench.draw(2, 3, height, width, dtype=dtype)
    if "size" in window:
        found = oracle.adaptive_windows((height, width), window["size"])
        operation = getattr(functional, f"adaptive_{kind}_pool")
    else:
        pairs = {name: (n, n) for name, n in window.items() if name in ("kernel", "stride", "padding", "dilation")}
        fits = width + 2 * window["padding"] > window.get("dilation", 1) * (window["kernel"] - 1)
        if not fits:
            return
        rest = {new: window[old] for old, new in (("ceil_mode", "ceil_mode"), ("count_include_pad", "count_pad"))
                if old in window}  # fmt: skip
        found = oracle.windows((height, width), **pairs, **rest)
        operation = getattr(functional, f"{kind}_pool")
    slopes: dict[str, np.ndarray] = {}

    def dy(shape: tuple[int, ...]) -> np.ndarray:
        return slopes.setdefault("dy", bench.draw(*shape, dtype=dtype)).astype(np.float64)

    y, dx = oracle.pool("max" if kind == "max" else "average", x.astype(np.float64), found, dy)
    given = bench.put(x, layout)
    yield "y", operation(given, layout=layout, **window).numpy(), turned(y, layout)
    got, (back,) = bench.gradients(
        lambda t: operation(t, layout=layout, **window), [given], lambda _: bench.put(slopes["dy"], layout)
    )
    yield "y with notes", got.numpy(), turned(y, layout)
    yield "dx", back.numpy(), turned(dx, layout)


def _gated_pooling(bench: _Bench, width: int, layout: str, kernel: int, stride: int, padding: int) -> Found:
    """A pooling right behind a ReLU, whose slope its gradient takes along."""
    x = bench.draw(2, 3, 7, width)
    scale, shift = np.ones(3, np.float32), np.zeros(3, np.float32)
    z, *_ = (value for _, value in oracle.batch_norm(x.astype(np.float64), scale, shift, None, True, np.zeros(x.shape)))
    found = oracle.windows((7, width), (kernel, kernel), (stride, stride), (padding, padding))
    slope = bench.draw(*oracle.pool("max", z, found)[0].shape)
    y, dz = oracle.pool("max", z, found, lambda _: slope.astype(np.float64))
    expected = dict(oracle.batch_norm(x.astype(np.float64), scale, shift, None, True, dz))
    vectors = [bench.put(v.copy()) for v in (scale, shift, shift, scale)]

    def net(t: Tensor) -> Tensor:
        normal = functional.batch_norm(t, *vectors, training=True, activation="relu", layout=layout)
        return functional.max_pool(normal, kernel, stride, padding, layout=layout)

    got, (dx,) = bench.gradients(net, [bench.put(x, layout)], lambda _: bench.put(slope, layout))
    yield "y", got.numpy(), turned(y, layout)
    yield "dx", dx.numpy(), turned(expected["dx"], layout)


def _lrn(bench: _Bench, width: int, layout: str, size: int, beta: float, dtype: str, across: str) -> Found:
    """``across``: whether the width is that of channels or of pixels."""
    shape = (2, width, 3, 5) if across == "channels" else (2, 7, 3, width)
    x, dy = bench.draw(*shape, dtype=dtype), bench.draw(*shape, dtype=dtype)
    y, dx = oracle.lrn(x.astype(np.float64), size, 0.5, beta, 1.5, dy.astype(np.float64))

    def operation(t: Tensor) -> Tensor:
        return functional.local_response_norm(t, size, 0.5, beta, 1.5, layout=layout)

    got, (back,) = bench.gradients(operation, [bench.put(x, layout)], lambda _: bench.put(dy, layout))
    yield "y", got.numpy(), turned(y, layout)
    yield "dx", back.numpy(), turned(dx, layout)


def _batch_norm(bench: _Bench, width: int, layout: str, relu: bool, plus: bool, across: str) -> Found:
    shape = (2, width, 3, 5) if across == "channels" else (2, 5, 3, width)
    x, dy, extra = (bench.draw(*shape) for _ in range(3))
    scale, shift = bench.draw(shape[1]), bench.draw(shape[1])
    residual = extra.astype(np.float64) if plus else None
    expected = dict(oracle.batch_norm(*(a.astype(np.float64) for a in (x, scale, shift)), residual, relu, dy))
    mean, variance = (bench.put(np.zeros(shape[1], np.float32)) for _ in range(2))
    inputs = [bench.put(x, layout), bench.put(scale), bench.put(shift), *([bench.put(extra, layout)] if plus else [])]
    options = {"layout": layout, "activation": "relu" if relu else None}

    def operation(t: Tensor, a: Tensor, b: Tensor, r: Tensor | None = None) -> Tensor:
        return functional.batch_norm(t, a, b, mean, variance, training=True, momentum=1.0, residual=r, **options)

    y, (dx, dscale, dshift, *rest) = bench.gradients(operation, inputs, lambda _: bench.put(dy, layout))
    names = {"y": y, "mean": mean, "variance": variance, "dx": dx, "dscale": dscale, "dshift": dshift}
    names |= dict(zip(["dresidual"], rest, strict=False))
    for name, got in names.items():
        yield name, got.numpy(), turned(expected[name], layout) if expected[name].ndim == 4 else expected[name]
    still = functional.batch_norm(*inputs[:3], mean, variance, training=False, **options).numpy()
    wide = (1, -1, 1, 1)
    factor = scale / np.sqrt(expected["variance"] + 1e-5)
    right = (x - expected["mean"].reshape(wide)) * factor.reshape(wide) + shift.reshape(wide)
    yield "y of inference", still, turned(np.maximum(right, 0) if relu else right, layout)


# --- rows -----------------------------------------------------------------------------------------------------------


def _softmax(bench: _Bench, width: int, dtype: str, axis: int) -> Found:
    x, dy = (bench.draw(5, width, dtype=dtype) if axis == -1 else bench.draw(2, width, 3, dtype=dtype) for _ in "xy")
    y = oracle.softmax(x.astype(np.float64), axis)
    slope = dy.astype(np.float64)
    got, (dx,) = bench.gradients(lambda t: functional.softmax(t, axis), [bench.put(x)], lambda _: bench.put(dy))
    yield "y", got.numpy(), y
    yield "dx", dx.numpy(), y * (slope - (slope * y).sum(axis, keepdims=True))
    got, (dx,) = bench.gradients(lambda t: functional.log_softmax(t, axis), [bench.put(x)], lambda _: bench.put(dy))
    yield "logarithm", got.numpy(), np.log(y)
    yield "dx of the logarithm", dx.numpy(), slope - y * slope.sum(axis, keepdims=True)


def _cross_entropy(bench: _Bench, width: int, dtype: str, reduction: str) -> Found:
    x, labels = bench.draw(7, width, dtype=dtype), bench.rng.integers(0, width, 7)
    y, rows = oracle.softmax(x.astype(np.float64)), np.arange(7)
    losses = -np.log(y[rows, labels])
    slope = y.copy()
    slope[rows, labels] -= 1
    divide = 7 if reduction == "mean" else 1
    with Tape() as tape:
        given = tape.watch(bench.put(x))
        loss = functional.cross_entropy(given, labels, reduction=reduction)
        start = bench.put(np.ones(7, dtype)) if reduction == "none" else None
    (dx,) = tape.backward(loss, start, keep=[given])
    yield "loss", loss.numpy(), losses if reduction == "none" else losses.sum() / divide
    yield "dx", dx.numpy(), slope / divide


def _reduction(bench: _Bench, width: int, operation: str, shape: str, dtype: str) -> Found:
    """``shape`` names axes: w the width, digits sizes; those in capitals, or digits after ``-``, are reduced."""
    sizes, over = [], []
    for number, word in enumerate(shape.split()):
        sizes.append(width if word.strip("-") == "w" else int(word.strip("-")))
        over += [number] if word.startswith("-") else []
    x, y = bench.draw(*sizes, dtype=dtype), bench.draw(*sizes[1:], dtype=dtype)
    wide = x.astype(np.float64)
    right = getattr(np, operation)(wide, axis=tuple(over))
    yield operation, reduce(operation, "x", tuple(over), x=bench.put(x)).numpy(), right
    if operation == "sum":
        pair = reduce("sum", ("x * y", "square(x - 1)"), tuple(over), x=bench.put(x), y=bench.put(y))
        yield "sum of products", pair[0].numpy(), (wide * y.astype(np.float64)).sum(tuple(over))
        yield "sum of squares", pair[1].numpy(), ((wide - 1) ** 2).sum(tuple(over))
        part = bench.put(x)[(slice(None),) * (len(sizes) - 1) + (slice(width % 3 if width > 3 else 0, None),)]
        cut = wide[..., width % 3 if width > 3 else 0 :]
        yield "sum of a view", reduce("sum", "x", tuple(over), x=part).numpy(), cut.sum(tuple(over))


# --- elements -------------------------------------------------------------------------------------------------------


def _formula(bench: _Bench, width: int, shapes: str, dtype: str) -> Found:
    """A formula over operands that broadcast: ``shapes`` is one shape an operand, w the width."""
    sizes = [tuple(width if n == "w" else int(n) for n in shape.split("x")) for shape in shapes.split()]
    a, b = (bench.draw(*size, dtype=dtype) for size in sizes)
    x, y = a.astype(np.float64), b.astype(np.float64)
    right = np.where(x > y, x * y, np.exp(-np.abs(x))) + np.maximum(x, 2 * y)
    inputs = [bench.put(a), bench.put(b)]
    got, (da, db) = bench.gradients(
        lambda s, t: apply("where(a > b, a * b, exp(-abs(a))) + max(a, 2 * b)", a=s, b=t),
        inputs,
        lambda shape: fill(Tensor.empty(shape, np.dtype(dtype), bench.queue), 1.0),
    )
    yield "y", got.numpy(), right
    over_x = np.where(x > y, y, -np.sign(x) * np.exp(-np.abs(x))) + (x > 2 * y)
    over_y = np.where(x > y, x, 0) + 2.0 * (x <= 2 * y)
    for name, slope, size, found in (("da", over_x, sizes[0], da), ("db", over_y, sizes[1], db)):
        lead = slope.ndim - len(size)
        repeated = tuple(range(lead)) + tuple(lead + i for i, n in enumerate(size) if slope.shape[lead + i] != n)
        yield name, found.numpy(), slope.sum(repeated).reshape(size)


def _activation(bench: _Bench, width: int, name: str, dtype: str) -> Found:
    words = {"clip": "clip(-0.5,0.5)", "leaky_relu": "leaky_relu(0.1)", "elu": "elu(0.5)"}.get(name, name)
    x = bench.draw(3, width, dtype=dtype)
    yield name, functional.activate(bench.put(x), words).numpy(), oracle.activation(words, x.astype(np.float64))


def _views(bench: _Bench, width: int, dtype: str) -> Found:
    x = (bench.rng.standard_normal((3, width, 5)) * 50).astype(dtype)
    t = bench.put(x)
    yield "transposed", t.transpose(2, 0, 1).copy().numpy(), x.transpose(2, 0, 1)
    yield "every second", t[:, ::2].copy().numpy(), x[:, ::2]
    yield "a column", t[:, :, 1].copy().numpy(), x[:, :, 1]
    yield "astype", t.astype(np.float32).numpy(), x.astype(np.float32)
    out = bench.put(np.zeros_like(x))
    fill(out[:, :, 2:4], 7)
    right = np.zeros_like(x)
    right[:, :, 2:4] = 7
    yield "filled", out.numpy(), right


def _joining(bench: _Bench, width: int, axis: int, dtype: str) -> Found:
    shapes = [(2, width, 3), (2, 5, 3), (2, width + 1, 3)] if axis == 1 else [(2, 3, width), (2, 3, 1), (2, 3, 6)]
    arrays = [bench.draw(*shape, dtype=dtype) for shape in shapes]
    yield "joined", concatenate([bench.put(a) for a in arrays], axis).numpy(), np.concatenate(arrays, axis)


def _random(bench: _Bench, width: int, kind: str) -> Found:
    """The first numbers of a stream are the same however many are asked for."""
    short, long = (getattr(Generator(5, bench.queue), kind)((n,)).numpy() for n in (width, 4096))
    yield "the same stream", short, long[:width]
    if kind == "uniform":
        yield "between 0 and 1", ((long >= 0) & (long < 1)).astype(float), np.ones(4096)
    middle, spread = (0.5, 12**-0.5) if kind == "uniform" else (0.0, 1.0)
    yield "mean", np.round((long.mean() - middle) / spread * 5), np.zeros(())  # within 0.1 of a deviation


def _dropout(bench: _Bench, width: int, dtype: str) -> Found:
    x = bench.draw(3, width, dtype=dtype)
    draws = Generator(7, bench.queue).uniform((3 * width,)).numpy().reshape(3, width)
    got = functional.dropout(bench.put(x), 0.25, Generator(7, bench.queue)).numpy()
    yield "y", got, np.where(draws >= 0.25, x.astype(np.float64) / 0.75, 0)


def _linear(bench: _Bench, width: int, across: str) -> Found:
    rows, inner, outer = {"rows": (width, 9, 7), "inner": (5, width, 7), "outer": (5, 9, width)}[across]
    x, w, b, dy = (bench.draw(*shape) for shape in ((rows, inner), (outer, inner), (outer,), (rows, outer)))
    inputs = [bench.put(x), bench.put(w), bench.put(b)]
    got, (dx, dw, db) = bench.gradients(functional.linear, inputs, lambda _: bench.put(dy))
    x, w, b, dy = (a.astype(np.float64) for a in (x, w, b, dy))
    yield "y", got.numpy(), x @ w.T + b
    yield "dx", dx.numpy(), dy @ w
    yield "dw", dw.numpy().reshape(w.shape), dy.T @ x
    yield "db", db.numpy(), dy.sum(0)


def _optimiser(bench: _Bench, width: int, kind: str) -> Found:
    values, slope = bench.draw(3, width), bench.draw(3, width)
    parameter = Parameter(bench.put(values))
    made = SGD([parameter], 0.1, 0.9, 0.01, True) if kind == "sgd" else Adam([parameter], 0.1)
    parameter.grad.write(slope)
    made.step()
    g, p = slope.astype(np.float64), values.astype(np.float64)
    d = g + 0.01 * p
    yield "p", parameter.numpy(), p - 0.1 * (d + 0.9 * d) if kind == "sgd" else p - 0.1 * g / (np.abs(g) + 1e-8)


# --- training and search --------------------------------------------------------------------------------------------


def _batches(bench: _Bench, width: int) -> Found:
    images, labels = bench.rng.integers(0, 256, (9, 3, width), np.uint8), bench.rng.integers(0, 10, 9)
    batches, order = Batches(images, labels, 1 / 255, bench.queue), bench.rng.permutation(9)
    x, y = batches.take(batches.order(order), 2, 5)
    yield "pictures", x.numpy(), images[order[2:7]] / 255
    yield "labels", y.numpy(), labels[order[2:7]]


def _look(bench: _Bench, width: int, itemsize: int) -> Found:
    kind = np.dtype(f"u{itemsize}")
    a = bench.rng.integers(0, 60000, width * 67).astype(kind)
    mark = sum(PATTERN << 16 * place for place in range(itemsize // 2))
    b = a.copy()
    a[:: width + 2], b[:: width + 3] = mark, 1
    look, one, other = Look(bench.queue, itemsize), bench.put(a).base_data, bench.put(b).base_data
    yield "unwritten", np.array(look.unwritten(one, a.size)), np.array((a == mark).sum())
    yield "differ", np.array(look.differ(one, other, a.size)), np.array((a != b).sum())
    at = bench.rng.integers(0, a.size, width)
    yield "gathered", look.gather(one, at).astype(np.float64), a[at].astype(np.float64)


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
        _pooling,
        [
            {"kind": "max", "layout": layout, "dtype": dtype, **window}
            for layout in ("nchw", "nhwc")
            for dtype in ("float32", "float64", "float16")
            for window in _MAX
            if dtype == "float32" or window["stride"] == 1
        ],
    ),
    "avg_pool": (
        _pooling,
        [
            {"kind": "avg", "layout": layout, "dtype": dtype, **window}
            for layout in ("nchw", "nhwc")
            for dtype in ("float32", "float64")
            for window in _MEAN
            if dtype == "float32" or window["stride"] == 1
        ],
    ),
    "adaptive_pool": (
        _pooling,
        [
            {"kind": kind, "layout": layout, "dtype": "float32", **size}
            for kind in ("max", "avg")
            for layout in ("nchw", "nhwc")
            for size in _SIZES
        ],
    ),
    "relu_max_pool": (
        _gated_pooling,
        [
            {"layout": layout, "kernel": k, "stride": s, "padding": p}
            for layout in ("nchw", "nhwc")
            for k, s, p in ((3, 1, 1), (2, 1, 0), (3, 2, 1))
        ],
    ),
    "lrn": (
        _lrn,
        [
            {"layout": layout, "size": size, "beta": beta, "dtype": "float32", "across": across}
            for layout in ("nchw", "nhwc")
            for size, beta in ((5, 0.75), (4, 0.5), (3, 0.6))
            for across in ("channels", "pixels")
        ],
    ),
    "batch_norm": (
        _batch_norm,
        [
            {"layout": layout, "relu": relu, "plus": plus, "across": across}
            for layout in ("nchw", "nhwc")
            for relu, plus in ((False, False), (True, False), (True, True))
            for across in ("channels", "pixels")
        ],
    ),
    "softmax": (_softmax, [{"dtype": d, "axis": axis} for d in ("float32", "float64") for axis in (-1, 1)]),
    "cross_entropy": (
        _cross_entropy,
        [{"dtype": d, "reduction": r} for d in ("float32", "float64") for r in ("mean", "none")],
    ),
    "reduction": (
        _reduction,
        [{"operation": "sum", "shape": shape, "dtype": d} for shape in _SHAPES for d in ("float32", "float16")]
        + [{"operation": o, "shape": shape, "dtype": "float32"} for o in ("max", "min", "mean") for shape in _SHAPES],
    ),
    "formula": (
        _formula,
        [
            {"shapes": shapes, "dtype": dtype}
            for shapes in ("w w", "3xw w", "3xw 3x1", "wx3 3", "2x5xw 5x1", "wx2x3 2x1")
            for dtype in ("float32", "float16", "float64")
        ],
    ),
    "activation": (_activation, [{"name": name, "dtype": d} for name in FORMULAS for d in ("float32", "float16")]),
    "views": (_views, [{"dtype": d} for d in ("float32", "float64", "float16", "int8")]),
    "joining": (_joining, [{"axis": axis, "dtype": d} for axis in (1, 2) for d in ("float32", "float16")]),
    "random": (_random, [{"kind": kind} for kind in ("uniform", "normal")]),
    "dropout": (_dropout, [{"dtype": d} for d in ("float32", "float16")]),
    "linear": (_linear, [{"across": across} for across in ("rows", "inner", "outer")]),
    "optimiser": (_optimiser, [{"kind": kind} for kind in ("sgd", "adam")]),
    "batches": (_batches, [{}]),
    "look": (_look, [{"itemsize": size} for size in (2, 4, 8)]),
}
"""Name to what computes it and the forms there are."""


def run(queue: Any, family: str, options: dict[str, Any], width: int) -> Iterator[str]:
    """Compute one form at one width; a sentence for each result that is wrong."""
    function, _ = FAMILIES[family]
    bench = _Bench(queue, width)
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
