"""The element types: one table of their names, sizes, limits, and how OpenCL C stores and accumulates them."""

from __future__ import annotations

import functools
import importlib.resources
from typing import Any, NamedTuple

import numpy as np


class DType(NamedTuple):
    """One element type."""

    short: str
    """The dtype's name in the text of a problem: ``f32``."""
    itemsize: int
    """Bytes of one element."""
    storage: str
    """OpenCL C type of an element in memory."""
    accumulator: str
    """OpenCL C type of sums: float32 or wider."""
    epsilon: float
    """Relative rounding error of one stored element; all integers up to its reciprocal are exact."""
    max_error: float
    """Largest relative error (norm, against float64, standard normal data) of a right result; of float32, the problem's
    ``math`` decides."""
    array_name: str
    """The dtype's name in NumPy (with ml_dtypes), PyTorch and JAX."""
    extension: str = ""
    """The OpenCL extension without which a device cannot store and sum the dtype."""

    @property
    def accumulator_size(self) -> int:
        """Bytes of one sum."""
        return 8 if self.accumulator == "double" else 4

    @property
    def widened(self) -> bool:
        """Whether sums are wider than elements, so that a kernel converts what it reads and writes."""
        return self.itemsize < self.accumulator_size


DTYPES: dict[str, DType] = {
    "float32": DType("f32", 4, "float", "float", 2.0**-24, 1e-5, "float32"),
    "float64": DType("f64", 8, "double", "double", 2.0**-53, 1e-12, "float64", "cl_khr_fp64"),
    "float16": DType("f16", 2, "half", "float", 2.0**-11, 2e-3, "float16"),
    "bfloat16": DType("bf16", 2, "ushort", "float", 2.0**-8, 1e-2, "bfloat16"),
}
FLOATS = frozenset({"float32", "float64", "float16", "bfloat16"})
"""The dtypes of a solver that declares none. A new row of DTYPES is not added here: older solvers do not compute it."""
INTEGERS: dict[str, DType] = {
    "int8": DType("s8", 1, "char", "int", 0.0, 0.0, "int8"),
    "uint8": DType("u8", 1, "uchar", "int", 0.0, 0.0, "uint8"),
}
"""The dtypes of x in a quantized convolution, whose w is int8 and whose sums are int32."""
QUANTIZED: dict[str, DType] = {
    **INTEGERS,
    "int32": DType("s32", 4, "int", "int", 0.0, 0.0, "int32"),
    "float32": DTYPES["float32"],
    "float16": DTYPES["float16"],
}
"""The dtypes of y in a quantized convolution."""
ALL_DTYPES = DTYPES | QUANTIZED
"""The dtypes of x, w and y in any convolution."""
HEADER = 16
"""Words of a quantized convolution's table before the channels' (``quantization.py``)."""

# Without cl_khr_fp16, OpenCL C can only load and store half values, by vload_half and vstore_half. With it, casts
# convert between half and float with the same rounding: Intel's compiler vectorizes casts, but calls a function for
# each vload_half. The conversions of bfloat16 are in bfloat16.cl.
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
#ifdef cl_khr_fp16
#pragma OPENCL EXTENSION cl_khr_fp16 : enable
#define LOAD(p, i) ((float)(p)[i])
#define STORE(p, i, v) ((p)[i] = (half)(v))
#else
#define LOAD(p, i) vload_half(i, p)
#define STORE(p, i, v) vstore_half_rte(v, i, p)
#endif
""",
    "bfloat16": """\
#define REAL ushort
#define ACC float
#define LOAD(p, i) convert_as_bfloat16_float((p)[i])
#define STORE(p, i, v) ((p)[i] = convert_bfloat16_as_ushort(v))
""",
}


def storage_macros(dtype: str, out_dtype: str | None = None) -> str:
    """OpenCL text for a dtype: ``REAL`` (stored), ``ACC`` (summed), ``LOAD(p, i)`` to ACC, ``STORE(p, i, v)``.

    The dtype's own name in capitals (``FLOAT16``) is 1. Of integers: ``REAL`` of x, ``OUT`` of y, and ``OUT_`` with y's
    dtype in capitals, which is 1; ``quantized.cl`` stores them.
    """
    if out_dtype is not None:
        x, y = INTEGERS[dtype], QUANTIZED[out_dtype]
        text = f"#define {dtype.upper()} 1\n#define OUT_{out_dtype.upper()} 1\n#define REAL {x.storage}\n"
        text += f"#define OUT {y.storage}\n#define ACC {x.accumulator}\n"
        return text + (
            "#ifdef cl_khr_fp16\n#pragma OPENCL EXTENSION cl_khr_fp16 : enable\n#endif\n"
            if out_dtype == "float16"
            else ""
        )
    head = bfloat16_conversions() if dtype == "bfloat16" else ""
    return f"{head}#define {dtype.upper()} 1\n{_STORAGE[dtype]}"


@functools.cache
def numpy_dtype(dtype: Any) -> np.dtype:
    """NumPy's dtype, from one or its name, this table's or NumPy's own. Raises TypeError.

    NumPy knows the names of bfloat16 and of the smaller floats once ml_dtypes is imported.
    """
    row = ALL_DTYPES.get(dtype) if isinstance(dtype, str) else None
    name = row.array_name if row else dtype
    try:
        return np.dtype(name)
    except TypeError:
        import ml_dtypes  # noqa: F401

        return np.dtype(name)


@functools.cache
def bfloat16_conversions() -> str:
    """OpenCL text of ``convert_bfloat16_as_ushort`` and ``convert_as_bfloat16_float``, for numbers and vectors."""
    return importlib.resources.files(__package__).joinpath("bfloat16.cl").read_text(encoding="utf-8")
