"""The handlers that XLA calls, one a platform: a problem's text to the call that computes it on the frame's buffers."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from ..api.policy import policy
from ..api.problem import ConvProblem
from ..device.programs.kernels import Programs
from .ffi import Frame, handler
from .host_call import HostCall

TARGET = "convdispatch.convolution"
"""The name of the custom call in compiled programs; its attribute is the problem as text."""
_alive: list[Any] = []
_calls = Programs()
"""By platform and a problem's text."""


@functools.lru_cache(maxsize=1)
def register() -> None:
    """Tell XLA of the handlers, once; programs that were exported or cached by another process run then too."""
    from jax import ffi

    for platform, compute in (("cpu", _on_host), ("CUDA", _on_cuda)):
        capsule, held = handler(compute)
        _alive.append(held)
        ffi.register_ffi_target(TARGET, capsule, platform=platform)


def call_for(platform: str, text: bytes) -> Any:
    """The call of a problem on a platform, prepared. Raises Fallback where it cannot be."""
    key = (platform, text)
    call = _calls.get(key)
    if call is None:
        with policy(tier=None):  # a compiled program keeps what it gets: no general kernel for the time being
            call = _calls.make(key, lambda: _maker(platform)(ConvProblem.parse(text.decode())))
    return call


def _maker(platform: str) -> Callable[[ConvProblem], Any]:
    if platform == "cpu":
        return HostCall
    from .cuda_call import CudaBufferCall

    return CudaBufferCall


def _on_host(frame: Frame) -> None:
    lead, other = frame.operands
    call_for("cpu", frame.text)(lead, other, frame.results[0])


def _on_cuda(frame: Frame) -> None:
    call_for("cuda", frame.text)(frame)
