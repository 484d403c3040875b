"""Copies a strided view of device memory into contiguous memory, elements of any type."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from ..api.errors import InvalidArgument
from .kernels import Launch, build, config_macros, keeps_programs, kernel_text

if TYPE_CHECKING:
    import pyopencl as cl

__all__ = ["copy_strided"]

_AXES = 8
_BITS = {1: "uchar", 2: "ushort", 4: "uint", 8: "ulong", 16: "ulong2"}


def copy_strided(
    queue: cl.CommandQueue,
    source: cl.MemoryObject,
    offset: int,
    shape: Sequence[int],
    strides: Sequence[int],
    itemsize: int,
    target: cl.MemoryObject,
) -> cl.Event:
    """Enqueue the copy of the view of ``source`` that ``offset``, ``strides`` (bytes) and ``shape`` say, row-major.

    ``offset`` and ``strides`` are multiples of ``itemsize`` (1, 2, 4, 8 or 16 bytes), and the view has at least one
    element. Raises InvalidArgument for more than eight axes or another size.
    """
    if len(shape) > _AXES or itemsize not in _BITS:
        raise InvalidArgument(
            f"a strided copy takes up to {_AXES} axes of elements of {', '.join(map(str, _BITS))} bytes, "
            f"got {len(shape)} axes of {itemsize} bytes"
        )
    missing = _AXES - len(shape)
    sizes = [1] * missing + list(shape)
    steps = [0] * missing + [stride // itemsize for stride in strides]
    scalars = map(np.int64, (offset // itemsize, *sizes[1:], *steps))
    return _launch(queue.context, itemsize, math.prod(shape))(queue, (source, *scalars, target))


@keeps_programs
def _launch(context: cl.Context, itemsize: int, size: int) -> Launch:
    text = config_macros({"bits": _BITS[itemsize]}) + kernel_text(__package__, "strided.cl")
    names = ("x", "offset", *(f"n{a}" for a in range(1, _AXES)), *(f"s{a}" for a in range(_AXES)), "y")
    return Launch(build(context, text), "strided", (size,), None, " ".join(names), names=names)
