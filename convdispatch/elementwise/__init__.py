"""Tensors and formulas: element-wise expressions, reductions, random numbers; kernels made at run time, and kept.

``tensor`` holds memory and views, ``apply`` and ``reductions`` turn formulas into kernels' calls, ``recorded`` notes
them on the tape in force, ``operators`` gives tensors their arithmetic.
"""

from . import operators  # noqa: F401 (attaches to Tensor)
from .codegen.symbols import where
from .filling import fill, full, zeros
from .gathering import take, take_along_axis
from .joining import concatenate, concatenation_buffer
from .random import Generator
from .recorded import apply, mean, reduce
from .sampling import sample
from .selecting import argmax, topk

__all__ = [
    "Generator",
    "apply",
    "argmax",
    "concatenate",
    "fill",
    "full",
    "concatenation_buffer",
    "mean",
    "reduce",
    "sample",
    "take",
    "take_along_axis",
    "topk",
    "where",
    "zeros",
]
