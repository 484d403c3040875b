"""Adds the parts of a sum: by a launch of one program for all sizes (``reduce.cl``), or by work groups of the product
(the text ``parts.cl.mako``).

Sizes that a program divides by are arguments (``geometry_arguments``).
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...api.dtypes import storage_macros
from ...api.problem import ConvProblem, epilogue_macros, norm_macros
from ..programs.geometry_arguments import divided_by
from ..programs.kernels import OPERANDS, Launch, build, define, kernel_text

MAX_PARTS = 255
"""The most parts that a tile's state can count."""
STATE_BYTES = 8
"""Bytes of a tile's state, by which its work groups count finished parts."""


def written(problem: ConvProblem) -> list[str]:
    """The operands of a kernel that ends with the epilogue: the output, and what the epilogue reads."""
    return [problem.written, *problem.epilogue_operands]


@dataclass(frozen=True)
class Parts:
    """Parts of an output in the workspace, each in the output's own layout."""

    count: int
    elements: int
    """Elements of one part."""
    index: str
    """OpenCL type of offsets in the parts."""

    @property
    def lanes(self) -> int:
        """Work items that share the sum of an element's parts."""
        return 8 if self.count >= 16 else 1


def reduction_launch(context: Any, problem: ConvProblem, parts: Parts, operands: Sequence[str]) -> Launch:
    """A launch that adds the parts, applies the epilogue and writes the result to ``operands``."""
    inner = 1 if problem.layout == "nhwc" else math.prod(problem.out_shape[2:])
    text = reduction_macros(problem, parts.index) + define(PARTS=parts.count, LANES=parts.lanes)
    sizes = [offset_type(parts.index)(parts.elements), *divided_by(inner, problem.channels_out)]
    size = -(-parts.elements * parts.lanes // 256) * 256
    program = build(context, text + kernel_text(__package__, "reduce.cl"))
    return Launch(program, "reduce", (size,), (256,), ["workspace", *operands, *sizes], names=OPERANDS)


def reduction_macros(problem: ConvProblem, index: str) -> str:
    """Macros of a program that adds parts: types and the epilogue, no sizes."""
    text = storage_macros(problem.dtype) + epilogue_macros(problem)
    text += norm_macros(problem) if problem.masked else ""
    text += define(OUT_INDEX=index, PARTIAL=0, WIDE=int(index == "long"))
    return text + kernel_text("convdispatch.api", "divide.cl")


def offset_type(index: str) -> Any:
    """NumPy's type of arguments that are offsets of OpenCL's type ``index``."""
    return {"int": np.int32, "long": np.int64}[index]


def parts_text(tiling: Any, split: int, blocks: int) -> str:
    """Text of ``parts.cl.mako`` for tiles of ``blocks`` blocks. A hash of ``tiling`` marks this kernel's states."""
    magic = int.from_bytes(hashlib.blake2b(repr(tiling).encode(), digest_size=6).digest(), "big")
    return kernel_text(__package__, "parts.cl.mako", magic=magic, split=split, blocks=blocks)
