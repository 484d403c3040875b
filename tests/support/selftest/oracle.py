"""NumPy's float64 answers for the framework's operations and their gradients, x and dy as ``[mb, c, h, w]``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

Window = tuple[int, int, np.ndarray, np.ndarray, int]
"""Row and column of the output, rows and columns of the input that it covers, and what a mean divides by."""


def windows(
    size: tuple[int, int],
    kernel: tuple[int, int],
    stride: tuple[int, int],
    padding: tuple[int, int],
    dilation: tuple[int, int] = (1, 1),
    ceil_mode: bool = False,
    count_pad: bool = True,
) -> list[Window]:
    """The windows of a pooling over an image of ``size``, as PyTorch cuts them."""
    axes = []
    for n, k, s, p, d in zip(size, kernel, stride, padding, dilation, strict=True):
        span = n + 2 * p - d * (k - 1) - 1
        count = (-(-span // s) if ceil_mode else span // s) + 1
        count -= ceil_mode and (count - 1) * s >= n + p
        places = [o * s - p + d * np.arange(k) for o in range(count)]
        axes.append([(at[(at >= 0) & (at < n)], min(at[0] + k, n + p) - at[0]) for at in places])
    return [
        (i, j, rows, columns, high * wide if count_pad else len(rows) * len(columns))
        for i, (rows, high) in enumerate(axes[0])
        for j, (columns, wide) in enumerate(axes[1])
    ]


def adaptive_windows(size: tuple[int, int], out: tuple[int, int]) -> list[Window]:
    """The windows of an adaptive pooling to ``out``."""
    rows, columns = (
        [np.arange(o * n // count, -(-(o + 1) * n // count)) for o in range(count)]
        for n, count in zip(size, out, strict=True)
    )
    return [(i, j, r, c, len(r) * len(c)) for i, r in enumerate(rows) for j, c in enumerate(columns)]


def pool(kind: str, x: np.ndarray, found: list[Window], dy: Any = None) -> tuple[np.ndarray, np.ndarray]:
    """``(y, dx)`` of a max or average pooling; ``dy`` makes the gradient of an output of a shape."""
    shape = (*x.shape[:2], 1 + max(w[0] for w in found), 1 + max(w[1] for w in found))
    y, dx = np.zeros(shape), np.zeros(x.shape)
    slopes = np.zeros(shape) if dy is None else dy(shape)
    for i, j, rows, columns, count in found:
        part = x[:, :, rows[:, None], columns].reshape(*x.shape[:2], -1)
        if kind == "max":
            y[:, :, i, j] = part.max(-1)
            share = (np.arange(part.shape[-1]) == part.argmax(-1)[..., None]) * slopes[:, :, i, j, None]
        else:
            y[:, :, i, j] = part.sum(-1) / count
            share = np.broadcast_to(slopes[:, :, i, j, None] / count, part.shape)
        dx[:, :, rows[:, None], columns] += share.reshape(*x.shape[:2], len(rows), len(columns))
    return y, dx


def lrn(x: np.ndarray, size: int, alpha: float, beta: float, k: float, dy: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """``(y, dx)`` of the local response normalisation."""
    channels = x.shape[1]

    def windows_of(c: int) -> slice:
        return slice(max(0, c - size // 2), min(channels, c - size // 2 + size))

    d = np.stack([k + alpha / size * (x[:, windows_of(c)] ** 2).sum(1) for c in range(channels)], 1)
    dx = dy * d**-beta
    term = dy * x * d ** (-beta - 1) * (2 * alpha / size * beta)
    for c in range(channels):
        held = windows_of(c)
        dx[:, held] -= term[:, c : c + 1] * x[:, held]
    return x * d**-beta, dx


def batch_norm(
    x: np.ndarray, scale: np.ndarray, shift: np.ndarray, residual: np.ndarray | None, relu: bool, dy: np.ndarray
) -> Iterator[tuple[str, np.ndarray]]:
    """By name: the result, the batch's mean and unbiased variance, the gradients of x, scale, shift and residual."""
    over, wide = (0, 2, 3), (1, -1, 1, 1)
    mean, variance = x.mean(over), x.var(over)
    deviation = 1 / np.sqrt(variance + 1e-5)
    normal = (x - mean.reshape(wide)) * deviation.reshape(wide)
    y = normal * scale.reshape(wide) + shift.reshape(wide) + (0 if residual is None else residual)
    d = dy * (y > 0) if relu else dy
    count = x.size // x.shape[1]
    yield "y", np.maximum(y, 0) if relu else y
    yield "mean", mean
    yield "variance", variance * count / (count - 1)
    dscale, dshift = (d * normal).sum(over), d.sum(over)
    yield "dscale", dscale
    yield "dshift", dshift
    less = (dshift.reshape(wide) + normal * dscale.reshape(wide)) / count
    yield "dx", (scale * deviation).reshape(wide) * (d - less)
    if residual is not None:
        yield "dresidual", d


def softmax(x: np.ndarray, axis: int = -1) -> np.ndarray:
    """``exp(x) / sum(exp(x))``."""
    e = np.exp(x - x.max(axis, keepdims=True))
    return e / e.sum(axis, keepdims=True)
