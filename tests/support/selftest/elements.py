"""Families over rows and elements: losses, reductions, formulas, copies, training steps, each a function of a width."""

from __future__ import annotations

import numpy as np

from convdispatch.api.activations import apply_activation
from convdispatch.elementwise import apply, concatenate, fill, reduce
from convdispatch.measurement.search.trial import PATTERN, OutputScan
from convdispatch.nn import functional
from convdispatch.nn.optim import SGD, Adam
from convdispatch.nn.tape import Tape
from convdispatch.tensor import Parameter, Tensor

from .bench import Bench, Found


def softmax_of(x: np.ndarray, axis: int = -1) -> np.ndarray:
    e = np.exp(x - x.max(axis, keepdims=True))
    return e / e.sum(axis, keepdims=True)


def softmax(bench: Bench, width: int, dtype: str, axis: int) -> Found:
    x, dy = (bench.draw(5, width, dtype=dtype) if axis == -1 else bench.draw(2, width, 3, dtype=dtype) for _ in "xy")
    y = softmax_of(x.astype(np.float64), axis)
    slope = dy.astype(np.float64)
    got, (dx,) = bench.gradients(lambda t: functional.softmax(t, axis), [bench.put(x)], lambda _: bench.put(dy))
    yield "y", got.numpy(), y
    yield "dx", dx.numpy(), y * (slope - (slope * y).sum(axis, keepdims=True))
    got, (dx,) = bench.gradients(lambda t: functional.log_softmax(t, axis), [bench.put(x)], lambda _: bench.put(dy))
    yield "logarithm", got.numpy(), np.log(y)
    yield "dx of the logarithm", dx.numpy(), slope - y * slope.sum(axis, keepdims=True)


def cross_entropy(bench: Bench, width: int, dtype: str, reduction: str) -> Found:
    x, labels = bench.draw(7, width, dtype=dtype), bench.rng.integers(0, width, 7)
    y, rows = softmax_of(x.astype(np.float64)), np.arange(7)
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


def reduction(bench: Bench, width: int, operation: str, shape: str, dtype: str) -> Found:
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
        products = reduce("sum", "x * y", tuple(over), x=bench.put(x), y=bench.put(y))
        yield "sum of products", products.numpy(), (wide * y.astype(np.float64)).sum(tuple(over))
        squares = reduce("sum", "square(x - 1)", tuple(over), x=bench.put(x))
        yield "sum of squares", squares.numpy(), ((wide - 1) ** 2).sum(tuple(over))
        part = bench.put(x)[(slice(None),) * (len(sizes) - 1) + (slice(width % 3 if width > 3 else 0, None),)]
        cut = wide[..., width % 3 if width > 3 else 0 :]
        yield "sum of a view", reduce("sum", "x", tuple(over), x=part).numpy(), cut.sum(tuple(over))


# --- elements -------------------------------------------------------------------------------------------------------


def formula(bench: Bench, width: int, shapes: str, dtype: str) -> Found:
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


def activation(bench: Bench, width: int, name: str, dtype: str) -> Found:
    words = {"clip": "clip(-0.5,0.5)", "leaky_relu": "leaky_relu(0.1)", "elu": "elu(0.5)"}.get(name, name)
    x = bench.draw(3, width, dtype=dtype)
    yield name, functional.activate(bench.put(x), words).numpy(), apply_activation(words, x.astype(np.float64))


def views(bench: Bench, width: int, dtype: str) -> Found:
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


def joining(bench: Bench, width: int, axis: int, dtype: str) -> Found:
    shapes = [(2, width, 3), (2, 5, 3), (2, width + 1, 3)] if axis == 1 else [(2, 3, width), (2, 3, 1), (2, 3, 6)]
    arrays = [bench.draw(*shape, dtype=dtype) for shape in shapes]
    yield "joined", concatenate([bench.put(a) for a in arrays], axis).numpy(), np.concatenate(arrays, axis)


def linear(bench: Bench, width: int, across: str) -> Found:
    rows, inner, outer = {"rows": (width, 9, 7), "inner": (5, width, 7), "outer": (5, 9, width)}[across]
    x, w, b, dy = (bench.draw(*shape) for shape in ((rows, inner), (outer, inner), (outer,), (rows, outer)))
    inputs = [bench.put(x), bench.put(w), bench.put(b)]
    got, (dx, dw, db) = bench.gradients(functional.linear, inputs, lambda _: bench.put(dy))
    x, w, b, dy = (a.astype(np.float64) for a in (x, w, b, dy))
    yield "y", got.numpy(), x @ w.T + b
    yield "dx", dx.numpy(), dy @ w
    yield "dw", dw.numpy().reshape(w.shape), dy.T @ x
    yield "db", db.numpy(), dy.sum(0)


def optimiser(bench: Bench, width: int, kind: str) -> Found:
    values, slope = bench.draw(3, width), bench.draw(3, width)
    parameter = Parameter(bench.put(values))
    made = SGD([parameter], 0.1, 0.9, 0.01, True) if kind == "sgd" else Adam([parameter], 0.1)
    parameter.grad = bench.put(slope)
    made.step()
    g, p = slope.astype(np.float64), values.astype(np.float64)
    d = g + 0.01 * p
    yield "p", parameter.numpy(), p - 0.1 * (d + 0.9 * d) if kind == "sgd" else p - 0.1 * g / (np.abs(g) + 1e-8)


# --- search ---------------------------------------------------------------------------------------------------------


def look(bench: Bench, width: int, itemsize: int) -> Found:
    kind = np.dtype(f"u{itemsize}")
    a = bench.rng.integers(0, 60000, width * 67).astype(kind)
    mark = sum(PATTERN << 16 * place for place in range(itemsize // 2))
    b = a.copy()
    a[:: width + 2], b[:: width + 3] = mark, 1
    look, one, other = OutputScan(bench.queue, itemsize), bench.put(a).base_data, bench.put(b).base_data
    yield "unwritten", np.array(look.unwritten(one, a.size)), np.array((a == mark).sum())
    yield "differ", np.array(look.differ(one, other, a.size)), np.array((a != b).sum())
    at = bench.rng.integers(0, a.size, width)
    yield "gathered", look.gather(one, at).astype(np.float64), a[at].astype(np.float64)
