"""Checks for the arrays that a call takes, and conversions of operands to the first input's kind.

An object with ``__dlpack__`` alone cannot create others of its kind. So on the host it is used as a NumPy view of its
memory, and the result is NumPy's; together with another library's array it becomes an array of that library.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from ...api.errors import InvalidArgument
from ...selection.prepared import Constant
from .array_library import Library
from .known_libraries import BARE, library_of


def is_array(value: Any) -> bool:
    """Whether ``value`` is one of the arrays that the calls take, or constant weights."""
    return (
        isinstance(value, np.ndarray | Constant) or hasattr(value, "base_data") or library_of(type(value)) is not None
    )


def shape_of(array: Any, name: str) -> tuple[int, ...]:
    """An operand's shape. Raises InvalidArgument for an object that is no array."""
    if not is_array(array):
        raise InvalidArgument(
            f"{name} must be a NumPy array, a pyopencl.array.Array, a Tensor, or another library's array with "
            f"__dlpack__, got {type(array).__name__}"
        )
    return tuple(array.shape)


def refuse_mask(name: str, array: Any) -> None:
    """Raises InvalidArgument for a masked array, because the values that its mask hides would be used too."""
    masked = sys.modules.get("numpy.ma")  # numpy.ma is imported when the first masked array is made
    if masked is not None and isinstance(array, masked.MaskedArray):
        raise InvalidArgument(f"{name} must be an array without a mask, got a masked array: pass its .filled(0)")


def with_kind_of(given: Sequence[Any], input1: Any, written: int) -> tuple[Any, ...] | None:
    """The operands as arrays of ``input1``'s kind, without a copy on the host; None if none needs a conversion.

    Raises InvalidArgument for an object with ``__dlpack__`` alone that is on a device, or is constant weights.
    """
    library = library_of(type(input1))
    converted = tuple(
        array if array is None else _converted(array, library, input1, index == written)
        for index, array in enumerate(given)
    )
    return None if all(operand is array for operand, array in zip(converted, given, strict=True)) else converted


def _converted(array: Any, library: Library | None, input1: Any, out: bool) -> Any:
    if type(array) is Constant:
        if library_of(type(array.array)) is BARE:
            kind = type(array.array).__name__
            raise InvalidArgument(f"constant() takes arrays, got {kind}, which has __dlpack__ alone: import it first")
        return array
    if library_of(type(array)) is BARE:
        if library is None or library is BARE:
            return _host_view(array)
        return library.adopted(array, input1)
    if library is not None and library.immutable and isinstance(array, np.ndarray) and not out:
        return library.adopted(array, input1) if array.dtype.name == library.dtype(input1) else array
    return array


def _host_view(array: Any) -> np.ndarray:
    """NumPy's view of the memory of an object with ``__dlpack__`` alone; the view keeps the memory alive."""
    from . import interchange

    kind, number = array.__dlpack_device__()
    if int(kind) != interchange.CPU:
        raise InvalidArgument(
            f"{type(array).__name__} has __dlpack__ alone and lies on DLPack's device ({int(kind)}, {number}): import "
            "it by its device's library, or by Tensor.from_dlpack"
        )
    view, owner = interchange.imported(array.__dlpack__())
    size = interchange.span(view.shape, view.strides, view.dtype)
    memory = (ctypes.c_uint8 * max(size, 1)).from_address(view.address) if size else (ctypes.c_uint8 * 1)()
    memory._owner = owner  # type: ignore[attr-defined]
    return np.ndarray(view.shape, view.dtype, memory, 0, view.strides)
