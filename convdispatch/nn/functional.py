"""The operations of nets as functions of tensors: all on the tape, none waits. Layouts are ``conv()``'s."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ..api.errors import InvalidArgument
from ..device.tracing import operation
from ..elementwise import apply, concatenate, concatenation_buffer, mean, reduce
from ..elementwise.tensor import Tensor
from .activations import activate
from .attention import attention, is_attention_in_caches
from .convolution import convolution, dense, linear, matmul, transposed_convolution
from .losses import cross_entropy, log_softmax, mse_loss, softmax
from .normalization.norms import (
    batch_norm,
    folding,
    group_norm,
    layer_norm,
    local_response_norm,
    standardize,
)
from .pooling.pooling2d import (
    adaptive_avg_pool,
    avg_pool,
    global_average_pool,
    lp_pool,
    max_pool,
    max_pool_with_places,
    pool,
)

__all__ = [
    "activate",
    "adaptive_avg_pool",
    "apply",
    "attention",
    "avg_pool",
    "batch_norm",
    "concatenate",
    "contiguous",
    "convolution",
    "cross_entropy",
    "dropout",
    "flatten",
    "folding",
    "global_average_pool",
    "group_norm",
    "is_attention_in_caches",
    "concatenation_buffer",
    "layer_norm",
    "linear",
    "local_response_norm",
    "log_softmax",
    "lp_pool",
    "matmul",
    "max_pool",
    "max_pool_with_places",
    "mean",
    "mse_loss",
    "pool",
    "reduce",
    "relu",
    "softmax",
    "standardize",
    "transposed_convolution",
    "view",
]


@operation
def contiguous(x: Tensor) -> Tensor:
    """x as its elements lie in a row: itself, or a copy."""
    return dense(x)  # type: ignore[no-any-return]


def view(x: Tensor, shape: Sequence[int]) -> Tensor:
    """The same elements in another shape, a copy only where x is no row of them."""
    return (x if x.contiguous else contiguous(x)).reshape(*shape)


def relu(x: Tensor) -> Tensor:
    """``max(x, 0)``; NaN stays NaN."""
    return activate(x, "relu")


@operation
def flatten(x: Tensor, start: int = 1) -> Tensor:
    """The axes from ``start`` on as one: a view."""
    x = x if x.contiguous else x.copy()
    return x.reshape(*x.shape[:start], -1) if x.size else x.reshape(*x.shape[:start], math.prod(x.shape[start:]))


def dropout(x: Tensor, p: float, random: np.random.Generator) -> Tensor:
    """Each element set to 0 with probability ``p``, the others divided by ``1 - p``; the host draws which.

    Raises InvalidArgument for a probability outside [0, 1).
    """
    if not 0 <= p < 1:
        raise InvalidArgument(f"a probability of dropout is 0 or more and below 1, got {p}")
    if not p or not x.size:
        return x
    kept = Tensor.from_numpy(random.random(x.shape, np.float32) >= p, x.queue)
    return apply("where(kept, x * scale, 0)", x=x, kept=kept, scale=1 / (1 - p))  # type: ignore[no-any-return]
