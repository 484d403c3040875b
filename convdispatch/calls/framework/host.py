"""One problem on the CPU for a framework: kernels take its memory, and the result is there when the call returns."""

from __future__ import annotations

import functools

import pyopencl as cl

from ...api.errors import NoDevice
from ...api.problem import ConvProblem
from ...device import runtime
from ...device.commands import host_memory
from ...measurement import first_sight
from ...selection import dispatch
from ...selection.single_thread import prefers_one_thread
from ..fast_path import host_queue
from .fallback import Fallback
from .problem import FrameworkProblem


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


class HostProblem(FrameworkProblem):
    """A problem, prepared on the CPU unless it is empty."""

    def __init__(self, problem: ConvProblem, device: cl.Device) -> None:
        super().__init__(problem, device)
        self.shared = host_memory.has_system_svm(device)
        first_sight.seen(device)
        self.prepared = None if self.empty else dispatch.prepare(problem, runtime.context(device))
        alone = self.shared and self.prepared is not None and prefers_one_thread(self.prepared)
        self._queue = host_queue(device, alone)
