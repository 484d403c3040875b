"""PyTorch's tensors on a device with streams as operands of a call, and the call of an operator on its current stream.

Workspaces come from PyTorch's caching allocator, so a captured graph takes them into its own pool. Nothing waits.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ...api.errors import NoDevice
from ...api.policy import current_policy
from ...api.problem import ConvProblem
from ...calls.arrays.known_libraries import library_of
from ...calls.arrays.stream_arrays import ALIGNMENT
from ...calls.framework.fallback import Fallback, refuse_dtype
from ...calls.stream_call import StreamCall
from ...device.places.stream import Stream, StreamMemory
from ...selection import dispatch
from .. import captures
from ..counting import solved


def stream_of(tensor: torch.Tensor) -> Any:
    """PyTorch's current stream of a tensor's device. Raises Fallback."""
    library: Any = library_of(torch.Tensor)
    try:
        return library.stream(tensor, tensor.get_device())
    except NoDevice as error:
        raise Fallback(str(error).splitlines()[0]) from None


def device(tensor: torch.Tensor) -> Any:
    """The OpenCL device that holds a tensor. Raises Fallback."""
    return stream_of(tensor).device


class StreamTensors:
    """Tensors of one memory format on a device; see ``StreamArrays``. Results are new tensors of the dtype and device
    of ``like``, of PyTorch's ``shape`` and ``strides``."""

    copies = False

    def __init__(self, library: Any, shape: tuple[int, ...], form: Any, like: torch.Tensor) -> None:
        self._library, self.shape, self._form = library, shape, form
        self._dtype, self._device, self._number = like.dtype, like.device, like.get_device()
        self.strides = torch.empty(shape, device="meta", memory_format=form).stride()
        self._forms = (form, form, form, torch.contiguous_format, form)
        """The memory formats of x, w, y, bias and residual."""
        self.is_current = library.is_current

    def stream(self, tensor: torch.Tensor) -> Stream:
        return self._library.stream(tensor, self._number)  # type: ignore[no-any-return]

    def allocate(self, input1: torch.Tensor, stream: Stream) -> torch.Tensor:
        return torch.empty_strided(self.shape, self.strides, dtype=self._dtype, device=self._device)

    def addresses(self, operands: Sequence[torch.Tensor], bias: Any, residual: Any, stream: Stream) -> list[int] | None:
        found = []
        for tensor, form in zip((*operands, bias, residual), self._forms, strict=True):
            if tensor is not None and not tensor.is_contiguous(memory_format=form):
                return None
            found.append(0 if tensor is None else tensor.data_ptr())
        return found

    def memory(
        self, tensor: torch.Tensor, stream: Stream, size: int, out: bool = False, of_bias: bool = False
    ) -> StreamMemory:
        form = torch.contiguous_format if of_bias else self._form
        if not tensor.is_contiguous(memory_format=form):
            tensor = tensor.contiguous(memory_format=form)
        if tensor.data_ptr() % ALIGNMENT:
            tensor = tensor.clone(memory_format=torch.preserve_format)
        return StreamMemory(tensor.data_ptr(), size, tensor)

    def finished(self, made: torch.Tensor, stream: Stream) -> torch.Tensor:
        return made

    def keep(self, stream: Stream, held: Any) -> None:
        """PyTorch's allocator reuses memory in the stream's order."""


def refuse_capture(stream: Stream, what: Any) -> None:
    """Raises Fallback while programs cannot be loaded, and notes what the stream's capture leaves to PyTorch."""
    with stream.current():
        is_captured = stream.capturing()
    if is_captured:
        captures.note_left(what, "it was new inside the capture")
    if is_captured or captures.capturing():
        raise Fallback("new while a CUDA graph was captured: run the model once before the capture", lasting=False)


def stream_call(problem: ConvProblem, shape: tuple[int, ...], form: Any, like: torch.Tensor) -> StreamCall:
    """Build the call of an operator that writes a tensor of a shape, of the dtype and on the device of ``like``.

    Raises Fallback.
    """
    stream = stream_of(like)
    refuse_dtype(problem, stream.device)
    tensors = StreamTensors(library_of(torch.Tensor), shape, form, like)
    if problem.mb and not dispatch.loaded(problem, stream, current_policy()):
        refuse_capture(stream, problem)
    call = StreamCall(problem, stream, tensors, count=solved)
    call.form, call.shape = form, shape
    return call
