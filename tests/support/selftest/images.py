"""Families over images: pooling and the norms over channels, each a function of a width; PyTorch says what is right."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from convdispatch.nn import functional
from convdispatch.tensor import Tensor

from .bench import Bench, Found, in_layout

torch = pytest.importorskip("torch", reason="torch, which says what is right, is not installed (extra: torch)")
F = torch.nn.functional


def expected(of: Callable[..., Any], dy: Callable[..., np.ndarray], *arrays: np.ndarray) -> tuple[Any, Any, Any]:
    """``of(*arrays)`` in float64, its gradient ``dy(*shape)``, and the arrays' gradients."""
    leaves = [torch.from_numpy(array.astype(np.float64)).requires_grad_() for array in arrays]
    y = of(*leaves)
    slope = dy(*y.shape)
    found = torch.autograd.grad(y, leaves, torch.from_numpy(slope.astype(np.float64)))
    return y.detach().numpy(), slope, [each.numpy() for each in found]


def pooling(bench: Bench, width: int, kind: str, layout: str, dtype: str, **window: Any) -> Found:
    """``window``: what functional's pooling takes, or ``size`` for an adaptive one."""
    x = bench.draw(2, 3, max(5, width % 9 + 3), width, dtype=dtype)
    name, theirs = f"{kind}_pool", {"kernel_size" if word == "kernel" else word: n for word, n in window.items()}
    if "size" in window:
        name, theirs = f"adaptive_{name}", {"output_size": window["size"]}
    elif width + 2 * window["padding"] <= window.get("dilation", 1) * (window["kernel"] - 1):
        return
    y, dy, (dx,) = expected(lambda t: getattr(F, f"{name}2d")(t, **theirs), lambda *s: bench.draw(*s, dtype=dtype), x)

    def ours(t: Tensor) -> Tensor:
        return getattr(functional, name)(t, layout=layout, **window)

    yield "y", ours(bench.put(x, layout)).numpy(), in_layout(y, layout)
    got, (back,) = bench.gradients(ours, [bench.put(x, layout)], lambda _: bench.put(dy, layout))
    yield "y with notes", got.numpy(), in_layout(y, layout)
    yield "dx", back.numpy(), in_layout(dx, layout)


def gated_pooling(bench: Bench, width: int, layout: str, kernel: int, stride: int, padding: int) -> Found:
    """A pooling right behind a ReLU, whose slope its gradient takes along."""
    x, window = bench.draw(2, 3, 7, width), (kernel, stride, padding)

    def theirs(t: Any) -> Any:
        return F.max_pool2d(F.batch_norm(t, None, None, training=True).relu(), *window)

    y, dy, (dx,) = expected(theirs, bench.draw, x)
    vectors = [bench.put(fill(3, np.float32)) for fill in (np.ones, np.zeros, np.zeros, np.ones)]

    def ours(t: Tensor) -> Tensor:
        normal = functional.batch_norm(t, *vectors, training=True, activation="relu", layout=layout)
        return functional.max_pool(normal, *window, layout=layout)

    got, (back,) = bench.gradients(ours, [bench.put(x, layout)], lambda _: bench.put(dy, layout))
    yield "y", got.numpy(), in_layout(y, layout)
    yield "dx", back.numpy(), in_layout(dx, layout)


def lrn(bench: Bench, width: int, layout: str, size: int, beta: float, dtype: str, across: str) -> Found:
    """``across``: whether the width is that of channels or of pixels."""
    x = bench.draw(*((2, width, 3, 5) if across == "channels" else (2, 7, 3, width)), dtype=dtype)
    options = size, 0.5, beta, 1.5
    y, dy, (dx,) = expected(lambda t: F.local_response_norm(t, *options), lambda *s: bench.draw(*s, dtype=dtype), x)

    def ours(t: Tensor) -> Tensor:
        return functional.local_response_norm(t, *options, layout=layout)

    got, (back,) = bench.gradients(ours, [bench.put(x, layout)], lambda _: bench.put(dy, layout))
    yield "y", got.numpy(), in_layout(y, layout)
    yield "dx", back.numpy(), in_layout(dx, layout)


def batch_norm(bench: Bench, width: int, layout: str, relu: bool, plus: bool, across: str) -> Found:
    shape = (2, width, 3, 5) if across == "channels" else (2, 5, 3, width)
    arrays = {"dx": bench.draw(*shape), "dscale": bench.draw(shape[1]), "dshift": bench.draw(shape[1])}
    arrays |= {"dresidual": bench.draw(*shape)} if plus else {}
    right = {"mean": np.zeros(shape[1]), "variance": np.zeros(shape[1])}
    statistics = [torch.from_numpy(each) for each in right.values()]

    def theirs(t: Any, a: Any, b: Any, r: Any = 0, training: bool = True) -> Any:
        y = F.batch_norm(t, *statistics, a, b, training, 1.0) + r
        return y.relu() if relu else y

    right["y"], dy, slopes = expected(theirs, bench.draw, *arrays.values())
    right |= dict(zip(arrays, slopes, strict=True))
    inputs = [bench.put(array, layout if array.ndim == 4 else "nchw") for array in arrays.values()]
    mean, variance = (bench.put(np.zeros(shape[1], np.float32)) for _ in range(2))
    options = {"layout": layout, "activation": "relu" if relu else None}

    def ours(t: Tensor, a: Tensor, b: Tensor, r: Tensor | None = None) -> Tensor:
        return functional.batch_norm(t, a, b, mean, variance, training=True, momentum=1.0, residual=r, **options)

    y, found = bench.gradients(ours, inputs, lambda _: bench.put(dy, layout))
    for name, got in ({"y": y, "mean": mean, "variance": variance} | dict(zip(arrays, found, strict=True))).items():
        yield name, got.numpy(), in_layout(right[name], layout) if right[name].ndim == 4 else right[name]
    with torch.no_grad():
        wide = [torch.from_numpy(each.astype(np.float64)) for each in list(arrays.values())[:3]]
        plain = theirs(*wide, training=False)
    got = functional.batch_norm(*inputs[:3], mean, variance, training=False, **options).numpy()
    yield "y of inference", got, in_layout(plain.numpy(), layout)
