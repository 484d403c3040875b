"""The sum of a product's parts as a launch, one program for all sizes; see ``reduce.cl``."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from convdispatch.api import (
    OPERANDS,
    ConvProblem,
    Launch,
    build,
    define,
    epilogue_macros,
    kernel_text,
    storage_macros,
)

from .divisors import divided_by


def reduction_launch(
    context: Any, problem: ConvProblem, index: str, elements: int, parts: int, lanes: int, written: Sequence[str]
) -> Launch:
    """Parts lie in the workspace as the output does; ``index`` is the type of offsets in them."""
    inner = 1 if problem.layout == "nhwc" else math.prod(problem.out_shape[2:])
    text = reduction_macros(problem, index) + define(PARTS=parts, LANES=lanes) + kernel_text(__package__, "reduce.cl")
    sizes = [offset_type(index)(elements), *divided_by(inner, problem.channels_out)]
    size = -(-elements * lanes // 256) * 256
    arguments = ["workspace", *written, *sizes]
    return Launch(build(context, text), "reduce", (size,), (256,), arguments, names=OPERANDS)


def reduction_macros(problem: ConvProblem, index: str) -> str:
    """What a program that adds parts rests on: types and what follows a sum, no sizes."""
    text = storage_macros(problem.dtype) + epilogue_macros(problem)
    text += define(OUT_INDEX=index, PARTIAL=0, WIDE=int(index == "long"))
    return text + kernel_text(__package__, "divide.cl")


def offset_type(index: str) -> Any:
    """NumPy's type of arguments that are offsets of OpenCL's type ``index``."""
    return {"int": np.int32, "long": np.int64}[index]
