"""Checks for the arrays that a call takes, and conversions of operands to the first input's kind."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from ...api.errors import InvalidArgument
from ...selection.prepared import Constant
from .array_library import Library
from .known_libraries import library_of


def is_array(value: Any) -> bool:
    """Whether ``value`` is one of the arrays that the calls take, or constant weights."""
    plain = value.array if type(value) is Constant else value
    return isinstance(plain, np.ndarray) or hasattr(plain, "base_data") or library_of(type(plain)) is not None


def shape_of(array: Any, name: str) -> tuple[int, ...]:
    """An operand's shape. Raises InvalidArgument for an object that is no array."""
    if not is_array(array):
        raise InvalidArgument(
            f"{name} must be a NumPy array, a pyopencl.array.Array, a Tensor, or another library's array with "
            f"__array_namespace__ (of an object with __dlpack__ alone, numpy.from_dlpack makes an array), got "
            f"{type(array).__name__}"
        )
    return tuple(array.shape)


def refuse_mask(name: str, array: Any) -> None:
    """Raises InvalidArgument for a masked array, because the values that its mask hides would be used too."""
    masked = sys.modules.get("numpy.ma")  # numpy.ma is imported when the first masked array is made
    if masked is not None and isinstance(array, masked.MaskedArray):
        raise InvalidArgument(f"{name} must be an array without a mask, got a masked array: pass its .filled(0)")


def with_kind_of(given: Sequence[Any], library: Library | None, input1: Any, written: int) -> tuple[Any, ...] | None:
    """The operands with NumPy's arrays as arrays of ``library``, that of ``input1``, if its arrays are immutable; None
    if none needs a conversion. The one at ``written`` and those of another dtype stay, to be refused."""
    if library is None or not library.immutable:
        return None
    converted = list(given)
    for index, array in enumerate(given):
        if isinstance(array, np.ndarray) and index != written and array.dtype.name == library.dtype(input1):
            converted[index] = library.adopted(array, input1)
    return None if all(operand is array for operand, array in zip(converted, given, strict=True)) else tuple(converted)
