"""Normalisation by kept statistics (batch), by a picture's own (instance, group, layer), and by neighbours (LRN)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ...elementwise import apply, reduce
from ...elementwise.tensor import Tensor
from ...nn import functional
from ..call import BoundNode, operator
from .elementwise import formula


@operator("BatchNormalization")
def _batch(call: BoundNode) -> Any:
    x = call.tensor(0)
    if x.ndim < 2:
        raise call.refuse(f"needs pictures and channels, got shape {x.shape}")
    vectors = [call.raw(index) for index in range(1, 5)]
    if any(np.dtype(v.dtype) != x.dtype for v in vectors):
        vectors = [v.astype(x.dtype) if isinstance(v, np.ndarray) else apply("v", v=v, dtype=x.dtype) for v in vectors]
    vectors = [call.upload(v) if isinstance(v, np.ndarray) else v for v in vectors]
    vectors = [v if v.ndim == 1 else functional.view(v, (v.size,)) for v in vectors]
    epsilon = float(call.get("epsilon", 1e-5))
    if call.get("training_mode", 0):
        return _by_the_batch(call, x, vectors, epsilon)
    return functional.batch_norm(x, *vectors, training=False, epsilon=epsilon)


def _by_the_batch(call: BoundNode, x: Tensor, vectors: Sequence[Tensor], epsilon: float) -> Any:
    """As in training: by the batch's own statistics, which the running ones move towards."""
    axes, wide = tuple(a for a in range(x.ndim) if a != 1), (-1, *[1] * (x.ndim - 2))
    scale, shift, mean, variance = vectors
    y = functional.standardize(x, axes, epsilon, functional.view(scale, wide), functional.view(shift, wide))
    m = reduce("mean", "x", axes, x=x)
    v = reduce("mean", "square(x - m)", axes, x=x, m=functional.view(m, wide))
    momentum = float(call.get("momentum", 0.9))
    new_statistics = [
        formula(call, "old * k + new * (1 - k)", old=old, new=new, k=momentum)
        for old, new in ((mean, m), (variance, v))
    ]
    return (y, *new_statistics)


def _channels(call: BoundNode, x: Tensor, index: int) -> Tensor:
    value = call.tensor(index)
    return value if value.dtype == x.dtype else apply("v", v=value, dtype=x.dtype)  # type: ignore[no-any-return]


@operator("InstanceNormalization")
def _instance(call: BoundNode) -> Tensor:
    x = call.tensor(0)
    vectors = (_channels(call, x, 1), _channels(call, x, 2))
    return functional.group_norm(x, x.shape[1], *vectors, float(call.get("epsilon", 1e-5)))


@operator("GroupNormalization")
def _group(call: BoundNode) -> Tensor:
    x, groups = call.tensor(0), call.get("num_groups")
    scale, shift = _channels(call, x, 1), _channels(call, x, 2)
    # Before operator set 21 GroupNormalization may have one scale and one shift per group instead of per channel.
    if call.opset < 21 and scale.size == groups != x.shape[1]:
        each = x.shape[1] // groups
        scale, shift = (
            functional.view(functional.contiguous(functional.view(v, (groups, 1)).expand(groups, each)), (x.shape[1],))
            for v in (scale, shift)
        )
    return functional.group_norm(x, groups, scale, shift, float(call.get("epsilon", 1e-5)))


def _scale(call: BoundNode, x: Tensor, index: int) -> Tensor:
    """A scale or bias that broadcasts to x."""
    value = call.tensor(index)
    axes = zip(value.shape[::-1], x.shape[::-1], strict=False)
    if value.ndim > x.ndim or any(size not in (1, length) for size, length in axes):
        raise call.refuse(f"takes {call.node.input[index]!r} that broadcasts to {x.shape}, got shape {value.shape}")
    return value


@operator("LayerNormalization")
def _layer(call: BoundNode) -> Any:
    x, axis, epsilon = call.tensor(0), call.axis(-1), float(call.get("epsilon", 1e-5))
    scale = _scale(call, x, 1)
    shift = _scale(call, x, 2) if call.has(2) else None
    y = functional.layer_norm(x, axis, scale, shift, epsilon)
    if not any(call.node.output[1:]):
        return y
    axes = tuple(range(axis, x.ndim))
    mean = reduce("mean", "x", axes, keepdims=True, x=x)
    deviation = reduce("mean", "square(x - m)", axes, keepdims=True, x=x, m=mean)
    return y, mean, apply("rsqrt(v + e)", v=deviation, e=epsilon)


@operator("RMSNormalization")
def _root_mean_square(call: BoundNode) -> Tensor:
    x, axis = call.tensor(0), call.axis(-1)
    square = reduce("mean", "square(x)", tuple(range(axis, x.ndim)), keepdims=True, x=x)
    return formula(
        call, "x * rsqrt(v + e) * s", x=x, v=square, e=float(call.get("epsilon", 1e-5)), s=_scale(call, x, 1)
    )


@operator("LRN")
def _neighbours(call: BoundNode) -> Tensor:
    x, size = call.tensor(0), call.get("size")
    options = (float(call.get("alpha", 1e-4)), float(call.get("beta", 0.75)), float(call.get("bias", 1.0)))
    if size % 2:
        return functional.local_response_norm(x, size, *options)
    # For an even size, ONNX's window has one more channel after the centre, local_response_norm's one more before it.
    flipped = functional.contiguous(x[:, ::-1])
    return functional.local_response_norm(flipped, size, *options)[:, ::-1]


@operator("LpNormalization")
def _lp(call: BoundNode) -> Tensor:
    x, axis, p = call.tensor(0), call.axis(-1), call.get("p", 2)
    norm = reduce("sum", "abs(x)" if p == 1 else "square(x)", axis, keepdims=True, x=x)
    return formula(call, "where(n == 0, 0, x / n)" if p == 1 else "where(n == 0, 0, x / sqrt(n))", x=x, n=norm)
