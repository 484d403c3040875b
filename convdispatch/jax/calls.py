"""The handlers that XLA calls, one for each platform: they compute the problem of a call on the frame's buffers."""

from __future__ import annotations

import functools
import json
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from ..api.errors import InvalidArgument
from ..api.policy import Policy, current_policy, policy
from ..api.problem import ConvProblem
from ..calls.arguments import PLACES
from ..calls.framework.fallback import cpu_device, refuse_dtype
from ..calls.host_call import HostCall
from ..calls.stream_call import StreamCall
from ..device import runtime
from ..device.places.stream import KINDS, stream_kind
from ..device.programs.kernels import Programs
from .ffi import Frame, handler

TARGET = "convdispatch.convolution"
"""The name of the custom call in compiled programs; its attribute is the text that ``described`` returns."""
_handlers: list[Any] = []
_calls = Programs()
"""Prepared calls by platform, device number and the text of problem and policy."""


def described(problem: ConvProblem) -> str:
    """The problem as text, after it what the policy in force says of the choice: a compiled program keeps both."""
    changed = current_policy().selection.changed
    return f"{problem} {json.dumps(changed)}" if changed else str(problem)


@functools.lru_cache(maxsize=1)
def register() -> None:
    """Register the handlers with XLA, once; then programs that another process exported or cached run too."""
    from jax import ffi

    on_streams = ((stream_kind(name).xla, functools.partial(_on_stream, name)) for name in KINDS)
    for platform, compute in (("cpu", _on_host), *((xla, compute) for xla, compute in on_streams if xla)):
        capsule, keep_alive = handler(compute)
        _handlers.append(keep_alive)
        ffi.register_ffi_target(TARGET, capsule, platform=platform)


def call_for(platform: str, text: bytes, number: int = 0) -> Any:
    """The call of ``described``'s text, on a platform's device of a number, prepared. Raises Fallback where it cannot
    be."""
    key = (platform, number, text)
    call = _calls.get(key)
    if call is None:
        problem, _, changed = text.decode().partition(" ")
        # A compiled XLA program keeps its call for good, so the call must never run the general kernel.
        with policy(**asdict(Policy(**json.loads(changed or "{}")))):
            call = _calls.make(key, lambda: _build_call(platform, ConvProblem.parse(problem), number))
    return call


def _build_call(platform: str, problem: ConvProblem, number: int) -> HostCall | StreamCall:
    if platform == "cpu":
        device = cpu_device(pointers=True)
        refuse_dtype(problem, device)
        return HostCall(problem, runtime.context(device))
    stream = stream_kind(platform).numbered(number).stream(0)
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
    count("ours", solver=call.solver)


def _on_stream(kind: str, frame: Frame) -> None:
    """Enqueue the launches on XLA's stream, with scratch memory of XLA's allocator if it has room."""
    call = call_for(kind, frame.text, frame.device)
    borrowed: list[Callable[[], None]] = []
    own = call.place.stream(frame.stream)

    def allocate(size: int) -> tuple[int, Any]:
        try:
            address, free = frame.allocate(size)
        except MemoryError:
            return own.scratch(size)
        borrowed.append(free)
        return address, None

    stream = call.place.stream(frame.stream, allocate)
    try:
        with stream.current():
            if not call.empty:
                call.launch(stream, _addresses(call.problem, frame))
    finally:
        for free in borrowed:  # Memory is freed in the stream's order, after the kernels that use it.
            free()
    count("ours", solver=call.solver)


_lock = threading.Lock()
_counts: Counter[str] = Counter()
_reasons: Counter[str] = Counter()
_solvers: Counter[str] = Counter()


def count(what: str, reason: str = "", solver: str = "") -> None:
    """Count a convolution of a compiled program that was ``lowered`` to run here, or ``left`` to XLA for a reason; or a
    call of ``ours`` by a solver."""
    with _lock:
        _counts[what] += 1
        _reasons.update(filter(None, [reason]))
        _solvers.update(filter(None, [solver]))


def counters() -> dict[str, Any]:
    """Counts of how this process's convolutions were computed so far.

    ``ours`` counts calls computed here, ``solvers`` by whom. XLA's own calls are seen by nobody, so what is left is
    counted when a program is compiled: ``lowered`` convolutions were compiled to run here, ``left`` were not, and
    ``reasons`` maps a sentence to how many.
    """
    with _lock:
        counts: dict[str, Any] = {name: _counts[name] for name in ("ours", "lowered", "left")}
        return counts | {"reasons": dict(_reasons), "solvers": dict(_solvers)}


def reset_counters() -> None:
    """Set all counts to zero."""
    with _lock:
        for counter in (_counts, _reasons, _solvers):
            counter.clear()
