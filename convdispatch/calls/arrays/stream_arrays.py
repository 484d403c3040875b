"""Arrays on a device with streams, as operands and results of a call: addresses, new results, the caller's stream.

A library's arrays are here; those of PyTorch's operators, whose tensors have memory formats, are in
``torch/eager/stream_tensors``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ...api.errors import InvalidArgument
from ...api.policy import forbid_when_frozen
from ...api.problem import ConvProblem
from ...device.places.stream import Stream, StreamMemory
from ...selection.prepared import Constant
from .array_library import Library
from .operands import contiguous_strides

ALIGNMENT = 16
"""The most bytes that kernels load or copy in one instruction; addresses of operands must be multiples of it."""


class StreamArrays:
    """The arrays of one library on one device."""

    def __init__(self, library: Library, device: Any, problem: ConvProblem) -> None:
        self.library, self.device = library, device
        self.shape, self._dtype = problem.out_shape, problem.out_dtype or problem.dtype
        self.strides = contiguous_strides(self.shape, 1)
        self._other_dtype = self._dtype if problem.quantized else None
        self.is_current, self.copies = library.is_current, library.copies
        self.finished, self.keep = library.finished, library.keep

    def stream(self, input1: Any) -> Stream:
        """The caller's current stream."""
        return self.library.stream(input1, self.device)

    def allocate(self, input1: Any, stream: Stream) -> Any:
        """A new result on the device of ``input1``."""
        forbid_when_frozen("allocate the result (pass out=)")
        return self.library.empty(self.shape, input1, stream, self._other_dtype)

    def is_result(self, out: Any) -> bool:
        """Whether a call may write its result to an array."""
        library = self.library
        return out.shape == self.shape and not library.immutable and library.dtype(out) == self._dtype

    def check_result(self, out: Any, check: Callable[[tuple[int, ...], str, str], None]) -> None:
        """Raises InvalidArgument for an array that a call may not write."""
        if self.library.immutable:
            raise InvalidArgument(f"a {self.library.name} cannot be written to: pass no out")
        check(tuple(out.shape), self.library.dtype(out), self._dtype)

    def addresses(self, operands: Sequence[Any], bias: Any, residual: Any, stream: Stream) -> list[int] | None:
        """The addresses of x, w, y, bias and residual, 0 for a missing one; None if kernels cannot read x, w or y in
        place."""
        pointers = self.library.pointers(operands, stream)
        for each in (bias, residual):
            if each is None:
                pointers.append(0)
            elif type(each) is Constant:  # the bias of a quantized convolution is its table, a Constant
                pointers.append(each.on_device(stream).address)  # type: ignore[arg-type, attr-defined]
            else:
                pointers.append(self.library.pointer(each, stream)[0] or 1)
        return pointers if pointers[0] and pointers[1] and pointers[2] else None

    def memory(self, array: Any, stream: Stream, size: int, out: bool = False, of_bias: bool = False) -> StreamMemory:
        """The memory of an array, or of its copy in the stream's order: contiguous, and aligned for vector loads."""
        library = self.library
        address, held = library.pointer(array, stream)
        if held is None:
            if out:
                raise InvalidArgument(f"out must be contiguous, got one of shape {tuple(array.shape)} with gaps")
            address, held = library.pointer(library.compact(array), stream)
        region = StreamMemory(address, size, held)
        if out or address % ALIGNMENT == 0:
            return region
        aligned = stream.allocate(size)
        stream.copy(aligned, region, size)
        return aligned
