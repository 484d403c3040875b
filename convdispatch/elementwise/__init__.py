"""Element-wise expressions, reductions and random numbers: kernels made at run time from formulas, and kept."""

from .apply import apply
from .filling import fill, full, zeros
from .joining import concatenate, joined
from .random import Generator
from .reductions import mean, reduce
from .symbols import where

__all__ = ["Generator", "apply", "concatenate", "fill", "full", "joined", "mean", "reduce", "where", "zeros"]
