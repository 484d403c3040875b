"""What a call takes for an array; objects with nothing but DLPack, and NumPy's beside immutable ones, brought in.

An object with ``__dlpack__`` and no array namespace has no words to make another one with, so on the host it counts as
NumPy's view of its memory, and the result is NumPy's; beside another library's array it becomes one of that library's.
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
    """An operand's shape. Raises InvalidArgument for what is no array."""
    if not is_array(array):
        raise InvalidArgument(
            f"{name} must be a NumPy array, a pyopencl.array.Array, a Tensor, or another library's array with "
            f"__dlpack__ or __cuda_array_interface__, got {type(array).__name__}"
        )
    return tuple(array.shape)


def refuse_mask(name: str, array: Any) -> None:
    """Raises InvalidArgument for a masked array: what its mask hides has values too, which would be computed with."""
    masked = sys.modules.get("numpy.ma")  # numpy.ma is imported when the first masked array is made
    if masked is not None and isinstance(array, masked.MaskedArray):
        raise InvalidArgument(f"{name} must be an array without a mask, got a masked array: pass its .filled(0)")


def brought(given: Sequence[Any], lead: Any, written: int) -> tuple[Any, ...] | None:
    """The operands as arrays of ``lead``'s kind, without a copy on the host; None where nothing is to be brought.

    Raises InvalidArgument for a bare object that lies on a device, or is weights promised to be constant.
    """
    library = library_of(type(lead))
    found = tuple(
        array if array is None else _brought(array, library, lead, place == written)
        for place, array in enumerate(given)
    )
    return None if all(new is array for new, array in zip(found, given, strict=True)) else found


def _brought(array: Any, library: Library | None, lead: Any, out: bool) -> Any:
    if type(array) is Constant:
        if library_of(type(array.array)) is BARE:
            kind = type(array.array).__name__
            raise InvalidArgument(f"constant() takes arrays, got {kind}, which has __dlpack__ alone: import it first")
        return array
    if library_of(type(array)) is BARE:
        if library is None or library is BARE:
            return _host_view(array)
        return library.adopted(array, lead)
    if library is not None and library.immutable and isinstance(array, np.ndarray) and not out:
        return library.adopted(array, lead) if array.dtype.name == library.dtype(lead) else array
    return array


def _host_view(array: Any) -> np.ndarray:
    """NumPy's view of a bare object's memory, which lives as long as the view."""
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
