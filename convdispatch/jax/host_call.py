"""One problem on the CPU: kernels take XLA's own buffers, and the result is there when the handler returns."""

from __future__ import annotations

import functools
import math
from typing import Any

import pyopencl as cl

from ..api.errors import NoDevice
from ..api.problem import ConvProblem
from ..calls.bound_call import PLACES
from ..calls.fast_path import host_fast_path, host_queue
from ..device import runtime
from ..device.commands import host_memory
from ..device.commands.host_memory import HostMemory, HostQueue
from ..selection import dispatch
from ..selection.single_thread import prefers_one_thread
from . import counting
from .geometry import Left

__all__ = ["HostCall", "device"]


@functools.lru_cache(maxsize=1)
def device() -> cl.Device:
    """The OpenCL device that is the CPU and takes pointers. Raises Left, with what to install."""
    try:
        found = [each for each in runtime.devices() if runtime.device_info(each).type == "cpu"]
        for each in sorted(found, key=lambda d: d != runtime.default_device()):
            if host_memory.has_system_svm(each) and runtime.probe(each) is None:
                return each
    except NoDevice as error:
        raise Left(f"no OpenCL device: {str(error).splitlines()[0]}") from None
    raise Left("no OpenCL device is the CPU and takes pointers: pip install 'convdispatch[cpu]'")


class HostCall:
    """``call(lead, other, out)`` computes a problem on addresses, operands in the order of ``PLACES``; waits."""

    def __init__(self, problem: ConvProblem) -> None:
        self.problem, self.device = problem, device()
        unsupported = runtime.device_info(self.device).supports(problem.dtype)
        if unsupported:
            raise Left(unsupported)
        self.places = PLACES[problem.direction]
        self.sizes = [math.prod(s) * problem.itemsize for s in (problem.x_shape, problem.w_shape, problem.y_shape)]
        self.prepared: Any = dispatch.prepare(problem, runtime.context(self.device))
        self._queue = host_queue(self.device, prefers_one_thread(self.prepared))
        self._fast_path = host_fast_path(self, _same, _same, _never)

    @property
    def solver(self) -> str:
        """What runs."""
        return str(self.prepared.solver.name)

    def __call__(self, lead: int, other: int, out: int) -> None:
        """Run."""
        queue = self._queue()
        done = None if self._fast_path is None else self._fast_path(lead, other, out, queue)
        if done is None:
            self._run((lead, other, out), queue)
        counting.ours(self.solver)

    def _run(self, addresses: tuple[int, int, int], queue: Any) -> None:
        commands, memory = HostQueue(queue), [HostMemory.at(0, 0)] * 3
        for place, address in zip(self.places, addresses, strict=True):
            memory[place] = HostMemory.at(address, self.sizes[place])
        try:
            commands.finish(dispatch.run(self.problem, self.prepared, commands, *memory))
        except BaseException:
            queue.finish()  # no command may use XLA's memory any longer
            raise


def _same(address: int) -> int:
    return address


def _never() -> Any:
    raise AssertionError("the result's memory is XLA's")
