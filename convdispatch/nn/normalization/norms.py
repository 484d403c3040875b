"""Batch norm (Ioffe and Szegedy 2015) and local response normalisation (Krizhevsky et al. 2012)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ...api.errors import InvalidArgument
from ...device.tracing import operation
from ...elementwise import apply, reduce
from ...elementwise.tensor import Tensor
from ..activations import activate
from ..convolution import dense
from ..pooling.pooling2d import avg_pool
from ..tape import paused
from .row_norm import row_norm


@operation
def batch_norm(
    x: Tensor,
    scale: Tensor,
    shift: Tensor,
    running_mean: Tensor,
    running_variance: Tensor,
    *,
    training: bool,
    momentum: float = 0.1,
    epsilon: float = 1e-5,
    activation: str | None = None,
    residual: Tensor | None = None,
    layout: str = "nchw",
) -> Tensor:
    """Normalise each channel, by the batch's statistics when training (which update the running ones in place).

    ``activation((x - mean) / sqrt(variance + epsilon) * scale + shift + residual)``; ``activation`` is None or
    "relu", fused. Scale, shift and statistics are ``[c]``. The running variance is the unbiased one, as PyTorch's.

    Raises InvalidArgument for shapes that do not fit, or training on one value a channel.
    """
    axis = 1 if layout == "nchw" else x.ndim - 1
    channels = x.shape[axis] if x.ndim >= 2 else -1
    for name, tensor in (("scale", scale), ("shift", shift), ("mean", running_mean), ("variance", running_variance)):
        if tensor.shape != (channels,):
            raise InvalidArgument(f"batch norm of x {x.shape} needs {name} of shape ({channels},), got {tensor.shape}")
    if activation not in (None, "relu"):
        raise InvalidArgument(f"batch norm fuses relu alone, got activation {activation!r}")
    wide = tuple(channels if a == axis else 1 for a in range(x.ndim))
    operands = {"scale": scale.reshape(wide), "shift": shift.reshape(wide)}
    if training:
        operands |= _statistics_of(x, axis, running_mean, running_variance, float(momentum))
    else:
        operands |= {"mean": running_mean.reshape(wide), "variance": running_variance.reshape(wide)}
    text = "(x - mean) * (scale * rsqrt(variance + epsilon)) + shift"
    if residual is not None:
        text, operands["residual"] = f"{text} + residual", residual
    if activation:
        text = f"v = {text}; where(v < 0, 0, v)"
    return apply(text, x=x, epsilon=float(epsilon), dtype=x.dtype, **operands)


def _statistics_of(
    x: Tensor, axis: int, running_mean: Tensor, running_variance: Tensor, momentum: float
) -> dict[str, Tensor]:
    """Mean and variance of each channel, which broadcast with x; the running ones, ``[c]``, are moved towards them."""
    count = x.size // max(1, x.shape[axis])
    if count < 2:
        raise InvalidArgument(f"training needs more than one value a channel, got x of shape {x.shape}")
    axes = tuple(a for a in range(x.ndim) if a != axis)
    values = x.astype(np.float32) if x.dtype.itemsize == 2 else x
    mean = reduce("mean", "x", axes, keepdims=True, x=values)
    variance = reduce("mean", "square(x - m)", axes, keepdims=True, x=values, m=mean)
    with paused():
        found = {"mean": mean.reshape(-1), "variance": variance.reshape(-1), "unbias": count / (count - 1)}
        text = "a = a + momentum * (mean - a); b = b + momentum * (variance * unbias - b)"
        apply(text, a=running_mean, b=running_variance, momentum=momentum, **found)
    return {"mean": mean, "variance": variance}


def folding(
    scale: np.ndarray,
    shift: np.ndarray,
    mean: np.ndarray,
    variance: np.ndarray,
    epsilon: float = 1e-5,
    bias: np.ndarray | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """What a batch norm multiplies the output channels of a convolution's weights by, and the bias that is left:
    ``(conv(x, w) + bias - mean) * scale / sqrt(variance + epsilon) + shift``, in float64."""
    factor = scale.astype(np.float64) / np.sqrt(variance.astype(np.float64) + epsilon)
    start = 0.0 if bias is None else bias.astype(np.float64)
    return factor, shift + (start - mean) * factor


@operation
def local_response_norm(
    x: Tensor, size: int, alpha: float = 1e-4, beta: float = 0.75, k: float = 1.0, *, layout: str = "nchw"
) -> Tensor:
    """``x / (k + alpha / size * sum of x² over size neighbouring channels) ** beta``, PyTorch's definition.

    The window of channel c begins ``size // 2`` before it; channels outside count as zero.
    Raises InvalidArgument for a size below 1 or x with fewer than two axes.
    """
    if size < 1 or x.ndim < 2:
        raise InvalidArgument(f"the norm needs a size of 1 or more and x with channels, got {size} and {x.shape}")
    if not x.size:
        return x
    # Squares are pooled along the channels: of channels first as columns of pictures, of channels last as their rows.
    first = layout == "nchw"
    pixels = math.prod(x.shape[2:] if first else x.shape[1:-1])
    picture = (x.shape[0], 1, x.shape[1], pixels) if first else (x.shape[0], 1, pixels, x.shape[-1])
    along, around = (size, 1), ((size // 2, (size - 1) // 2), (0, 0))
    squares = apply("square(x)", x=x, dtype=np.float32 if x.dtype.itemsize == 2 else x.dtype).reshape(picture)
    mean = avg_pool(squares, along if first else along[::-1], 1, around if first else around[::-1]).reshape(x.shape)
    root = {0.75: "r = rsqrt(k + alpha * m); x * r * sqrt(r)", 0.5: "x * rsqrt(k + alpha * m)"}  # fewer cycles than pow
    text = root.get(beta, f"x * (k + alpha * m) ** {-float(beta)!r}")
    return apply(text, x=x, m=mean, k=float(k), alpha=float(alpha), dtype=x.dtype)


@operation
def standardize(
    x: Tensor,
    axes: Sequence[int],
    epsilon: float = 1e-5,
    scale: Tensor | None = None,
    shift: Tensor | None = None,
    activation: str | None = None,
) -> Tensor:
    """``activation((x - mean) / sqrt(variance + epsilon) * scale + shift)`` with the statistics over ``axes``.

    The variance is the mean of the squared differences, taken after the mean is known, so that a large mean costs no
    digits. ``scale`` and ``shift`` broadcast with x.
    """
    axes = tuple(axis % x.ndim for axis in axes)
    first_axis = x.ndim - len(axes)
    if axes == tuple(range(first_axis, x.ndim)) and all(
        t is None or t.shape == x.shape[first_axis:] for t in (scale, shift)
    ):
        y = row_norm(x, math.prod(x.shape[first_axis:]), 1, (scale, shift), epsilon, activation)
        if y is not None:
            return y
    mean = reduce("mean", "x", axes, keepdims=True, x=x)
    variance = reduce("mean", "square(x - m)", axes, keepdims=True, x=x, m=mean)
    operands: dict[str, Any] = {"x": x, "m": mean, "v": variance, "epsilon": float(epsilon)}
    text = "(x - m) * rsqrt(v + epsilon)"
    for name, sign, tensor in (("scale", "*", scale), ("shift", "+", shift)):
        if tensor is not None:
            operands[name] = tensor
            text = f"{text} {sign} {name}"
    y = apply(text, dtype=x.dtype, **operands)
    return y if activation is None else activate(y, activation)


def group_norm(
    x: Tensor, groups: int, scale: Tensor | None = None, shift: Tensor | None = None, epsilon: float = 1e-5
) -> Tensor:
    """Each of ``groups`` groups of channels of each picture by its own statistics; x is ``[mb, c, ...]``, scale and
    shift ``[c]``. With as many groups as channels it is instance norm.

    Raises InvalidArgument unless channels are a multiple of groups.
    """
    if x.ndim < 2 or groups < 1 or x.shape[1] % groups:
        raise InvalidArgument(f"channels must be a multiple of {groups} groups, got shape {x.shape}")
    if any(v is not None and v.size != x.shape[1] for v in (scale, shift)):
        raise InvalidArgument(f"scale and shift must have {x.shape[1]} elements, one a channel")
    return grouped(x, groups, scale, shift, epsilon)


@operation
def grouped(
    x: Tensor,
    groups: int,
    scale: Tensor | None,
    shift: Tensor | None,
    epsilon: float,
    activation: str | None = None,
) -> Tensor:
    """The activation of a ``group_norm`` as one operation."""
    mb, channels, *space = x.shape
    each = channels // groups
    y = row_norm(x, each * math.prod(space), math.prod(space), (scale, shift), epsilon, activation)
    if y is not None:
        return y
    wide = dense(x).reshape(mb, groups, each, math.prod(space))
    vectors = [None if v is None else dense(v).reshape(1, groups, each, 1) for v in (scale, shift)]
    return standardize(wide, (2, 3), epsilon, *vectors, activation).reshape(x.shape)  # type: ignore[no-any-return]


def layer_norm(
    x: Tensor, axis: int = -1, scale: Tensor | None = None, shift: Tensor | None = None, epsilon: float = 1e-5
) -> Tensor:
    """The axes from ``axis`` on by their own statistics; scale and shift have their shape, or broadcast with it."""
    return standardize(x, range(axis % x.ndim, x.ndim), epsilon, scale, shift)
