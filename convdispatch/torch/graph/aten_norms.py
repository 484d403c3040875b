"""ATen's norms with statistics of their input, matrix products, attention and pooling, by convdispatch."""

from __future__ import annotations

from typing import Any

import torch

from ...elementwise import apply, reduce
from ...elementwise.tensor import Tensor
from ...nn import functional
from .operator_table import OPERATORS, operator
from .quantized import Missing

_SCORES = 16 << 20
"""Bytes of attention scores up to which they may pass through memory where none of our kernels keeps them in caches.
PyTorch's kernel does: with 64 MB it took 10.5 ms, matrix products and a softmax took 22 ms."""


@operator("aten.native_group_norm.default")
def _group_norm(net: Any, x: Any, w: Any, b: Any, n: int, c: int, space: int, groups: int, eps: float) -> Any:
    return (functional.group_norm(x, groups, net.put(w), net.put(b), eps),)


@operator("aten.native_layer_norm.default")
def _layer_norm(net: Any, x: Any, shape: Any, w: Any, b: Any, eps: float) -> Any:
    return (functional.layer_norm(x, x.ndim - len(shape), net.put(w), net.put(b), eps),)


@operator("aten._native_batch_norm_legit.no_stats")
def _no_statistics(net: Any, x: Any, w: Any, b: Any, training: bool, momentum: float, eps: float) -> Any:
    return of_the_batch(net, x, w, b, None, None, momentum, eps)


def of_the_batch(net: Any, x: Any, w: Any, b: Any, mean: Any, variance: Any, momentum: float, eps: float) -> Any:
    """A batch norm by the statistics of its input, as instance norms are traced; raises Missing if it has running
    statistics."""
    if mean is not None or variance is not None:
        raise Missing("a batch norm in training")
    if x.shape[0] == 1:  # PyTorch traces an instance norm as a batch norm of one image with all channels
        return (functional.group_norm(x, x.shape[1], net.put(w), net.put(b), eps),)
    wide = (1, -1, *[1] * (x.ndim - 2))
    scale, shift = (None if v is None else net.put(v).reshape(*wide) for v in (w, b))
    return (functional.standardize(x, (0, *range(2, x.ndim)), eps, scale, shift),)


OPERATORS["aten.bmm.default"] = lambda net, x, y: functional.matmul(net.put(x), net.put(y))


@operator("aten._scaled_dot_product_flash_attention_for_cpu.default")
def _attention(
    net: Any,
    q: Any,
    k: Any,
    v: Any,
    dropout: float = 0.0,
    causal: bool = False,
    attn_mask: Any = None,
    scale: Any = None,
) -> Any:
    """``softmax(q k^T * scale + mask) v``, with q, k and v of shape ``[..., positions, size]``."""
    if dropout:
        raise Missing("attention with dropout")
    q, k, v = map(net.put, (q, k, v))
    if not functional.is_attention_in_caches(q, k, v):
        if 4 * q.shape[-2] * k.shape[-2] > _SCORES:
            raise Missing(f"attention of {q.shape[-2]} places to {k.shape[-2]}, whose scores no cache holds,")
        if causal and attn_mask is None:
            attn_mask = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool).tril()
    if isinstance(attn_mask, torch.Tensor):
        if attn_mask.dtype is torch.bool:
            attn_mask = torch.zeros(attn_mask.shape).masked_fill(~attn_mask, -torch.inf)
        turned = net.put(attn_mask.transpose(-2, -1))  # the constant mask is transposed once, as the kernel reads it
        attn_mask = turned.transpose(*range(turned.ndim - 2), -1, -2)
    return (functional.attention(q, k, v, attn_mask, causal=causal and attn_mask is None, scale=scale),)


@operator("aten._safe_softmax.default")
def _safe_softmax(net: Any, x: Any, axis: int, dtype: Any = None) -> Tensor:
    """A softmax that returns zeros where all values along the axis are masked."""
    lowest = -3.4e38 if x.dtype.itemsize == 4 else -1.7e308
    maximum = reduce("max", "x", (axis % x.ndim,), keepdims=True, x=x)
    return apply("where(m < b, 0, y)", m=maximum, y=functional.softmax(x, axis), b=lowest)


@operator("aten.max_pool2d_with_indices.default", "aten.max_pool3d_with_indices.default")
def _max_pool(
    net: Any, x: Any, kernel: Any, stride: Any = (), padding: Any = (0,), dilation: Any = (1,), ceil: bool = False
) -> Any:
    kernel, stride, pads, dilation = _windows(x, kernel, stride, padding, dilation)
    return (functional.pool("max", x, kernel, stride, pads, dilation=dilation, ceil_mode=ceil),)


@operator("aten.avg_pool2d.default", "aten.avg_pool3d.default")
def _avg_pool(
    net: Any,
    x: Any,
    kernel: Any,
    stride: Any = (),
    padding: Any = (0,),
    ceil: bool = False,
    count_pad: bool = True,
    divisor: Any = None,
) -> Tensor:
    if divisor is not None:
        raise Missing("an average with a divisor of its own")
    kernel, stride, pads, _ = _windows(x, kernel, stride, padding, (1,))
    return functional.pool("average", x, kernel, stride, pads, ceil_mode=ceil, count_include_pad=count_pad)


def _windows(x: Any, kernel: Any, stride: Any, padding: Any, dilation: Any) -> tuple[Any, Any, Any, Any]:
    """A pooling's parameters for each spatial axis; ATen passes one number for all, and no stride if it is the kernel
    size."""
    ndim = x.ndim - 2
    each = ([*v] * ndim if len(v) == 1 else [*v] for v in (kernel, stride or kernel, padding, dilation))
    kernel, stride, padding, dilation = each
    return kernel, stride, [(pad, pad) for pad in padding], dilation
