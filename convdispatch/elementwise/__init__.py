"""Tensors and formulas: element-wise expressions, reductions, random numbers; kernels generated at run time.

A new function of formulas goes to ``codegen.expression``; a new operation to a module here.

- ``apply``: one kernel for any element-wise expression.
- ``codegen``: formulas to kernels' texts.
- ``gathering``: elements chosen by indices.
- ``interleaving``: channels first to channels last, for few channels.
- ``joining``: concatenation.
- ``operators``: arithmetic of tensors.
- ``random``: random numbers.
- ``recorded``: apply and reduce, noted on the tape in force.
- ``reductions``: reductions of formulas.
- ``sampling``: padding, repeating and interpolating by tables.
- ``selecting``: largest and smallest elements.
- ``tensor``: memory and views.
"""

from . import operators  # noqa: F401 (importing the module adds the operators to Tensor)
from .gathering import take, take_along_axis
from .joining import concatenate, concatenation_buffer
from .random import Generator, fill, full, zeros
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
    "zeros",
]
