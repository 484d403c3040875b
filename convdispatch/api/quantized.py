"""The rules of quantized problems, and the names of their dtypes in problems' texts."""

from __future__ import annotations

from typing import Any

from .dtypes import INTEGERS, OUTPUTS, QUANTIZED_INPUTS
from .errors import InvalidProblem

QUANTIZED_TEXTS = {
    f"{x.short}{'s8' if name in INTEGERS else x.short}{y.short}": (name, out)
    for name, x in QUANTIZED_INPUTS.items()
    for out, y in OUTPUTS[name].items()
}
"""The dtypes of x and y by their text, such as ``u8s8s32``; w is int8, or of x's dtype if that is a float."""


def check_quantized(problem: Any) -> str:
    """The dtype of y. Raises InvalidProblem for options that a quantized convolution does not have."""
    if problem.direction != "fwd":
        raise InvalidProblem(
            f"quantized convolutions are forward only, got {problem.direction} of {problem.dtype}: train in a "
            "floating-point dtype (with fake quantization, where its effect is to be learnt) and quantize afterwards"
        )
    if problem.math != "float32" and (problem.dtype in INTEGERS or problem.math not in ("tf32", "fast")):
        raise InvalidProblem(
            "integers are summed exactly, and floats of 8 bits in float32: leave math at its default (of floats, tf32 "
            f"and fast let sums have fewer bits), got {problem.math!r}"
        )
    if problem.accumulate:
        raise InvalidProblem("a quantized convolution does not accumulate: give what is to be added as residual")
    if problem.activation is not None:
        raise InvalidProblem(
            f"a quantized convolution's relu and clip are bounds of its table, got activation={problem.activation!r}: "
            "conv(..., activation=, quantization=) sets them; other activations follow as an operation of their own"
        )
    outputs = OUTPUTS[problem.dtype]
    dtype: str = problem.out_dtype or ("int32" if "int32" in outputs else "float32")
    if dtype not in outputs:
        raise InvalidProblem(f"out_dtype must be one of {', '.join(outputs)} for {problem.dtype}, got {dtype!r}")
    return dtype
