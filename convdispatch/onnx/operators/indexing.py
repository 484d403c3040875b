"""Elements chosen by indices, known before the net runs or computed by it."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...elementwise import apply, sample, take, take_along_axis
from ...elementwise.tensor import Tensor
from ...nn import functional
from ..call import BoundNode, operator
from .elementwise import formula


@operator("Gather")
def _gather(call: BoundNode) -> Tensor:
    x, indices, axis = call.tensor(0), call.raw(1), call.axis(0)
    if not isinstance(indices, np.ndarray):
        return take(x, indices, axis)  # type: ignore[no-any-return]
    size = x.shape[axis]
    if indices.size and (indices.min() < -size or indices.max() >= size):
        raise call.refuse(f"takes elements {indices.min()} to {indices.max()} of {size}")
    positions = np.where(indices < 0, indices + size, indices).reshape(-1)
    if indices.ndim == 0:
        return x[(*[slice(None)] * axis, int(positions[0]))]
    steps = np.unique(np.diff(positions))
    # Evenly spaced indices are a slice, which is a view and copies nothing.
    if len(positions) and len(steps) <= 1 and (not len(steps) or steps[0] > 0):
        step = int(steps[0]) if len(steps) else 1
        y = x[(*[slice(None)] * axis, slice(int(positions[0]), int(positions[-1]) + 1, step))]
    else:
        y = sample(x, {axis: (positions, None)})
    return y if indices.ndim == 1 else functional.view(y, (*x.shape[:axis], *indices.shape, *x.shape[axis + 1 :]))


@operator("GatherElements")
def _gather_elements(call: BoundNode) -> Tensor:
    x, indices, axis = call.tensor(0), call.tensor(1), call.axis(0)
    if x.ndim != indices.ndim or any(i > n for a, (i, n) in enumerate(zip(indices.shape, x.shape)) if a != axis):
        raise call.refuse(f"takes elements of shape {x.shape} by indices of shape {indices.shape}")
    part = x[tuple(slice(None) if a == axis else slice(0, n) for a, n in enumerate(indices.shape))]
    return take_along_axis(part, indices, axis)  # type: ignore[no-any-return]


@operator("GatherND")
def _gather_nd(call: BoundNode) -> Tensor:
    """A place of one number for each tuple of indices, and one take along the axes as one."""
    x, indices, batch = call.tensor(0), call.tensor(1), call.get("batch_dims", 0)
    depth = indices.shape[-1]
    inner_shape, batch_shape = x.shape[batch + depth :], x.shape[:batch]
    text, index_by_name = "", {}
    for dimension in range(depth):
        size = x.shape[batch + dimension]
        index_by_name[f"i{dimension}"] = indices[..., dimension]
        wrapped = f"where(i{dimension} < 0, i{dimension} + {size}, i{dimension})"
        text = wrapped if not text else f"({text}) * {size} + {wrapped}"
    rows = int(np.prod(x.shape[batch : batch + depth]))
    flat = apply(text, dtype=np.int64, **index_by_name)
    if batch:
        each = np.arange(int(np.prod(batch_shape))).reshape(*batch_shape, *[1] * (flat.ndim - batch)) * rows
        flat = apply("f + e", f=flat, e=call.upload(each))
    everything = functional.view(x, (int(np.prod(batch_shape)) * rows, *inner_shape))
    return take(everything, flat, 0)  # type: ignore[no-any-return]


@operator("OneHot")
def _one_hot(call: BoundNode) -> Tensor:
    indices, depth = call.tensor(0), call.ints(1)[0]
    off, on = call.known(2)
    ndim = indices.ndim + 1
    axis = call.get("axis", -1) % ndim
    shape = [1] * ndim
    shape[axis] = depth
    numbers = call.upload(np.arange(depth, dtype=np.int64).reshape(shape))
    wide = indices[tuple(None if a == axis else slice(None) for a in range(ndim))]
    text = f"where(i == n or i + {depth} == n, on, off)"
    dtype = np.dtype(call.raw(2).dtype)
    return formula(call, text, dtype, i=wide, n=numbers, on=on.item(), off=off.item())


@operator("ConstantOfShape", "Range", "EyeLike")
def _made_of_shapes(call: BoundNode) -> Any:
    for index in range(len(call.operands)):
        call.known(index)
    raise call.refuse("could not be computed when the net was built")
