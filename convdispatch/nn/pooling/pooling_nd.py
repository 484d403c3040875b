"""Pooling of data with one, two or three axes of space, channels first, by the poolings of two.

A window's largest value, its sum and the product of its counts come apart along axes: three axes are pooled as the last
two and then the first.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from ...api.errors import InvalidArgument
from ...calls.arguments import per_axis
from ...device.tracing import operation
from ...elementwise import apply
from ...elementwise.tensor import Tensor
from ..convolution import dense
from .pooling2d import avg_pool, lp_pool, max_pool


def pool(
    kind: str,
    x: Tensor,
    kernel: Sequence[int],
    stride: Sequence[int] | None = None,
    padding: Sequence[Sequence[int]] | None = None,
    *,
    dilation: Sequence[int] | int = 1,
    ceil_mode: bool = False,
    **options: Any,
) -> Tensor:
    """``kind`` is "max", "average" or "lp"; x is ``[mb, c, ...]`` with one to three axes of space.

    ``padding`` holds a (near, far) pair an axis; ``options`` are those of the pooling of two axes
    (``count_include_pad``, ``p``). Raises InvalidArgument as it does.
    """
    ndim = x.ndim - 2
    if not 1 <= ndim <= 3:
        raise InvalidArgument(f"pooling takes 1 to 3 axes of space beside images and channels, got shape {x.shape}")
    kernel = per_axis("kernel", kernel, ndim, least=1)
    stride = kernel if stride is None else per_axis("stride", stride, ndim, least=1)
    dilation = per_axis("dilation", dilation, ndim, least=1)
    pads = [tuple(pair) for pair in padding] if padding is not None else [(0, 0)] * ndim
    geometry = [list(values) for values in (kernel, stride, pads, dilation)]
    if ndim == 2:
        return _pool2(kind, x, *geometry, ceil_mode=ceil_mode, **options)
    return pool_axes(kind, x, *geometry, ceil_mode=ceil_mode, **options)


def _pool2(kind: str, x: Tensor, kernel: Any, stride: Any, pads: Any, dilation: Any, **options: Any) -> Tensor:
    function = {"max": max_pool, "average": avg_pool, "lp": lp_pool}[kind]
    return function(x, tuple(kernel), tuple(stride), tuple(pads), dilation=tuple(dilation), **options)


@operation
def pool_axes(kind: str, x: Tensor, kernel: Any, stride: Any, pads: Any, dilation: Any, **options: Any) -> Tensor:
    """``pool`` of one or three axes, as one operation."""
    x = dense(x)
    mb, channels, *space = x.shape
    if len(space) == 1:
        window = [[blank, *values] for blank, values in zip((1, 1, (0, 0), 1), (kernel, stride, pads, dilation))]
        y = _pool2(kind, x.reshape(mb, channels, 1, space[0]), *window, **options)
        return y.reshape(mb, channels, y.shape[-1])
    p, options = options.get("p", 2), dict(options)
    # Lp pooling sums p-th powers along one axis, then along the others, and takes one root.
    if kind == "lp":
        x = apply(f"abs(x) ** {float(p)}", x=x)
        options["p"] = 1
    planes = x.reshape(mb, channels * space[0], *space[1:])
    y = _pool2(kind, planes, kernel[1:], stride[1:], pads[1:], dilation[1:], **options)
    spatial = y.shape[2:]
    columns = y.reshape(mb, channels, space[0], math.prod(spatial))
    first_window = [[values[0], blank] for blank, values in zip((1, 1, (0, 0), 1), (kernel, stride, pads, dilation))]
    y = _pool2(kind, columns, *first_window, **options)
    y = y.reshape(mb, channels, y.shape[2], *spatial)
    return apply(f"y ** {1 / p}", y=y) if kind == "lp" else y
