"""ATen's norms by a picture's own statistics, learned slopes, products of matrices and pooling of volumes, as ours."""

from __future__ import annotations

from typing import Any

from ...elementwise import apply
from ...nn import functional
from ...tensor import Tensor
from .operator_table import operator
from .quantized import Missing


@operator("aten.native_group_norm.default")
def _group_norm(net: Any, x: Any, w: Any, b: Any, n: int, c: int, space: int, groups: int, eps: float) -> Any:
    return (functional.group_norm(x, groups, _put(net, w), _put(net, b), eps),)


@operator("aten.native_layer_norm.default")
def _layer_norm(net: Any, x: Any, shape: Any, w: Any, b: Any, eps: float) -> Any:
    return (functional.layer_norm(x, x.ndim - len(shape), _put(net, w), _put(net, b), eps),)


@operator("aten._native_batch_norm_legit.no_stats")
def _no_statistics(net: Any, x: Any, w: Any, b: Any, training: bool, momentum: float, eps: float) -> Any:
    return of_the_batch(net, x, w, b, None, None, momentum, eps)


def of_the_batch(net: Any, x: Any, w: Any, b: Any, mean: Any, variance: Any, momentum: float, eps: float) -> Any:
    """A batch norm by what it is given, as instance norms are written; raises Missing where it would keep that."""
    if mean is not None or variance is not None:
        raise Missing("a batch norm in training")
    if x.shape[0] == 1:  # PyTorch's instance norm of a batch: its pictures' channels one after the other
        return (functional.group_norm(x, x.shape[1], _put(net, w), _put(net, b), eps),)
    wide = (1, -1, *[1] * (x.ndim - 2))
    scale, shift = (None if v is None else _put(net, v).reshape(*wide) for v in (w, b))
    return (functional.standardize(x, (0, *range(2, x.ndim)), eps, scale, shift),)


def _put(net: Any, vector: Any) -> Tensor | None:
    return None if vector is None else net.put(vector)


@operator("aten._prelu_kernel.default")
def _prelu(net: Any, x: Any, slope: Any) -> Tensor:
    return apply("where(x > 0, x, x * a)", x=x, a=net.put(slope))


@operator("aten.bmm.default")
def _bmm(net: Any, x: Any, y: Any) -> Tensor:
    return functional.matmul(net.put(x), net.put(y))


@operator("aten.max_pool3d_with_indices.default")
def _max_pool(
    net: Any, x: Any, kernel: Any, stride: Any = (), padding: Any = (0,), dilation: Any = (1,), ceil: bool = False
) -> Any:
    kernel, stride, padding, dilation = map(_three, (kernel, stride or kernel, padding, dilation))
    pads = [(pad, pad) for pad in padding]
    return (functional.pool("max", x, kernel, stride, pads, dilation=dilation, ceil_mode=ceil),)


def _three(values: Any) -> list[int]:
    values = list(values)
    return values if len(values) == 3 else values * 3
