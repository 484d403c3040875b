"""A net's results in arrays that the caller has: at once where kernels can write there, else by a copy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ..api.errors import InvalidArgument
from ..calls.arrays.operands import check_written
from .host_arrays import HostProgram

if TYPE_CHECKING:
    from .net import InferenceNet


def run_into(net: InferenceNet, inputs: Sequence[np.ndarray], out: Sequence[np.ndarray | None]) -> list[Any]:
    """The results of a net that answers a list, for NumPy's arrays; each goes to its array of ``out``, if it has one.

    Raises InvalidArgument for an array of another shape or dtype than its result's, and one that cannot be written.
    """
    for inner, array in zip(net.results, out, strict=True):
        if array is not None and (array.shape != inner.shape or array.dtype != inner.dtype):
            raise InvalidArgument(
                f"the result is {inner.shape} {inner.dtype.name}, got {array.shape} {array.dtype.name} for it"
            )
        if array is not None and not array.flags.carray:
            check_written(array, "an array for a result")
    program = net.host_program if net.watch is None else None
    answer = None if program is None else program(inputs, None, _direct(program, inputs, out))
    answer = net(*inputs) if answer is None else answer
    for made, array in zip(answer, out, strict=True):
        if array is not None and made is not array:
            np.copyto(array, made)
    return [made if array is None else array for made, array in zip(answer, out, strict=True)]


def _direct(
    program: HostProgram, inputs: Sequence[np.ndarray], out: Sequence[np.ndarray | None]
) -> list[np.ndarray | None]:
    """The arrays of ``out`` that are written as they lie: they share memory with no other operand."""
    held = [*inputs, *(array for array in out if array is not None)]
    return [
        array
        if array is not None
        and sum(np.may_share_memory(array, other) for other in held) == 1
        and program.takes(place, array)
        else None
        for place, array in enumerate(out)
    ]
