"""Elements chosen by indices that a kernel reads: whole slices along an axis, or one element for each index.

An index counts from the end where it is negative. One outside the axis reads its nearest end: memory beyond the tensor
is never touched, whatever the indices hold.
"""

from __future__ import annotations

import functools
import math

import numpy as np
import pyopencl as cl

from ..api.errors import InvalidArgument
from ..device import runtime
from ..device.programs.kernels import Launch, build
from ..device.tracing import operation
from .codegen.elements import element
from .tensor import Tensor

_GROUP = 256
_BITS = {1: "uchar", 2: "ushort", 4: "uint", 8: "ulong"}
_TEXT = """\
kernel void gather(global const {bits} *restrict x, const long offset, global const {index} *restrict index,
                   const long index_offset, global {bits} *restrict y) {{
  const ulong item = get_global_id(0);
  if (item >= {total}ul) return;
  const long inner = item % {inner}, at = item / {inner} % {count}, outer = item / {inner} / {count};
  long j = index[index_offset + {place}];
  j = clamp(j < 0 ? j + {size}l : j, 0l, {size}l - 1);
  y[item] = x[offset + (outer * {size}l + j) * {inner} + inner];
}}
"""


@operation
def take(x: Tensor, indices: Tensor, axis: int = 0) -> Tensor:
    """The slices of x along ``axis`` that ``indices`` (integers of any shape) name: NumPy's take.

    Raises InvalidArgument for indices that are no integers, and for an axis without elements.
    """
    axis %= x.ndim
    shape = (*x.shape[:axis], *indices.shape, *x.shape[axis + 1 :])
    return _gather("at", x, indices, axis, shape, indices.size)


@operation
def take_along_axis(x: Tensor, indices: Tensor, axis: int) -> Tensor:
    """``y[a, b, c] = x[a, indices[a, b, c], c]`` for axis 1 and so on; other axes as x has them.

    Raises InvalidArgument for shapes that do not fit.
    """
    axis %= x.ndim
    other_axes = [tuple(size for a, size in enumerate(t.shape) if a != axis) for t in (x, indices)]
    if other_axes[0] != other_axes[1]:
        raise InvalidArgument(f"indices must have x's shape {x.shape} but along axis {axis}, got {indices.shape}")
    return _gather("item", x, indices, axis, indices.shape, indices.shape[axis])


def _gather(place: str, x: Tensor, indices: Tensor, axis: int, shape: tuple[int, ...], count: int) -> Tensor:
    """The index of an element is at ``place`` of the indices: ``at``, its place along the axis, or its own."""
    if indices.dtype.kind not in "iu":
        raise InvalidArgument(f"indices must be integers, got {indices.dtype.name}")
    if math.prod(shape) and not x.shape[axis]:
        raise InvalidArgument(f"there is nothing to take along axis {axis} of shape {x.shape}")
    y = Tensor.empty(shape, x.dtype, x.queue)
    if not y.size:
        return y
    x, indices = (t if t.contiguous else t.copy() for t in (x, indices))
    inner_size = math.prod(x.shape[axis + 1 :])
    values = (y.size, inner_size, count, x.shape[axis])
    launch = _launch(x.context, place, x.dtype.itemsize, element(indices.dtype).storage, values)
    starts = (np.int64(t.offset // t.dtype.itemsize) for t in (x, indices))
    launch(x.queue, (x.base_data, next(starts), indices.base_data, next(starts), y.base_data))
    return y


@functools.lru_cache(maxsize=512)
def _launch(context: cl.Context, place: str, itemsize: int, index: str, values: tuple[int, ...]) -> Launch:
    total, inner, count, size = values
    numbers = {"total": total, "inner": inner, "count": count, "size": size}
    text = _TEXT.format(bits=_BITS[itemsize], index=index, place=place, **numbers)
    group = _GROUP if runtime.device_info(context.devices[0]).type != "cpu" else min(_GROUP, total)
    names = ("x", "offset", "index", "index_offset", "y")
    work = -(-total // group) * group
    return Launch(build(context, text), "gather", (work,), (group,), " ".join(names), names=names)
