"""Defines how generated kernels store, load and compute with each element type."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ...api.dtypes import bfloat16_conversions
from ...api.errors import InvalidArgument


class Element(NamedTuple):
    """One element type in OpenCL C; ``{p}`` is a pointer, ``{i}`` an index, ``{v}`` a value."""

    storage: str
    load: str = "{p}[{i}]"
    store: str = "{p}[{i}] = {v}"


_ELEMENTS = {
    "bool": Element("uchar", store="{p}[{i}] = ({v}) != 0"),
    "int8": Element("char"),
    "uint8": Element("uchar"),
    "int16": Element("short"),
    "uint16": Element("ushort"),
    "int32": Element("int"),
    "uint32": Element("uint"),
    "int64": Element("long"),
    "uint64": Element("ulong"),
    "float16": Element("half", "vload_half({i}, {p})", "vstore_half_rte({v}, {i}, {p})"),
    "bfloat16": Element("ushort", "convert_as_bfloat16_float({p}[{i}])", "{p}[{i}] = convert_bfloat16_as_ushort({v})"),
    "float32": Element("float"),
    "float64": Element("double"),
}
_FLOORDIV = """\
inline long floordiv(long a, long b) {
  const long q = b ? a / b : 0;
  return b && (a % b != 0) && ((a < 0) != (b < 0)) ? q - 1 : q;
}
"""


def element(dtype: np.dtype) -> Element:
    """Return how ``dtype`` is stored in memory and loaded by kernels. Raises InvalidArgument for one that kernels
    cannot hold."""
    known_element = _ELEMENTS.get(dtype.name)
    if known_element is None:
        raise InvalidArgument(f"element-wise kernels take {', '.join(_ELEMENTS)}, got {dtype.name}")
    return known_element


def kind_of(dtypes: list[np.dtype], integral: bool) -> str:
    """The type that a kernel computes in: long for integers alone, double if any operand is, else float."""
    if any(dtype.name == "float64" for dtype in dtypes):
        return "double"
    if integral and all(dtype.kind in "iub" for dtype in dtypes):
        return "long"
    return "float"


def prelude(dtypes: list[np.dtype], kind: str) -> str:
    """Return the OpenCL source that a kernel over these element types needs before it."""
    text = ""
    if kind == "double" or any(dtype.name == "float64" for dtype in dtypes):
        text += "#pragma OPENCL EXTENSION cl_khr_fp64 : enable\n"
    if any(dtype.name == "bfloat16" for dtype in dtypes):
        text += bfloat16_conversions()
    return text + (_FLOORDIV if kind == "long" else "")
