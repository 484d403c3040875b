"""Scaled dot-product attention: one kernel on CPUs, which keeps scores in caches; else products and a softmax.

The kernel never has all scores: those of a block of queries and a tile of keys at a time, by an online softmax (Rabe
and Staats, "Self-attention does not need O(n^2) memory", 2021; Dao et al., "FlashAttention", 2022).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyopencl as cl

from ..api.errors import InvalidArgument
from ..device import runtime
from ..device.programs.kernels import Launch, build, config_macros, keeps_programs, kernel_text
from ..device.tracing import operation
from ..elementwise import apply, reduce, zeros
from ..elementwise.tensor import Tensor
from .convolution import dense, matmul
from .losses import softmax

_TILE = 64
"""The number of keys whose scores the attention kernel holds at a time."""
_FIXED = 0.3
"""The fixed cost of a block of queries, in vectors of queries: the loads that all vectors share."""


def attention(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None, *, causal: bool = False, scale: float | None = None
) -> Tensor:
    """``softmax(q k^T * scale + mask) v`` of q ``[mb, heads, queries, size]``, k ``[mb, heads, keys, size]`` and v
    ``[mb, heads, keys, values]``, as ``[mb, heads, queries, values]``; rows whose scores are all -inf are zeros.

    ``mask`` broadcasts to the scores. ``causal``: a query sees no key after its own place. ``scale`` is one over the
    root of ``size`` where None. No gradients are recorded, as of matmul. Raises InvalidArgument for shapes that do not
    fit each other.
    """
    shape = (*q.shape[:3], k.shape[2]) if q.ndim == k.ndim == v.ndim == 4 else ()
    if not shape or k.shape != (*shape[:2], shape[3], q.shape[3]) or v.shape[:3] != k.shape[:3]:
        raise InvalidArgument(
            "attention takes q [mb, heads, queries, size], k [mb, heads, keys, size] and v [mb, heads, keys, values], "
            f"got {q.shape}, {k.shape} and {v.shape}"
        )
    factor = q.shape[3] ** -0.5 if scale is None else float(scale)
    return _attention(q, k, v, None if mask is None else mask.expand(*shape), causal, factor).transpose(0, 2, 1, 3)


@operation
def _attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, causal: bool, scale: float) -> Tensor:
    """Return attention as ``[mb, queries, heads, values]``, the layout that joining the heads needs."""
    mb, heads, queries, _ = q.shape
    if not mb * heads * queries * v.shape[3] * k.shape[2]:
        return zeros((mb, queries, heads, v.shape[3]), q.dtype, q.queue)
    launch = _kernel_for(q, k, v, mask, causal, scale)
    if launch is None:
        return dense(_products(q, k, v, mask, causal, scale).transpose(0, 2, 1, 3))  # type: ignore[no-any-return]
    # Neighbouring lanes of the kernel compute neighbouring queries: the mask must be contiguous along them.
    if mask is not None and mask.strides[2] not in (0, mask.dtype.itemsize):
        mask = dense(mask.transpose(0, 1, 3, 2)).transpose(0, 1, 3, 2)
        launch = _kernel_for(q, k, v, mask, causal, scale)
    y = Tensor.empty((mb, queries, heads, v.shape[3]), q.dtype, q.queue)
    arrays = (q, k, v, q if mask is None else mask)
    memory_and_offsets = [part for t in arrays for part in (t.base_data, np.int64(t.offset // t.dtype.itemsize))]
    launch(q.queue, (*memory_and_offsets, y.base_data))
    return y


def _products(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, causal: bool, scale: float) -> Tensor:
    scores = matmul(apply("x * a", x=q, a=scale), k.transpose(0, 1, 3, 2))
    if mask is not None:
        scores = apply("x + m", x=scores, m=mask)
    if causal:
        hidden = np.triu(np.full(scores.shape[2:], -np.inf, scores.dtype), 1)
        scores = apply("x + m", x=scores, m=Tensor.from_numpy(hidden, scores.queue))
    maximum = reduce("max", "x", (3,), keepdims=True, x=scores)
    lowest = -3.4e38 if q.dtype.itemsize == 4 else -1.7e308
    weights = apply("where(m < b, 0, y)", m=maximum, y=softmax(scores, -1), b=lowest)
    return matmul(weights, v)


def is_attention_in_caches(q: Tensor, k: Tensor, v: Tensor) -> bool:
    """Whether attention to these keeps its scores in caches: float32 on a CPU, sizes that a block's memory holds."""
    return all(t.dtype == np.float32 for t in (q, k, v)) and bool(_vectors(q, v))


def _vectors(q: Tensor, v: Tensor) -> int:
    """Vectors of queries of a block, 0 where there is no kernel."""
    info, lanes = runtime.device_info(q.queue.device), _lanes(q)
    (mb, heads, queries, size), values = q.shape, v.shape[3]

    def cost(vectors: int) -> float:
        groups = mb * heads * -(-queries // (vectors * lanes))
        return -(-groups // info.compute_units) * (vectors + _FIXED)

    fit = [n for n in (3, 2, 1) if 4 * (size + values + _TILE) * n * lanes <= info.local_mem_size]
    return min(fit, key=cost, default=0) if info.type == "cpu" else 0


def _lanes(q: Tensor) -> int:
    return 16 if runtime.device_info(q.queue.device).simd_width >= 16 else 8


def _kernel_for(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, causal: bool, scale: float) -> Launch | None:
    """The kernel, where there is one for these operands."""
    arrays = [t for t in (q, k, v, mask) if t is not None]
    if not is_attention_in_caches(q, k, v) or any(t.dtype != np.float32 for t in arrays):
        return None
    strides = [stride // 4 for t in arrays for stride in t.strides]
    parts = {
        "lanes": _lanes(q),
        "nv": _vectors(q, v),
        "tile": _TILE,
        "size": q.shape[3],
        "values": v.shape[3],
        "dense": strides[7] == strides[11] == 1,
        "masked": mask is not None,
        "causal": causal,
    }
    sizes = (*q.shape[:3], k.shape[2])
    return _launch(q.context, tuple(parts.items()), sizes, scale, tuple(strides))  # type: ignore[no-any-return]


@keeps_programs
def _launch(
    context: cl.Context,
    parts: tuple[tuple[str, Any], ...],
    sizes: tuple[int, ...],
    scale: float,
    strides: tuple[int, ...],
) -> Launch:
    """Sizes that no loop is unrolled by are numbers of a launch, so that places of all numbers share a program."""
    values, (mb, heads, queries, keys) = dict(parts), sizes
    # A kernel with 3 vectors per row has as many accumulators as the registers hold.
    values["rows"] = values["lanes"] // 2
    program = build(context, config_macros(values) + kernel_text(__package__, "attention.cl"))
    operands = tuple(f"a{i}" for i in range(9))
    numbers = [np.int32(heads), np.int32(queries), np.int32(keys), np.float32(scale)]
    numbers += [np.int64(stride) for stride in (*strides, 0, 0, 0, 0)[:16]]
    groups = mb * heads * -(-queries // (values["nv"] * values["lanes"]))
    return Launch(program, "attention", (groups,), (1,), (*operands, *numbers), names=operands)
