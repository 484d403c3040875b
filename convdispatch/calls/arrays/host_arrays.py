"""Arrays in host memory, as operands and results of a call: addresses of operands, and new results.

NumPy's arrays and those of other libraries are here; those of PyTorch's operators, whose tensors have memory formats,
are in ``torch/eager/planning``.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyopencl as cl

from ...api.problem import ConvProblem
from ...device.commands import host_memory
from ...selection.prepared import Constant
from .array_library import Library
from .operands import address, native


class HostArrays:
    """The operations on host arrays that a call needs, for NumPy's arrays; subclasses are for other libraries'.

    ``swapped``: some operand is not in native byte order, so that all are copied.
    """

    def __init__(self, problem: ConvProblem, device: cl.Device, dtype: np.dtype, size: int, swapped: bool) -> None:
        """``dtype`` and ``size`` (in bytes) are those of the result."""
        self.shape, self.dtype, self.strides = problem.out_shape, dtype, None
        shape = problem.out_shape
        self.input_address: Any = _no_address if swapped else address
        """``input_address(array)`` is the address of element 0; 0 if kernels cannot read the array in place."""
        self.bias_address: Any = _table_address if problem.quantized else self.input_address
        """The same for a bias, or for the table of a quantized call."""
        empty = host_memory.empty

        def output_address(array: Any) -> int:
            fits = array.shape == shape and array.dtype == dtype and array.flags.writeable
            return address(array) if fits else 0

        def allocate() -> tuple[Any, int]:
            result = empty(device, shape, dtype, size)
            return result, address(result)

        # output_address and allocate are closures, because reading a method's attributes is too slow for a warm call.
        self.output_address: Any = output_address
        """The address of a result's element 0; 0 if kernels cannot write it in place."""
        self.allocate: Any = allocate
        """``allocate()`` returns a new result array, and its address."""

    def compact(self, array: Any) -> tuple[Any, int]:
        """Returns a copy of an array that kernels can read in place, and the copy's address."""
        copy = native(self.view(array))
        return copy, address(copy)

    def view(self, array: Any) -> np.ndarray:
        """NumPy's view of an array, for copies on the host."""
        return array

    def finished(self, made: Any, input1: Any) -> Any:
        """The array that the caller gets on the slow path for a result of ``allocate``; ``input1`` is like it."""
        return made


class LibraryArrays(HostArrays):
    """Arrays of another library, such as ``like``, whose results are its own."""

    def __init__(self, library: Library, like: Any, *given: Any) -> None:
        super().__init__(*given)
        self._their_dtype = None if self.bias_address is _table_address else like.dtype
        self._library, self._by_views = library, library.host_address(like) is None
        if self._by_views:
            self.input_address = _no_address
        elif self.input_address is not _no_address:
            self.input_address = library.host_address
        if self.bias_address is not _table_address:
            self.bias_address = self.input_address
        shape, name, their_dtype, array_address = self.shape, self.dtype.name, self._their_dtype, self.input_address

        def output_address(array: Any) -> int:
            if their_dtype is None:  # the dtype of a quantized call's result is not that of its operands
                fits = library.dtype(array) == name
            else:
                fits = array.dtype == their_dtype
            return array_address(array) if fits and array.shape == shape else 0

        self.output_address = output_address
        if not self._by_views:
            allocate_numpy, like = self.allocate, like[:0]

            def allocate() -> tuple[Any, int]:
                result, address_of_result = allocate_numpy()
                return library.from_host(result, like), address_of_result

            self.allocate = allocate

    def view(self, array: Any) -> np.ndarray:
        return array if isinstance(array, np.ndarray) else self._library.host(array)

    def finished(self, made: Any, input1: Any) -> Any:
        return self._library.from_host(made, input1) if self._by_views else made


def _no_address(array: Any) -> int:
    return 0


def _table_address(table: Constant) -> int:
    return address(table.array)
