"""A problem's plan on the streams of a CUDA device: its programs loaded before anything runs, its executable launched.

What every door to CUDA shares, whose arrays, streams and allocators are its own: library arrays (``cuda_call``),
PyTorch's operators, XLA's buffers.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from ..api.problem import ConvProblem
from ..device import runtime
from ..device.cuda.ptx import Unlaunchable
from ..device.cuda.stream import CudaMemory, CudaStream
from ..device.cuda_driver import NO_CONTEXT, CudaError
from ..device.executable import W
from ..device.memory.allocator import out_of_memory
from ..device.places.stream import StreamLaunches, StreamPlace
from ..device.programs.ptx_program import for_streams
from ..measurement import first_sight
from ..selection import dispatch
from ..selection.prepared import Constant, Prepared, operand_sizes

ALIGNMENT = 16
"""Bytes that kernels load and copy at once, at most: addresses of operands are multiples of it."""
_numbers = itertools.count()


class StreamPlan:
    """The plan of a problem; ``load`` comes before ``run``."""

    def __init__(self, problem: ConvProblem, stream: CudaStream) -> None:
        """Plan; inside ``stream.current()``."""
        first_sight.seen(stream.context.devices[0])
        with for_streams():
            self.prepared = dispatch.prepare(problem, stream.context)
        self.problem, self.name = problem, str(self.prepared.solver.name)
        self.packs, self.packed_key = bool(self.prepared.packed_size), next(_numbers)
        self.launches: StreamLaunches | None = None
        """What the executable launches; None for a plan that enqueues anew at each call."""

    def load(self, stream: CudaStream) -> None:
        """Load every program; inside ``stream.current()``. Raises Unlaunchable."""
        with for_streams():
            self.launches = rehearse(self.prepared, stream)

    def packed(self, promise: Constant, stream: CudaStream, address: int) -> int:
        """Where the packed form of weights at an address is, made once. Raises Unlaunchable."""
        found = promise.addresses.get(self.packed_key)
        if found is None:
            weights = CudaMemory(address, operand_sizes(self.problem)[W])
            made, _ = promise.packed(self.prepared, stream, weights)  # type: ignore[arg-type]
            found = promise.addresses[self.packed_key] = made.address  # type: ignore[attr-defined]
        return int(found)

    def run(self, stream: CudaStream, addresses: Sequence[int], promise: Constant | None = None) -> None:
        """Launch on ``addresses`` of x, w, y, bias and residual, 0 for those that there are not.

        Who calls keeps their memory until this returns. Raises Unlaunchable where weights cannot be packed, before
        anything else ran, and as ``dispatch.run``.
        """
        stream.noted(self.name)
        given = [*addresses]
        if promise is not None and self.packs and self.launches is not None:
            given[W] = self.packed(promise, stream, given[W])
        if not launched(self.launches, stream, given):
            operands: list[Any] = [
                CudaMemory(address, size) if address else None
                for address, size in zip(addresses, operand_sizes(self.problem), strict=True)
            ]
            dispatch.run(self.prepared, stream, operands, None, promise)  # type: ignore[arg-type]
        stream.check()


def launched(launches: StreamLaunches | None, stream: CudaStream, addresses: list[int]) -> bool:
    """Whether a plan's launches were given on these addresses; none was where memory or a context is lacking."""
    if launches is None:
        return False
    try:
        launches.run(stream, addresses)
    except CudaError as error:
        if not (out_of_memory(error) or error.status == NO_CONTEXT):
            raise
        return False
    return True


def rehearse(prepared: Prepared, stream: CudaStream) -> StreamLaunches | None:
    """Load every program of a plan for CUDA, before anything of it runs; its launches, where these are all it gives.

    Raises Unlaunchable.
    """
    if not prepared.recordable:
        if getattr(prepared.plan, "streams", False) and not prepared.layered:
            return None
        why = "layers see OpenCL's queues" if prepared.layered else "it enqueues by its own means, on OpenCL's queues"
        raise Unlaunchable(why)
    queue = runtime.queue(stream.device)
    launches = prepared.executable(queue).bind(StreamPlace(stream.place.cuda))
    if launches is None:
        for command in prepared.recorded(queue).commands:
            command.make(lambda slot: CudaMemory(0, slot.size), stream)
    return launches
