"""Copies a strided view of device memory into contiguous memory, elements of any type."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pyopencl as cl

from ...api.errors import InvalidArgument
from ..opencl.platforms import device_info
from .kernels import Launch, build, config_macros, keeps_programs, kernel_text

_AXES = 8
_CPU_ITEM_ELEMENTS = 4096
"""Elements that a CPU's work item copies, because starting it costs as much as copying some hundred elements."""
_TYPES = {1: "uchar", 2: "ushort", 4: "uint", 8: "ulong", 16: "ulong2"}


def copy_strided(
    queue: cl.CommandQueue,
    source: cl.MemoryObject,
    offset: int,
    shape: Sequence[int],
    strides: Sequence[int],
    itemsize: int,
    target: cl.MemoryObject,
) -> cl.Event:
    """Enqueue a row-major copy of the view of ``source`` with this ``offset`` and ``strides`` (bytes) and ``shape``.

    ``offset`` and ``strides`` are multiples of ``itemsize`` (1, 2, 4, 8 or 16 bytes), and the view has at least one
    element. Raises InvalidArgument for more than eight axes or another size.
    """
    if len(shape) > _AXES or itemsize not in _TYPES:
        raise InvalidArgument(
            f"a strided copy takes up to {_AXES} axes of elements of {', '.join(map(str, _TYPES))} bytes, "
            f"got {len(shape)} axes of {itemsize} bytes"
        )
    axes, size = _merged(shape, strides), math.prod(shape)
    axes = [(1, 0)] * (_AXES - len(axes)) + axes
    scalars = (offset // itemsize, size, *(n for n, _ in axes[1:]), *(stride // itemsize for _, stride in axes))
    return _launch(queue.context, itemsize, size)(queue, (source, *map(np.int64, scalars), target, np.int64(0)))


def copy_bytes(
    queue: cl.CommandQueue,
    target: cl.MemoryObject,
    source: cl.MemoryObject,
    size: int,
    source_offset: int = 0,
    target_offset: int = 0,
) -> cl.Event:
    """Enqueue a copy of bytes as ``runtime.copy`` does, but by a kernel."""
    itemsize = math.gcd(16, size, source_offset, target_offset)
    count = size // itemsize
    scalars = (source_offset // itemsize, count, *[1] * (_AXES - 2), count, *[0] * (_AXES - 1), 1)
    begin = np.int64(target_offset // itemsize)
    return _launch(queue.context, itemsize, count)(queue, (source, *map(np.int64, scalars), target, begin))


def _merged(shape: Sequence[int], strides: Sequence[int]) -> list[tuple[int, int]]:
    """Sizes and strides of the same elements with fewer axes: contiguous neighbouring axes are merged into one."""
    merged: list[tuple[int, int]] = []
    for size, stride in zip(shape, strides, strict=True):
        if merged and merged[-1][1] == size * stride:
            merged[-1] = merged[-1][0] * size, stride
        elif size > 1:
            merged.append((size, stride))
    return merged


@keeps_programs
def _launch(context: cl.Context, itemsize: int, size: int) -> Launch:
    run = _CPU_ITEM_ELEMENTS if device_info(context.devices[0]).type == "cpu" else 1
    text = config_macros({"bits": _TYPES[itemsize], "run": run}) + kernel_text(__package__, "strided_copy.cl")
    names = ("x", "offset", "size", *(f"n{a}" for a in range(1, _AXES)), *(f"s{a}" for a in range(_AXES)), "y", "begin")
    sizes, local = ((size,), None) if run == 1 else ((-(-size // run), 1, 1), (1, 1, 1))
    return Launch(build(context, text), "strided", sizes, local, " ".join(names), names=names)
