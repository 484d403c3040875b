"""The operations of nets as functions of tensors: all on the tape, none waits. Layouts are ``conv()``'s."""

import math
from collections.abc import Sequence

from ..device.tracing import operation
from ..elementwise import apply, concatenate, concatenation_buffer, mean, reduce
from ..elementwise.tensor import Tensor
from .activations import activate
from .attention import attention, is_attention_in_caches
from .convolution import convolution, dense, linear, transposed_convolution
from .dropout import dropout
from .losses import cross_entropy, log_softmax, mse_loss, softmax
from .matrix import matmul
from .normalization.group_statistics import group_norm, layer_norm, standardize
from .normalization.norms import batch_norm, fold_batch_norm, folding, local_response_norm
from .pooling.max_pool_indices import max_pool_with_places
from .pooling.pooling2d import (
    adaptive_avg_pool,
    adaptive_max_pool,
    avg_pool,
    global_average_pool,
    lp_pool,
    max_pool,
)
from .pooling.pooling_nd import pool

__all__ = [
    "activate",
    "adaptive_avg_pool",
    "adaptive_max_pool",
    "add",
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
    "fold_batch_norm",
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


@operation
def add(x: Tensor, y: Tensor, activation: str | None = None) -> Tensor:
    """``activation(x + y)``, in one kernel for relu."""
    if activation == "relu":
        return apply("v = x + y; where(v < 0, 0, v)", x=x, y=y)
    total = apply("x + y", x=x, y=y)
    return total if activation is None else activate(total, activation)


@operation
def relu(x: Tensor) -> Tensor:
    """``max(x, 0)``; NaN stays NaN."""
    return activate(x, "relu")


@operation
def flatten(x: Tensor, start: int = 1) -> Tensor:
    """The axes from ``start`` on as one: a view."""
    x = x if x.contiguous else x.copy()
    return x.reshape(*x.shape[:start], -1) if x.size else x.reshape(*x.shape[:start], math.prod(x.shape[start:]))
