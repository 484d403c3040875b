"""A CUDA device that is none, for what can be tested of its use without one."""

from __future__ import annotations

import ctypes
import itertools

from convdispatch.device import cuda_driver

__all__ = ["FakeCuda"]


class FakeCuda:
    """Stands for a CUDA device: what streams are made, what is called; its streams' work is done when ``done`` says."""

    def __init__(self, failing: tuple[str, ...] = ()) -> None:
        self.failing, self.calls = failing, []
        self.made, self.done = itertools.count(1), True

    def __call__(self, name, *arguments):
        self.calls.append((name, *arguments))
        if name in self.failing:
            raise cuda_driver.CudaError(name)
        if name == "cuMemAllocAsync":
            arguments[0]._obj.value = 1 << 30
        if name == "cuLaunchHostFunc":
            ctypes.CFUNCTYPE(None, ctypes.c_void_p)(arguments[1])(ctypes.addressof(arguments[2]))

    def make(self, name, flags):
        stream = ctypes.c_void_p(next(self.made))
        self.calls.append((name, stream))
        return stream

    def idle(self, stream):
        return self.done

    def names(self):
        return [call[0] for call in self.calls]
