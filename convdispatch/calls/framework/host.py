"""One problem on the CPU for a framework: kernels take its memory, and the result is there when the call returns."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

import pyopencl as cl

from ...api.errors import NoDevice
from ...api.problem import ConvProblem
from ...device import runtime
from ...device.commands import host_memory
from ...device.commands.host_memory import HostMemory, HostQueue
from ...selection import dispatch
from ...selection.single_thread import prefers_one_thread
from ..bound_call import PLACES
from ..fast_path import host_queue
from .fallback import Fallback

__all__ = ["HostProblem", "cpu_device"]


@functools.lru_cache(maxsize=2)
def cpu_device(pointers: bool = False) -> cl.Device:
    """The OpenCL device that is the CPU, and takes ``pointers``: the default one if it does, else one that shares
    memory with the host.

    Raises Fallback, with what to install.
    """
    shares = host_memory.has_system_svm
    try:
        default, found = runtime.default_device(), []
        for each in runtime.devices():
            info = runtime.device_info(each)
            if info.type == "cpu" and (each == default or info.vendor != "oclgrind"):
                found.append(each)
        for each in sorted(found, key=lambda d: (d != default, not shares(d))):
            if (shares(each) or not pointers) and runtime.probe(each) is None:
                return each
    except NoDevice as error:
        raise Fallback(f"no OpenCL device: {str(error).splitlines()[0]}") from None
    what = "is the CPU and takes pointers" if pointers else "is the CPU"
    raise Fallback(f"no OpenCL device {what}: pip install 'convdispatch[cpu]'")


class HostProblem:
    """A problem, prepared on the CPU unless it is ``empty``. Raises Fallback for a dtype that the device lacks."""

    def __init__(self, problem: ConvProblem, device: cl.Device, empty: bool = False) -> None:
        self.problem, self.device = problem, device
        unsupported = runtime.device_info(device).supports(problem.dtype)
        if unsupported:
            raise Fallback(unsupported)
        self.places = PLACES[problem.direction]
        self.sizes = [math.prod(s) * problem.itemsize for s in (problem.x_shape, problem.w_shape, problem.y_shape)]
        self.shared = host_memory.has_system_svm(device)
        self.prepared: Any = None if empty else dispatch.prepare(problem, runtime.context(device))
        alone = self.shared and self.prepared is not None and prefers_one_thread(self.prepared)
        self._queue = host_queue(device, alone)

    @property
    def solver(self) -> str:
        """What runs."""
        return "none: nothing to compute" if self.prepared is None else str(self.prepared.solver.name)

    def _compute(self, queue: Any, operands: Sequence[HostMemory], *beside: Any) -> None:
        """Run on x, w, y and what ``dispatch.run`` takes beside them; waits."""
        commands = HostQueue(queue)
        try:
            commands.finish(dispatch.run(self.problem, self.prepared, commands, *operands, *beside))
        except BaseException:
            queue.finish()  # no command may use the framework's memory any longer
            raise
