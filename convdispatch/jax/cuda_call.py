"""One problem on a CUDA device: launches on XLA's buffers, given to XLA's stream, with XLA's memory for workspaces."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from ..api.problem import ConvProblem
from ..calls.bound_call import PLACES
from ..calls.cuda_call import ALIGNMENT, NO_EPILOGUE, launched, rehearse
from ..calls.framework.fallback import Fallback
from ..device import runtime
from ..device.cuda.ptx import Unlaunchable
from ..device.cuda.stream import CudaMemory, CudaStream, place_of
from ..measurement import first_sight
from ..selection import dispatch
from . import counting
from .ffi import Frame


class CudaBufferCall:
    """``call(frame)`` gives a problem's launches to the frame's stream."""

    def __init__(self, problem: ConvProblem) -> None:
        self.problem, self.places = problem, PLACES[problem.direction]
        self.sizes = [math.prod(s) * problem.itemsize for s in (problem.x_shape, problem.w_shape, problem.y_shape)]
        self._on: dict[int, tuple[Any, Any, Any]] = {}
        """By the number of a device: its place, the plan, and its launches, None where the plan has other commands."""
        self._ready(0)

    def _ready(self, number: int) -> tuple[Any, Any, Any]:
        found = self._on.get(number)
        if found is None:
            stream = CudaStream(place_of(number), 0)
            unsupported = runtime.device_info(stream.device).supports(self.problem.dtype)
            if unsupported:
                raise Fallback(unsupported)
            first_sight.seen(stream.device)
            with stream.current():
                prepared = dispatch.prepare(self.problem, stream.context)
                try:
                    launches = rehearse(prepared, stream)
                except Unlaunchable as error:
                    raise Fallback(f"{prepared.solver.name} cannot run on a CUDA stream: {error}") from None
            found = self._on[number] = stream.place, prepared, launches
        return found

    def __call__(self, frame: Frame) -> None:
        """Enqueue."""
        place, prepared, launches = self._ready(frame.device)
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
        addresses = [0, 0, 0]
        for at, address in zip(self.places, (*frame.operands, *frame.results), strict=True):
            addresses[at] = address
        try:
            with stream.current():
                aligned = not any(address % ALIGNMENT for address in addresses)
                if not (aligned and launched(launches, stream, [*addresses, *NO_EPILOGUE])):
                    memory = [CudaMemory(*each, None) for each in zip(addresses, self.sizes, strict=True)]
                    dispatch.run(self.problem, prepared, stream, *memory)
                stream.check()
        finally:
            for free in borrowed:  # in the stream's order
                free()
        counting.ours(prepared.solver.name)
