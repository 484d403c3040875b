"""Indices of the largest and smallest elements along an axis: ``argmax`` and ``topk``."""

from __future__ import annotations

import functools
import math

import numpy as np
import pyopencl as cl

from ..api.errors import InvalidArgument
from ..device.programs.kernels import Launch, build
from ..device.tracing import operation
from .codegen.elements import element, kind_of, prelude
from .gathering import take_along_axis
from .joining import concatenate
from .recorded import apply
from .tensor import Tensor

_MOST = 1 << 15
"""The most elements of a row that one launch ranks against each other; longer rows are ranked piece by piece."""
_ARGMAX = """\
kernel void argmax(global const {store} *restrict x, const long offset, global long *restrict y) {{
  const long inner = get_global_id(0), outer = get_global_id(1);
  const long start = offset + outer * {size} * {inner} + inner;
  {kind} best = {first};
  long place = 0;
  for (long i = 1; i < {size}; ++i) {{
    const {kind} v = {value};
    if (v {better} best || (v != v && {first_nan})) {{ best = v; place = i; }}
  }}
  y[outer * {inner} + inner] = place;
}}
"""
# An element's rank is the number of elements before it: larger ones (NaN is the largest), and earlier equal ones.
_TOPK = """\
kernel void topk(global const {store} *restrict x, const long offset, global {store} *restrict values,
                 global long *restrict places) {{
  const long i = get_global_id(0), row = get_global_id(1);
  const long start = offset + row * {size};
  const {kind} mine = {mine};
  long rank = 0;
  for (long j = 0; j < {size}; ++j) {{
    const {kind} other = {other};
    const int before = other {better} mine || (other != other && mine == mine);
    rank += before || ((other == mine || (other != other && mine != mine)) && j < i);
  }}
  if (rank < {k}) {{
    values[row * {k} + rank] = x[start + i];
    places[row * {k} + rank] = i;
  }}
}}
"""


@operation
def argmax(x: Tensor, axis: int, *, keepdims: bool = False, last: bool = False, largest: bool = True) -> Tensor:
    """The place of the largest (or smallest) element along ``axis``, the first (or ``last``) of equal ones; int64.

    NaN is largest and smallest, as NumPy has it.

    Raises InvalidArgument for an axis without elements.
    """
    axis %= x.ndim
    if not x.shape[axis]:
        raise InvalidArgument(f"argmax needs at least one element along axis {axis}, got shape {x.shape}")
    shape = (*x.shape[:axis], *((1,) if keepdims else ()), *x.shape[axis + 1 :])
    y = Tensor.empty(shape, np.int64, x.queue)
    if not y.size:
        return y
    x = x if x.contiguous else x.copy()
    better = (">" if largest else "<") + ("=" if last else "")
    inner = math.prod(x.shape[axis + 1 :])
    launch = _argmax(x.context, x.dtype, x.shape[axis], inner, y.size // inner, better)
    launch(x.queue, (x.base_data, np.int64(x.offset // x.dtype.itemsize), y.base_data))
    return y


@functools.lru_cache(maxsize=256)
def _argmax(context: cl.Context, dtype: np.dtype, size: int, inner: int, outer: int, better: str) -> Launch:
    store, kind = element(dtype), kind_of([dtype], True)
    text = prelude([dtype], kind) + _ARGMAX.format(
        store=store.storage, kind=kind, size=size, inner=inner, better=better,
        first_nan="1" if better.endswith("=") else "best == best",
        first=store.load.format(p="x", i="start"), value=store.load.format(p="x", i=f"(start + i * {inner})"),
    )  # fmt: skip
    names = ("x", "offset", "y")
    return Launch(build(context, text), "argmax", (inner, outer), None, " ".join(names), names=names)


@operation
def topk(x: Tensor, k: int, axis: int = -1, *, largest: bool = True) -> tuple[Tensor, Tensor]:
    """The ``k`` largest (or smallest) elements along ``axis``, best first, and their places (int64); of equal ones
    those that stand first.

    Raises InvalidArgument for a k that the axis does not hold.
    """
    axis %= x.ndim
    if not 0 <= k <= x.shape[axis]:
        raise InvalidArgument(f"k is 0 to {x.shape[axis]}, the elements along axis {axis}, got {k}")
    order = [a for a in range(x.ndim) if a != axis] + [axis]
    back = [order.index(a) for a in range(x.ndim)]
    rows = x.transpose(*order)
    rows = rows if rows.contiguous else rows.copy()
    values, places = _rows(rows, k, largest)
    return values.transpose(*back), places.transpose(*back)


def _rows(x: Tensor, k: int, largest: bool) -> tuple[Tensor, Tensor]:
    *outer, size = x.shape
    if size > max(_MOST, 4 * k):
        return _by_pieces(x, k, largest)
    values, places = (Tensor.empty((*outer, k), dtype, x.queue) for dtype in (x.dtype, np.dtype(np.int64)))
    if values.size:
        launch = _topk(x.context, x.dtype, size, k, math.prod(outer), largest)
        launch(x.queue, (x.base_data, np.int64(x.offset // x.dtype.itemsize), values.base_data, places.base_data))
    return values, places


def _by_pieces(x: Tensor, k: int, largest: bool) -> tuple[Tensor, Tensor]:
    """The best of the best of each piece; pieces stand in order, so that the first of equal ones stays first."""
    found = []
    share = max(_MOST, 2 * k)
    for start in range(0, x.shape[-1], share):
        piece = x[..., start : start + share].copy()
        values, places = _rows(piece, min(k, piece.shape[-1]), largest)
        found.append((values, apply("p + start", p=places, start=start)))
    values, places = (concatenate(parts, -1) for parts in zip(*found, strict=True))
    best, at = _rows(values, k, largest)
    return best, take_along_axis(places, at, -1)


@functools.lru_cache(maxsize=256)
def _topk(context: cl.Context, dtype: np.dtype, size: int, k: int, rows: int, largest: bool) -> Launch:
    store, kind = element(dtype), kind_of([dtype], True)
    text = prelude([dtype], kind) + _TOPK.format(
        store=store.storage, kind=kind, size=size, k=k, better=">" if largest else "<",
        mine=store.load.format(p="x", i="(start + i)"), other=store.load.format(p="x", i="(start + j)"),
    )  # fmt: skip
    names = ("x", "offset", "values", "places")
    return Launch(build(context, text), "topk", (size, rows), None, " ".join(names), names=names)
