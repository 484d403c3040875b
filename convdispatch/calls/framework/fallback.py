"""The common part of integrations: what ``enable`` returns, why a call is left to the framework, the CPU device."""

from __future__ import annotations

import functools
from collections.abc import Callable

import pyopencl as cl

from ...api.errors import NoDevice
from ...api.problem import ConvProblem
from ...device import runtime
from ...device.commands import host_memory


class Enabled:
    """The object that ``enable`` returns. The integration is enabled already; as a context manager, it is disabled at
    the end of the block."""

    def __init__(self, restore: Callable[[], None]) -> None:
        """``restore()`` restores the state before ``enable``."""
        self._restore = restore

    def __enter__(self) -> Enabled:
        return self

    def __exit__(self, *_: object) -> None:
        self._restore()


class Fallback(Exception):
    """Leaves the call to the framework's own kernel; the message is the reason. ``lasting``: all such calls are left.

    ``again(operator)`` is called before each further call like it: it returns whether that call is left to the
    framework too, and then counts it.
    """

    def __init__(self, reason: str, lasting: bool = True, again: Callable[[str], bool] | None = None) -> None:
        super().__init__(reason)
        self.lasting, self.again = lasting, again


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
