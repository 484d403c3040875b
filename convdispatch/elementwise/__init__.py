"""Tensors and formulas: element-wise expressions, reductions; kernels generated at run time.

A new function of formulas goes to ``codegen.expression``; a new operation to a module here.

- ``apply``: one kernel for any element-wise expression.
- ``codegen``: formulas to kernels' texts.
- ``filling``: tensors of one value.
- ``gathering``: elements chosen by indices.
- ``interleaving``: channels first to channels last, for few channels.
- ``joining``: concatenation.
- ``operators``: arithmetic of tensors.
- ``recorded``: apply and reduce, noted on the tape in force.
- ``reductions``: reductions of formulas.
- ``sampling``: padding, repeating and interpolating by tables.
- ``selecting``: largest and smallest elements.
- ``tensor``: memory and views.
"""

from . import operators  # noqa: F401 (importing the module adds the operators to Tensor)
from .filling import fill, full, zeros
from .gathering import take, take_along_axis
from .joining import concatenate, concatenation_buffer
from .recorded import apply, mean, reduce
from .sampling import sample
from .selecting import argmax, topk

__all__ = [
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
