"""Arrays in host memory as a call on the host sees them: where operands begin, and new results.

NumPy's arrays and those of other libraries are here; PyTorch's operators, whose tensors have memory formats, have
theirs in ``torch/eager/host``.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import pyopencl as cl

from ...api.problem import ConvProblem
from ...device.commands import host_memory
from ...selection.prepared import Constant
from .array_library import Library
from .operands import address, native


class HostArrays(Protocol):
    """What a call asks of a kind of arrays in host memory."""

    def input_address(self, array: Any) -> int:
        """The address of element 0; 0 if kernels cannot read the array in place."""

    def bias_address(self, array: Any) -> int:
        """The same for a bias, or for the table of a quantized call."""

    def output_address(self, array: Any) -> int:
        """The same for a result; 0 if kernels cannot write it in place."""

    def allocate(self) -> tuple[Any, int]:
        """A new result, and its address."""

    def compact(self, array: Any) -> tuple[Any, int]:
        """A copy that kernels can read in place, and its address."""

    def view(self, array: Any) -> np.ndarray:
        """NumPy's view of an array, through which a result is copied."""

    def finished(self, made: Any, lead: Any) -> Any:
        """What the caller gets on the slow path for a result that ``allocate`` made; ``lead`` is the first operand."""


class NumPyArrays:
    """NumPy's arrays. ``swapped``: some operand is of the other byte order, so that all are copied."""

    def __init__(self, problem: ConvProblem, device: cl.Device, dtype: np.dtype, size: int, swapped: bool) -> None:
        """``dtype`` and ``size`` in bytes are the result's."""
        self.shape, self.dtype, self._size, self._device = problem.out_shape, dtype, size, device
        self.strides = None
        self.input_address: Any = _nowhere if swapped else address
        self.bias_address: Any = _table_address if problem.quantized else self.input_address

    def output_address(self, array: Any) -> int:
        """See HostArrays."""
        fits = array.shape == self.shape and array.dtype == self.dtype and array.flags.writeable
        return address(array) if fits else 0

    def allocate(self) -> tuple[Any, int]:
        """See HostArrays."""
        made = host_memory.empty(self._device, self.shape, self.dtype, self._size)
        return made, address(made)

    def compact(self, array: Any) -> tuple[Any, int]:
        """See HostArrays."""
        copy = native(self.view(array))
        return copy, address(copy)

    def view(self, array: Any) -> np.ndarray:
        """See HostArrays."""
        return array

    def finished(self, made: Any, lead: Any) -> Any:
        """See HostArrays."""
        return made


class LibraryArrays(NumPyArrays):
    """Arrays of another library, such as ``like``, whose results are its own."""

    def __init__(self, library: Library, like: Any, *given: Any) -> None:
        super().__init__(*given)
        self._their_dtype = None if self.bias_address is _table_address else like.dtype
        self._library, self._by_views = library, library.host_address(like) is None
        self._like = None if self._by_views else like[:0]
        if self._by_views:
            self.input_address = _nowhere
        elif self.input_address is not _nowhere:
            self.input_address = library.host_address
        if self.bias_address is not _table_address:
            self.bias_address = self.input_address

    def output_address(self, array: Any) -> int:
        """See HostArrays."""
        if self._their_dtype is None:  # a quantized call, whose result is of another dtype than its operands
            fits = self._library.dtype(array) == self.dtype.name
        else:
            fits = array.dtype == self._their_dtype
        return self.input_address(array) if fits and array.shape == self.shape else 0

    def allocate(self) -> tuple[Any, int]:
        """See HostArrays."""
        made, at = super().allocate()
        return made if self._by_views else self._library.from_host(made, self._like), at

    def view(self, array: Any) -> np.ndarray:
        """See HostArrays."""
        return array if isinstance(array, np.ndarray) else self._library.host(array)

    def finished(self, made: Any, lead: Any) -> Any:
        """See HostArrays."""
        return self._library.from_host(made, lead) if self._by_views else made


def _nowhere(array: Any) -> int:
    return 0


def _table_address(table: Constant) -> int:
    return address(table.array)
