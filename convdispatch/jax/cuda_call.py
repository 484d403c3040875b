"""One problem on a CUDA device: launches on XLA's buffers, given to XLA's stream, with XLA's memory for workspaces."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..api.problem import ConvProblem
from ..calls.bound_call import PLACES
from ..calls.framework.fallback import Fallback
from ..calls.stream_plan import StreamPlan
from ..device import runtime
from ..device.cuda.ptx import Unlaunchable
from ..device.cuda.stream import CudaStream, place_of
from . import counting
from .ffi import Frame


class CudaBufferCall:
    """``call(frame)`` gives a problem's launches to the frame's stream."""

    def __init__(self, problem: ConvProblem) -> None:
        self.problem, self.places = problem, PLACES[problem.direction]
        self._on: dict[int, tuple[Any, StreamPlan]] = {}
        """By the number of a device: its place and the plan."""
        self._ready(0)

    def _ready(self, number: int) -> tuple[Any, StreamPlan]:
        found = self._on.get(number)
        if found is None:
            stream = CudaStream(place_of(number), 0)
            unsupported = runtime.device_info(stream.device).supports(self.problem.dtype)
            if unsupported:
                raise Fallback(unsupported)
            with stream.current():
                plan = StreamPlan(self.problem, stream)
                try:
                    plan.load(stream)
                except Unlaunchable as error:
                    raise Fallback(f"{plan.name} cannot run on a CUDA stream: {error}") from None
            found = self._on[number] = stream.place, plan
        return found

    def __call__(self, frame: Frame) -> None:
        """Enqueue."""
        place, plan = self._ready(frame.device)
        borrowed: list[Callable[[], None]] = []

        own = CudaStream(place, frame.stream)

        def allocate(size: int) -> tuple[int, Any]:
            try:
                address, free = frame.allocate(size)
            except MemoryError:
                return own.scratch(size)
            borrowed.append(free)
            return address, None

        stream = CudaStream(place, frame.stream, allocate)
        addresses = [0] * 5
        for at, address in zip(self.places, (*frame.operands, *frame.results), strict=True):
            addresses[at] = address
        try:
            with stream.current():
                plan.run(stream, addresses)
        finally:
            for free in borrowed:  # in the stream's order
                free()
        counting.ours(plan.name)
