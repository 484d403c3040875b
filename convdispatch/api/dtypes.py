"""The element types: one table of their names, sizes and how OpenCL C stores and accumulates them."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["DTYPES", "DType", "storage_macros"]


class DType(NamedTuple):
    """One element type."""

    short: str
    """Name in problem texts: ``f32``."""
    itemsize: int
    """Bytes."""
    storage: str
    """OpenCL C type of an element in memory."""
    accumulator: str
    """OpenCL C type of sums: float32 or wider."""
    epsilon: float
    """Relative rounding error of one stored element."""


DTYPES: dict[str, DType] = {
    "float32": DType("f32", 4, "float", "float", 2.0**-24),
    "float64": DType("f64", 8, "double", "double", 2.0**-53),
    "float16": DType("f16", 2, "half", "float", 2.0**-11),
    "bfloat16": DType("bf16", 2, "ushort", "float", 2.0**-8),
}

# half is only loaded and stored through vload_half and vstore_half, which OpenCL C has without cl_khr_fp16.
# bfloat16 is the upper half of a float; it is rounded to nearest even, and a NaN stays a NaN.
_STORAGE = {
    "float32": """\
#define REAL float
#define ACC float
#define LOAD(p, i) ((p)[i])
#define STORE(p, i, v) ((p)[i] = (v))
""",
    "float64": """\
#pragma OPENCL EXTENSION cl_khr_fp64 : enable
#define REAL double
#define ACC double
#define LOAD(p, i) ((p)[i])
#define STORE(p, i, v) ((p)[i] = (v))
""",
    "float16": """\
#define REAL half
#define ACC float
#define LOAD(p, i) vload_half(i, p)
#define STORE(p, i, v) vstore_half_rte(v, i, p)
""",
    "bfloat16": """\
#define REAL ushort
#define ACC float
inline float load_bfloat16(global const ushort *p, long i) { return as_float((uint)p[i] << 16); }
inline void store_bfloat16(global ushort *p, long i, float v) {
  uint u = as_uint(v);
  p[i] = isnan(v) ? (ushort)((u >> 16) | 64u) : (ushort)((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
}
#define LOAD(p, i) load_bfloat16(p, i)
#define STORE(p, i, v) store_bfloat16(p, i, v)
""",
}


def storage_macros(dtype: str) -> str:
    """OpenCL text for a dtype: ``REAL`` (stored), ``ACC`` (summed), ``LOAD(p, i)`` to ACC, ``STORE(p, i, v)``.

    The dtype's own name in capitals (``FLOAT16``) is 1.
    """
    return f"#define {dtype.upper()} 1\n{_STORAGE[dtype]}"
