"""Shapes and places: what only looks at memory differently, and what moves it."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from ...elementwise import apply, sample, take, take_along_axis
from ...elementwise.tensor import Tensor
from ...nn import functional
from ..call import BoundNode, operator
from .elementwise import formula, scalar


@operator("Reshape")
def _reshape(call: BoundNode) -> Tensor:
    x, shape = call.tensor(0), list(call.either("shape", 1))
    if not call.get("allowzero", 0):
        shape = [x.shape[i] if size == 0 and i < x.ndim else size for i, size in enumerate(shape)]
    if shape.count(-1) == 1:
        known_size = math.prod(size for size in shape if size != -1)
        if not known_size or x.size % known_size:
            raise call.refuse(f"cannot view shape {x.shape} as {shape}")
        shape[shape.index(-1)] = x.size // known_size
    if -1 in shape or math.prod(shape) != x.size:
        raise call.refuse(f"cannot view shape {x.shape} as {shape}")
    return functional.view(x, shape)


@operator("Flatten")
def _flatten(call: BoundNode) -> Tensor:
    x, axis = call.tensor(0), call.axis(1)
    return functional.view(x, (math.prod(x.shape[:axis]), math.prod(x.shape[axis:])))


@operator("Squeeze")
def _squeeze(call: BoundNode) -> Tensor:
    x, axes = call.tensor(0), call.either("axes", 1)
    gone = {a % x.ndim for a in axes} if axes is not None else {a for a, size in enumerate(x.shape) if size == 1}
    if any(x.shape[a] != 1 for a in gone):
        raise call.refuse(f"squeezes axes {sorted(gone)} of shape {x.shape}")
    return x[tuple(0 if a in gone else slice(None) for a in range(x.ndim))]


@operator("Unsqueeze")
def _unsqueeze(call: BoundNode) -> Tensor:
    x, axes = call.tensor(0), call.either("axes", 1)
    ndim = x.ndim + len(axes)
    new = {a + ndim if a < 0 else a for a in axes}
    if len(new) != len(axes) or any(not 0 <= a < ndim for a in new):
        raise call.refuse(f"needs different axes among {ndim}, got {list(axes)}")
    return x[tuple(None if a in new else slice(None) for a in range(ndim))]


@operator("Transpose")
def _transpose(call: BoundNode) -> Tensor:
    x = call.tensor(0)
    return x.transpose(*call.get("perm", range(x.ndim)[::-1])) if x.ndim else x


@operator("Expand")
def _expand(call: BoundNode) -> Tensor:
    x = call.tensor(0)
    return x.expand(*np.broadcast_shapes(x.shape, tuple(call.ints(1))))


@operator("Tile")
def _tile(call: BoundNode) -> Tensor:
    x, repeats = call.tensor(0), call.ints(1)
    if len(repeats) != x.ndim:
        raise call.refuse(f"needs {x.ndim} repeats, got {repeats}")
    wide = x[tuple(part for _ in range(x.ndim) for part in (None, slice(None)))]
    pairs = [size for pair in zip(repeats, x.shape, strict=True) for size in pair]
    return functional.view(wide.expand(*pairs), [r * n for r, n in zip(repeats, x.shape, strict=True)])


@operator("Concat")
def _concat(call: BoundNode) -> Tensor:
    tensors = [call.tensor(index) for index in range(len(call.operands))]
    full = [t for t in tensors if t.size] or tensors[:1]
    if len(full) == 1:
        return full[0]
    return functional.concatenate(full, axis=call.axis(1 if call.opset < 4 else 0))


@operator("Split")
def _split(call: BoundNode) -> list[Tensor]:
    x, axis, count = call.tensor(0), call.axis(0), len(call.node.output)
    sizes = call.either("split", 1)
    if sizes is None:
        share = -(-x.shape[axis] // count)
        sizes = [max(0, min(share, x.shape[axis] - i * share)) for i in range(count)]
    if sum(sizes) != x.shape[axis] or min(sizes) < 0:
        raise call.refuse(f"splits {x.shape[axis]} elements into {list(sizes)}")
    starts = np.cumsum([0, *sizes]).tolist()
    leading_slices = (slice(None),) * axis
    return [x[(*leading_slices, slice(a, b))] for a, b in itertools.pairwise(starts)]


@operator("Slice")
def _slice(call: BoundNode) -> Tensor:
    x = call.tensor(0)
    starts, ends = call.either("starts", 1), call.either("ends", 2)
    axes = call.either("axes", 3) or list(range(len(starts)))
    steps = call.ints(4) if call.has(4) else [1] * len(starts)
    keys = [slice(None)] * x.ndim
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        axis = axis + x.ndim if axis < 0 else axis
        if step == 0 or not 0 <= axis < x.ndim:
            raise call.refuse(f"slices axis {axis} of shape {x.shape} in steps of {step}")
        # Exporters write "to the beginning" of a backward slice as an end far below 0.
        low = None if step < 0 and end < -x.shape[axis] else end
        keys[axis] = slice(start, low, step)
    return x[tuple(keys)]


@operator("DepthToSpace")
def _depth_to_space(call: BoundNode) -> Tensor:
    x, b = call.tensor(0), call.get("blocksize")
    n, c, h, w = x.shape
    if call.word("mode", ("DCR", "CRD")) == "DCR":
        y = functional.view(x, (n, b, b, c // (b * b), h, w)).transpose(0, 3, 4, 1, 5, 2)
    else:
        y = functional.view(x, (n, c // (b * b), b, b, h, w)).transpose(0, 1, 4, 2, 5, 3)
    return functional.view(y, (n, c // (b * b), h * b, w * b))


@operator("SpaceToDepth")
def _space_to_depth(call: BoundNode) -> Tensor:
    x, b = call.tensor(0), call.get("blocksize")
    n, c, h, w = x.shape
    y = functional.view(x, (n, c, h // b, b, w // b, b))
    order = (0, 3, 5, 1, 2, 4) if call.word("mode", ("DCR", "CRD")) == "DCR" else (0, 1, 3, 5, 2, 4)
    return functional.view(y.transpose(*order), (n, c * b * b, h // b, w // b))


def _places(size: int, before: int, after: int, mode: str) -> np.ndarray:
    """Which element of an axis each of the padded one is; -1 for the constant."""
    positions = np.arange(-before, size + after)
    inside = (positions >= 0) & (positions < size)
    if mode == "constant":
        return np.where(inside, positions, -1)
    if mode == "edge":
        return np.clip(positions, 0, size - 1)
    if mode == "wrap":
        return positions % size
    period = max(1, 2 * (size - 1))
    back = positions % period
    return np.where(back < size, back, period - back) if size > 1 else np.zeros_like(positions)


def padded(x: Tensor, pads: Mapping[int, tuple[int, int]], mode: str, value: float) -> Tensor:
    """x with (near, far) more along axes; negative ones leave elements out."""
    tables = {
        axis: (_places(x.shape[axis], before, after, mode), None)
        for axis, (before, after) in pads.items()
        if before or after
    }
    return sample(x, tables, value) if tables else x


@operator("Pad")
def _pad(call: BoundNode) -> Any:
    x, mode = call.tensor(0), call.get("mode", "constant")
    pads = call.either("pads", 1, call.get("paddings"))
    value: Any = call.get("value", 0.0)
    if call.opset >= 11:
        value = call.raw(2) if call.has(2) else 0
        value = call.known(2).item() if call.has(2) and call.known(2).size else 0 if scalar(value) is None else value
    axes = [a % x.ndim for a in call.ints(3)] if call.has(3) else list(range(x.ndim))
    if len(pads) != 2 * len(axes):
        raise call.refuse(f"needs {2 * len(axes)} pads, got {list(pads)}")
    pairs = {a: (pads[i], pads[i + len(axes)]) for i, a in enumerate(axes)}
    shape = [n + sum(pairs.get(a, (0, 0))) for a, n in enumerate(x.shape)]
    if min(shape, default=0) < 0:
        raise call.refuse(f"leaves a shape {shape}")
    if not x.size and mode == "constant":
        return np.full(shape, value, x.dtype)
    if mode == "reflect" and any(max(p) >= max(2, x.shape[a]) and x.shape[a] < 1 for a, p in pairs.items()):
        raise call.refuse(f"reflects more than shape {x.shape} has")
    return padded(x, pairs, mode, value)


@operator("Trilu")
def _triangle(call: BoundNode) -> Tensor:
    x, k = call.tensor(0), call.ints(1)[0] if call.has(1) else 0
    mask = np.tri(*x.shape[-2:], k=k if not call.get("upper", 1) else k - 1, dtype=bool)
    mask = ~mask if call.get("upper", 1) else mask
    return apply("where(m, x, 0)", m=call.upload(mask), x=x, dtype=x.dtype)  # type: ignore[no-any-return]


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
