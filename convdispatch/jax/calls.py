"""The handlers that XLA calls, one for each platform: they compute the problem of a call on the frame's buffers."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from ..api.errors import InvalidArgument
from ..api.policy import policy
from ..api.problem import ConvProblem
from ..calls.call import PLACES
from ..calls.framework.host import cpu_device, refuse_dtype
from ..calls.host_call import HostCall
from ..calls.stream_call import StreamCall
from ..device import runtime
from ..device.cuda.stream import CudaStream, place_of
from ..device.programs.kernels import Programs
from . import counting
from .ffi import Frame, handler

TARGET = "convdispatch.convolution"
"""The name of the custom call in compiled programs; its attribute is the problem as text."""
_handlers: list[Any] = []
_calls = Programs()
"""Prepared calls by platform, device number and the problem's text."""


@functools.lru_cache(maxsize=1)
def register() -> None:
    """Register the handlers with XLA, once; then programs that another process exported or cached run too."""
    from jax import ffi

    for platform, compute in (("cpu", _on_host), ("CUDA", _on_cuda)):
        capsule, keep_alive = handler(compute)
        _handlers.append(keep_alive)
        ffi.register_ffi_target(TARGET, capsule, platform=platform)


def call_for(platform: str, text: bytes, number: int = 0) -> Any:
    """The prepared call of a problem on a platform's device. Raises Fallback if the problem cannot be computed here."""
    key = (platform, number, text)
    call = _calls.get(key)
    if call is None:
        # A compiled XLA program keeps its call, so it must not get a general kernel for the time being.
        with policy(tier=None):
            call = _calls.make(key, lambda: _build_call(platform, ConvProblem.parse(text.decode()), number))
    return call


def _build_call(platform: str, problem: ConvProblem, number: int) -> HostCall | StreamCall:
    if platform == "cpu":
        device = cpu_device(pointers=True)
        refuse_dtype(problem, device)
        return HostCall(problem, runtime.context(device))
    stream = CudaStream(place_of(number), 0)
    refuse_dtype(problem, stream.device)
    return StreamCall(problem, stream)


def _addresses(problem: ConvProblem, frame: Frame) -> list[int]:
    addresses = [0] * 5
    for slot, address in zip(PLACES[problem.direction], (*frame.operands, *frame.results), strict=True):
        addresses[slot] = address
    return addresses


def _on_host(frame: Frame) -> None:
    """Compute on XLA's host buffers; the result is complete on return."""
    call = call_for("cpu", frame.text)
    if call.launch is not None and not call.launch(_addresses(call.problem, frame), call.ask()):
        raise InvalidArgument("XLA's buffers for operands and result must be apart, got some over the others")
    counting.ours(call.solver)


def _on_cuda(frame: Frame) -> None:
    """Enqueue the launches on XLA's stream, with scratch memory of XLA's allocator if it has room."""
    call = call_for("cuda", frame.text, frame.device)
    borrowed: list[Callable[[], None]] = []
    stream_alone = CudaStream(call.place, frame.stream)

    def allocate(size: int) -> tuple[int, Any]:
        try:
            address, free = frame.allocate(size)
        except MemoryError:
            return stream_alone.scratch(size)
        borrowed.append(free)
        return address, None

    stream = CudaStream(call.place, frame.stream, allocate)
    try:
        with stream.current():
            if not call.empty:
                call.launch(stream, _addresses(call.problem, frame))
    finally:
        for free in borrowed:  # Memory is freed in the stream's order, after the kernels that use it.
            free()
    counting.ours(call.solver)
