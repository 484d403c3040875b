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


def refuse_dtype(problem: ConvProblem, device: cl.Device) -> None:
    """Raises Fallback for a dtype that the device lacks."""
    unsupported = runtime.device_info(device).supports(problem.dtype)
    if unsupported:
        raise Fallback(unsupported)
