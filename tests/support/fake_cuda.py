"""CUDA devices and drivers that are none, for what can be tested of their use without one."""

from __future__ import annotations

import contextlib
import ctypes
import itertools

from convdispatch.device import cuda_driver

__all__ = ["Driver", "FakeCuda", "Program"]


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


class Driver:
    """CUDA's driver as far as programs are assembled, loaded and launched. Calls in ``failing`` fail; with "ELF" in it,
    machine code does not load."""

    def __init__(self, failing=(), version=13000):
        self.failing, self.version, self.number, self.driver = failing, version, 0, self
        self.loaded, self.assembled, self.launched, self.allowed, self.code = [], [], [], [], b""

    def current(self):
        return contextlib.nullcontext()

    def __call__(self, name, *arguments):
        is_code = name == "cuModuleLoadData" and arguments[1].startswith(b"\x7fELF")
        if name in self.failing or (is_code and "ELF" in self.failing):
            raise cuda_driver.CudaError(f"{name}: CUDA_ERROR_INVALID_PTX (218)")
        if name == "cuDriverGetVersion":
            arguments[0]._obj.value = self.version
        if name == "cuDeviceGetAttribute":
            arguments[0]._obj.value = 9 if arguments[1] == 75 else 0
        if name == "cuLinkAddData_v2":
            self.assembled.append(ctypes.string_at(arguments[2], arguments[3]))
        if name == "cuLinkComplete":
            self.code = ctypes.create_string_buffer(b"\x7fELF" + self.assembled[-1], 4 + len(self.assembled[-1]))
            arguments[1]._obj.value, arguments[2]._obj.value = ctypes.addressof(self.code), len(self.code)
        if name == "cuModuleLoadData":
            self.loaded.append(arguments[1])
        if name == "cuFuncSetAttribute":
            self.allowed.append(arguments[1:])

    def cuLaunchKernelEx(self, at, handle, none, extra):
        config = at._obj
        sizes = [getattr(config, name) for name in ("gx", "gy", "gz", "bx", "by", "bz", "shared")]
        length = ctypes.c_size_t.from_address(extra[3]).value
        self.launched.append((sizes, config.stream, ctypes.string_at(extra[1], length), extra[0], extra[2]))
        self.early = config.count and (config.attributes[0].kind, config.attributes[0].value[0])
        return 0


class Program:
    """A program whose binary is a text of PTX."""

    def __init__(self, text):
        self.text = text

    def get_info(self, what):
        return [self.text + b"\0"]
