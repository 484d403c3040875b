"""Families over images: pooling and the norms over channels, each a function of a width."""

from __future__ import annotations

from typing import Any

import numpy as np

from convdispatch.nn import functional
from convdispatch.tensor import Tensor

from . import oracle
from .bench import Bench, Found, in_layout


def pooling(bench: Bench, width: int, kind: str, layout: str, dtype: str, **window: Any) -> Found:
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
    yield "y", operation(given, layout=layout, **window).numpy(), in_layout(y, layout)
    got, (back,) = bench.gradients(
        lambda t: operation(t, layout=layout, **window), [given], lambda _: bench.put(slopes["dy"], layout)
    )
    yield "y with notes", got.numpy(), in_layout(y, layout)
    yield "dx", back.numpy(), in_layout(dx, layout)


def gated_pooling(bench: Bench, width: int, layout: str, kernel: int, stride: int, padding: int) -> Found:
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
    yield "y", got.numpy(), in_layout(y, layout)
    yield "dx", dx.numpy(), in_layout(expected["dx"], layout)


def lrn(bench: Bench, width: int, layout: str, size: int, beta: float, dtype: str, across: str) -> Found:
    """``across``: whether the width is that of channels or of pixels."""
    shape = (2, width, 3, 5) if across == "channels" else (2, 7, 3, width)
    x, dy = bench.draw(*shape, dtype=dtype), bench.draw(*shape, dtype=dtype)
    y, dx = oracle.lrn(x.astype(np.float64), size, 0.5, beta, 1.5, dy.astype(np.float64))

    def operation(t: Tensor) -> Tensor:
        return functional.local_response_norm(t, size, 0.5, beta, 1.5, layout=layout)

    got, (back,) = bench.gradients(operation, [bench.put(x, layout)], lambda _: bench.put(dy, layout))
    yield "y", got.numpy(), in_layout(y, layout)
    yield "dx", back.numpy(), in_layout(dx, layout)


def batch_norm(bench: Bench, width: int, layout: str, relu: bool, plus: bool, across: str) -> Found:
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
        yield name, got.numpy(), in_layout(expected[name], layout) if expected[name].ndim == 4 else expected[name]
    still = functional.batch_norm(*inputs[:3], mean, variance, training=False, **options).numpy()
    wide = (1, -1, 1, 1)
    factor = scale / np.sqrt(expected["variance"] + 1e-5)
    right = (x - expected["mean"].reshape(wide)) * factor.reshape(wide) + shift.reshape(wide)
    yield "y of inference", still, in_layout(np.maximum(right, 0) if relu else right, layout)
