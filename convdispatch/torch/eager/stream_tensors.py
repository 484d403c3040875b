"""PyTorch's tensors on a device with streams as operands of a call, and the call of an operator on its current stream.

Workspaces come from PyTorch's caching allocator, so a captured graph takes them into its own pool. Nothing waits.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch

from ...api.errors import NoDevice
from ...api.policy import current_policy
from ...api.problem import ConvProblem
from ...calls.arrays.known_libraries import library_of
from ...calls.arrays.stream_arrays import ALIGNMENT, StreamArrays
from ...calls.framework import tiers
from ...calls.framework.fallback import Fallback, refuse_dtype
from ...calls.stream_call import StreamCall
from ...device.cuda_driver import number_of
from ...device.opencl.platforms import devices
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
    """The OpenCL device that holds a tensor; CUDA's is found without a context. Raises Fallback."""
    return _of_cuda(tensor.get_device()) or stream_of(tensor).device


@functools.lru_cache(maxsize=64)
def _of_cuda(number: int) -> Any:
    """The OpenCL device that is CUDA's device ``number``; None if there is none."""
    return next((each for each in devices() if number_of(each) == number), None)


@functools.lru_cache(maxsize=64)
def begin_children(number: int) -> None:
    """Start the processes that plan for CUDA's device ``number``, before this process creates its own context, which
    takes as long as theirs (1.2 s on an H200)."""
    if _of_cuda(number) is not None:
        tiers.expect(_of_cuda(number))


class StreamTensors(StreamArrays):
    """Tensors of one memory format on a device. Results are new tensors of the dtype and device of ``like``, of
    PyTorch's ``shape`` and ``strides``."""

    def __init__(self, problem: ConvProblem, shape: tuple[int, ...], form: Any, like: torch.Tensor) -> None:
        super().__init__(library_of(torch.Tensor), like.get_device(), problem)  # type: ignore[arg-type]
        self.shape, self._form, self._like = shape, form, (like.dtype, like.device)
        self.strides = torch.empty(shape, device="meta", memory_format=form).stride()
        self._forms = (form, form, form, torch.contiguous_format, form)
        """The memory formats of x, w, y, bias and residual."""

    def allocate(self, input1: torch.Tensor, stream: Stream) -> torch.Tensor:
        dtype, device = self._like
        return torch.empty_strided(self.shape, self.strides, dtype=dtype, device=device)

    def addresses(self, operands: Sequence[torch.Tensor], bias: Any, residual: Any, stream: Stream) -> list[int] | None:
        found = []
        for tensor, form in zip((*operands, bias, residual), self._forms, strict=True):
            if tensor is not None and not tensor.is_contiguous(memory_format=form):
                return None
            found.append(0 if tensor is None else tensor.data_ptr())
        return found

    def memory(
        self, array: torch.Tensor, stream: Stream, size: int, out: bool = False, of_bias: bool = False
    ) -> StreamMemory:
        form = torch.contiguous_format if of_bias else self._form
        array = array.contiguous(memory_format=form)
        if array.data_ptr() % ALIGNMENT:
            array = array.clone(memory_format=torch.preserve_format)
        return StreamMemory(array.data_ptr(), size, array)


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
    tensors = StreamTensors(problem, shape, form, like)
    if problem.mb and not dispatch.loaded(problem, stream, current_policy()):
        refuse_capture(stream, problem)
    call = StreamCall(problem, stream, tensors, count=solved)
    call.form, call.shape = form, shape
    return call
