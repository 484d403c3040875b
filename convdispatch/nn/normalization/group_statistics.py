"""Normalisation by each picture's own statistics: groups of channels, single channels, the last axes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from ...api.errors import InvalidArgument
from ...device.tracing import operation
from ...elementwise import apply, reduce
from ...elementwise.tensor import Tensor
from ..activations import activate
from ..convolution import dense
from .row_norm import row_norm


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
