"""The element types: one table of their names, sizes, limits, and how OpenCL C stores and accumulates them."""

from __future__ import annotations

import functools
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
    """The largest relative error (norm, against float64, standard normal data) of a correct result; for float32, the
    problem's ``math`` decides."""
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
"""Integers of 8 bits: the dtypes of x in a quantized convolution whose w is int8 and whose sums are int32."""
FLOAT8: dict[str, DType] = {
    "float8_e4m3": DType("f8_e4m3", 1, "uchar", "float", 2.0**-4, 1e-2, "float8_e4m3fn"),
    "float8_e5m2": DType("f8_e5m2", 1, "uchar", "float", 2.0**-3, 1e-2, "float8_e5m2"),
}
"""Floats of 8 bits: the dtypes of x and w in a quantized convolution whose sums are float32. Errors are relative to the
rounded result."""
QUANTIZED_INPUTS = INTEGERS | FLOAT8
"""The dtypes of x in a quantized convolution."""
_INT32 = DType("s32", 4, "int", "int", 0.0, 0.0, "int32")
OUTPUTS: dict[str, dict[str, DType]] = {
    **dict.fromkeys(INTEGERS, INTEGERS | {"int32": _INT32} | {name: DTYPES[name] for name in ("float32", "float16")}),
    **dict.fromkeys(FLOAT8, {name: DTYPES[name] for name in ("float32", "float16", "bfloat16")} | FLOAT8),
}
"""The dtypes of y in a quantized convolution, by the dtype of x."""
ALL_DTYPES = DTYPES | INTEGERS | {"int32": _INT32} | FLOAT8
"""The dtypes of x, w and y in any convolution."""
_NAMES = {row.array_name: name for name, row in ALL_DTYPES.items()}
HEADER = 16
"""The number of words in a quantized convolution's table before those of the channels (``quantization.py``)."""

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

    The dtype's own name in capitals (``FLOAT16``) is 1. Of quantized problems: ``REAL`` of x, ``WEIGHT`` of w, ``OUT``
    of y, and ``OUT_`` with y's dtype in capitals, which is 1; ``quantized.cl`` stores them.
    """
    if out_dtype is not None:
        x, y, narrow = QUANTIZED_INPUTS[dtype], OUTPUTS[dtype][out_dtype], dtype in FLOAT8
        text = f"#define {dtype.upper()} 1\n#define OUT_{out_dtype.upper()} 1\n#define REAL {x.storage}\n"
        text += (
            f"#define WEIGHT {x.storage if narrow else 'char'}\n#define OUT {y.storage}\n#define ACC {x.accumulator}\n"
        )
        text += f"#define LOAD(p, i) {f'convert_as_{dtype}_float' if narrow else '(int)'}((p)[i])\n"
        text += (_conversions("float8.cl") + "#define FLOAT8 1\n") if narrow else ""
        if out_dtype == "bfloat16":
            text += bfloat16_conversions()
        if out_dtype == "float16":
            text += "#ifdef cl_khr_fp16\n#pragma OPENCL EXTENSION cl_khr_fp16 : enable\n#endif\n"
        return text + (f"#define OUT_FLOAT8 1\n#define OUT_NAME {out_dtype}\n" if out_dtype in FLOAT8 else "")
    head = bfloat16_conversions() if dtype == "bfloat16" else ""
    return f"{head}#define {dtype.upper()} 1\n{_STORAGE[dtype]}"


@functools.lru_cache(maxsize=256)  # NumPy composes the name anew each time, in 7 us
def dtype_name(dtype: np.dtype) -> str:
    """The name of a NumPy dtype in ALL_DTYPES, else NumPy's own name."""
    return _NAMES.get(dtype.name, dtype.name)


@functools.cache
def numpy_dtype(dtype: Any) -> np.dtype:
    """NumPy's dtype, from a dtype or a name, of ALL_DTYPES or NumPy's own. Raises TypeError.

    NumPy knows the names of bfloat16 and of the smaller floats once ml_dtypes is imported.
    """
    row = ALL_DTYPES.get(dtype) if isinstance(dtype, str) else None
    name = row.array_name if row else dtype
    try:
        return np.dtype(name)
    except TypeError:
        import ml_dtypes  # noqa: F401

        return np.dtype(name)


def bfloat16_conversions() -> str:
    """OpenCL text of ``convert_bfloat16_as_ushort`` and ``convert_as_bfloat16_float``, for numbers and vectors."""
    return _conversions("bfloat16.cl")


@functools.cache
def _conversions(file: str) -> str:
    import importlib.resources  # loads archives and temporary files, which a call without bfloat16 needs not

    return importlib.resources.files(__package__).joinpath(file).read_text(encoding="utf-8")
