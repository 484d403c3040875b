"""The OpenCL device that is a framework's CPU."""

from __future__ import annotations

import functools

import pyopencl as cl

from ...api.errors import NoDevice
from ...api.problem import ConvProblem
from ...device import runtime
from ...device.commands import host_memory
from .fallback import Fallback


@functools.lru_cache(maxsize=2)
def cpu_device(pointers: bool = False) -> cl.Device:
    """The OpenCL device that is the CPU, and with ``pointers`` takes host pointers: preferably the default device, then
    one that shares memory with the host.

    Raises Fallback, with what to install.
    """
    shares = host_memory.has_system_svm
    try:
        default, cpus = runtime.default_device(), []
        for device in runtime.devices():
            info = runtime.device_info(device)
            if info.type == "cpu" and (device == default or info.vendor != "oclgrind"):
                cpus.append(device)
        for device in sorted(cpus, key=lambda d: (d != default, not shares(d))):
            if (shares(device) or not pointers) and runtime.probe(device) is None:
                return device
    except NoDevice as error:
        raise Fallback(f"no OpenCL device: {str(error).splitlines()[0]}") from None
    what = "is the CPU and takes pointers" if pointers else "is the CPU"
    raise Fallback(f"no OpenCL device {what}: pip install 'convdispatch[cpu]'")


def refuse_dtype(problem: ConvProblem, device: cl.Device) -> None:
    """Raises Fallback for a dtype that the device lacks."""
    unsupported = runtime.device_info(device).supports(problem.dtype)
    if unsupported:
        raise Fallback(unsupported)
