"""Batched products of matrices as grouped 1×1 convolutions.

``z[b, m, n] = sum over k of x[b, m, k] * y[b, k, n]`` is a convolution of one picture with ``b * k`` channels and n
pixels by weights ``[b * m, k]`` in b groups: both operands lie as they are, and nothing is copied.
"""

from __future__ import annotations

import math

from ..api.errors import InvalidArgument
from ..api.policy import current_policy
from ..calls.conv import conv
from ..device.tracing import operation
from ..elementwise import concatenate, zeros
from ..elementwise.codegen.strides import broadcast
from ..elementwise.tensor import Tensor
from .convolution import dense


@operation
def matmul(x: Tensor, y: Tensor, math_mode: str = "float32") -> Tensor:
    """NumPy's matmul: the last two axes are matrices, those before broadcast; a vector is a row or a column.

    Raises InvalidArgument for sizes that do not fit each other.
    """
    if not x.ndim or not y.ndim or x.shape[-1] != y.shape[-2 if y.ndim > 1 else 0]:
        raise InvalidArgument(f"matmul needs x [..., m, k] and y [..., k, n], got {x.shape} and {y.shape}")
    row, column = x.ndim == 1, y.ndim == 1
    x, y = dense(x), dense(y)
    x = x.reshape(1, *x.shape) if row else x
    y = y.reshape(*y.shape, 1) if column else y
    (*_, m, k), n = x.shape, y.shape[-1]
    batch_shape = broadcast({"x": x.shape[:-2], "y": y.shape[:-2]})
    shape = (*batch_shape, *(() if row else (m,)), *(() if column else (n,)))
    if not math.prod(shape) * k:
        return zeros(shape, x.dtype, x.queue)
    many, mats = math.prod(x.shape[:-2]), math.prod(y.shape[:-2])
    if current_policy().is_invariant and many * mats > max(many, mats):
        # The first axis is the batch: each image has a product of its own, whose size does not depend on the others.
        x, y = (t.expand(*batch_shape, *t.shape[-2:]) for t in (x, y))
        return concatenate([matmul(x[i], y[i], math_mode).reshape(1, *shape[1:]) for i in range(batch_shape[0])], 0)
    if mats == 1 and current_policy().is_invariant:
        # Rows of x are images here, not the weights' output channels, so that a choice for one batch holds for all.
        filters = dense(y.reshape(k, n).transpose(1, 0)).reshape(n, k, 1, 1)
        return conv(x.reshape(many * m, k, 1, 1), filters, math=math_mode).reshape(shape)
    if mats == 1:  # One matrix multiplies all rows of all x, so it is the image of a single 1x1 convolution.
        groups, picture, weights = 1, (1, k, 1, n), (many * m, k, 1, 1)
    elif many == 1:  # One x multiplies all matrices, which are the images of a batch.
        groups, picture, weights = 1, (mats, k, 1, n), (m, k, 1, 1)
    else:
        x, y = (dense(t.expand(*batch_shape, *t.shape[-2:])) if t.shape[:-2] != batch_shape else t for t in (x, y))
        groups = math.prod(batch_shape)
        picture, weights = (1, groups * k, 1, n), (groups * m, k, 1, 1)
    return conv(y.reshape(picture), x.reshape(weights), groups=groups, math=math_mode).reshape(shape)
