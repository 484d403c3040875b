"""CUDA's driver as a small library of C, built on the fly: what the native call path launches runs on the host.

The path itself is the real one: PyTorch's dispatcher, its allocator, the packed keys and arguments. Kernels are those
of a CPU's OpenCL, on the tensors' own memory, by ``host_cuda``.
"""

from __future__ import annotations

import atexit
import ctypes
import functools
import shutil
import struct
import subprocess
import tempfile
from pathlib import Path

import host_cuda
import pytest
import torch

from convdispatch.api.policy import DEFAULT, ask_policy
from convdispatch.calls.arrays.array_library import Library
from convdispatch.device.commands import host_memory
from convdispatch.device.cuda import modules, stream
from convdispatch.device.native import build, loading
from convdispatch.selection import dispatch
from convdispatch.torch.dispatch import engine, native
from convdispatch.torch.eager import bias_gradient, planning, stream_tensors

__all__ = ["StandIn", "installed", "stand_in"]

TEXT = """
#include <stddef.h>
struct config { unsigned grid[3], block[3], shared; void *stream; void *attributes; unsigned count; };
typedef int (*run)(void *function, const char *arguments, size_t size, void *stream, unsigned early, unsigned shared);
static run kernel; static void *context = (void *)%d, *stream = (void *)77;
void stand_in_for(run with) { kernel = with; }
void stand_in_context(void *other) { context = other; }
int cuCtxGetCurrent(void **found) { *found = context; return 0; }
int cuLaunchKernelEx(const struct config *how, void *function, void **parameters, void **extra) {
  return parameters || extra[0] != (void *)1 || extra[2] != (void *)2 || extra[4]
    ? 1 : !kernel ? 0 : kernel(function, extra[1], *(size_t *)extra[3], how->stream, how->count, how->shared);
}
#define FORWARD(of) of(void *a, void *b, void *c, const long *d, long e, const long *f, long g, const long *h, \\
  long i, int j, const long *k, long l, long m, void *n)
#define BACKWARD(of) of(void *a, void *b, void *c, void *d, long e, const long *f, long g, const long *h, long i, \\
  const long *j, long k, int l, const long *m, long n, long o, const int *p, long q, void *r, void *s, void *t)
static int FORWARD((*forward)), BACKWARD((*backward)), fails, theirs;
void stand_in_theirs(void *first, void *second) { forward = first, backward = second; }
int stand_in_count(int failing) { int count = theirs; fails = failing, theirs = 0; return count; }
int FORWARD(aoti_torch_cuda_convolution) {
  return fails ? 1 : (theirs++, forward(a, b, c, d, e, f, g, h, i, j, k, l, m, n));
}
int BACKWARD(aoti_torch_cuda_convolution_backward) {
  return fails ? 1 : (theirs++, backward(a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p, q, r, s, t));
}
int aoti_torch_get_current_cuda_stream(int device, void **found) { *found = stream; return 0; }
"""
_ARGUMENTS = (*(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p), *(ctypes.c_uint, ctypes.c_uint))
_RUN = ctypes.CFUNCTYPE(ctypes.c_int, *_ARGUMENTS)


class PackedFunction(host_cuda.HostFunction):
    """A kernel on the host with what a launch by CUDA's driver takes: a handle, sizes, packed arguments."""

    made: list[PackedFunction] = []  # noqa: RUF012 (by handle, for the driver)

    def __init__(self, cuda, kernel, queue):
        super().__init__(cuda, kernel, queue)
        self.made.append(self)
        self.handle, self.overlaps, self.shared = ctypes.c_void_p(len(self.made)), 1, 0
        letters = ["Q" if dtype is None else modules._letter(dtype) for dtype in kernel.dtypes]
        self.pack = struct.Struct("@" + "".join(letters))
        ends = [struct.calcsize("@" + "".join(letters[: at + 1])) for at in range(len(letters))]
        self.offsets = [end - struct.calcsize(letter) for end, letter in zip(ends, letters, strict=True)]
        self.groups, self.items = modules._sizes(kernel)

    def numbers(self, arguments):
        return modules.Function.numbers(self, arguments)


class OnCuda:
    """A tensor of the host's memory that says that it is CUDA's."""

    is_cuda = True

    def __init__(self, tensor):
        self._tensor = tensor

    def __getattr__(self, name):
        return getattr(self._tensor, name)


class StandIn:
    """``launched`` has the kernels that came by the native path, ``driver`` what came by Python's."""

    def __init__(self, driver, library):
        self.driver, self.library, self.launched, self.status = driver, library, [], 0
        self._run = _RUN(self._kernel)
        library.stand_in_for(self._run)
        own = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"))
        kernels = own.aoti_torch_cpu_convolution, own.aoti_torch_cpu_convolution_backward
        library.stand_in_theirs(*(ctypes.cast(each, ctypes.c_void_p) for each in kernels))
        self.theirs()

    def _kernel(self, function, arguments, size, stream, early, shared):
        kernel = PackedFunction.made[function - 1]
        assert size == kernel.pack.size
        assert stream == 77
        if self.status or shared != kernel.shared:
            return self.status or 1
        self.launched.append((kernel.name, early))
        return kernel(stream, list(kernel.pack.unpack(ctypes.string_at(arguments, size))))

    def theirs(self, failing=False):
        """Calls that PyTorch's own kernels computed by the native path since this was asked last."""
        return self.library.stand_in_count(int(failing))

    def context(self, other=None):
        """Let another context be this thread's; without one, the device's again."""
        self.library.stand_in_context(ctypes.c_void_p(host_cuda.CONTEXT if other is None else other))


@functools.lru_cache(maxsize=1)
def _driver(folder: Path) -> str:
    place, text = folder / "libstandin.so", folder / "standin.c"
    text.write_text(TEXT % host_cuda.CONTEXT)
    subprocess.run(["cc", "-shared", "-fPIC", "-o", place, text], check=True)
    return str(place)


@functools.lru_cache(maxsize=1)
def _built(folder: Path) -> str | None:
    """Why the module cannot be had here."""
    if loading._loaded()[0] is not None:
        return None
    try:
        place = build.build(folder)
    except build.Unbuildable as why:
        return str(why)
    import importlib.util
    import sys

    name = "convdispatch.device.native._launcher"
    spec = importlib.util.spec_from_file_location(name, place)
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    loading._loaded.cache_clear()
    loading._opened.cache_clear()
    return loading._loaded()[1]


@functools.lru_cache(maxsize=1)
def _folder() -> Path:
    """For this process: what is loaded from it is never unloaded."""
    folder = Path(tempfile.mkdtemp(prefix="convdispatch-native-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


@pytest.fixture
def stand_in(monkeypatch, device):
    """``enable()`` sends CPU tensors to the native path, whose driver stands for CUDA's."""
    yield from installed(monkeypatch, device)


def _uninstall(launcher):
    for number in range(len(native._computes)):
        launcher.uninstall(number)


def installed(monkeypatch, device):
    """The fixture, for processes of their own too."""
    if not host_memory.has_system_svm(device):
        pytest.skip("the host stands for CUDA's memory: system SVM only")
    if shutil.which("cc") is None:
        pytest.skip("no C compiler here")
    why = _built(_folder())
    if why:
        pytest.skip(f"no native call path here: {why.splitlines()[0]}")
    monkeypatch.setenv("CONVDISPATCH_TIER", "full")  # a loaded machine's first calls would be PyTorch's
    place = _driver(_folder())
    dispatch.forget()
    driver, arrays = host_cuda.install(monkeypatch, device)

    class Tensors(Library):
        def stream(self, tensor, number):
            def allocate(size):
                block = torch.full((size,), 0xFF, dtype=torch.uint8)
                return block.data_ptr(), block

            return arrays.devices[0].stream(77, allocate)

        def is_current(self, stream):
            return True

    functions = {}
    from convdispatch.device import runtime

    queue = runtime.queue(device)

    def function_of(cuda, kernel):
        if kernel not in functions:
            functions[kernel] = PackedFunction(cuda, kernel, queue)
        return functions[kernel]

    def call(problem, shape, form, dtype):
        return stream_tensors.stream_call(problem, shape, form, torch.empty(0, dtype=dtype))

    tensors = Tensors()
    monkeypatch.setattr(stream, "function_of", function_of)
    for module in (stream_tensors, bias_gradient):
        monkeypatch.setattr(module, "library_of", lambda kind: tensors)
    monkeypatch.setattr(engine, "bias_gradient", lambda grad: bias_gradient.bias_gradient(OnCuda(grad)))
    monkeypatch.setattr(native, "kernels_of", lambda grad: bias_gradient.kernels_of(OnCuda(grad)))
    monkeypatch.setattr(planning, "host_call", call)
    monkeypatch.setattr(loading, "DRIVER", place)
    monkeypatch.setattr(native, "HOST", {"cpu": False})
    native._installed.clear()  # kernels of operators on a CPU come back at their next call
    monkeypatch.setattr(native, "_installed", {})
    made = StandIn(driver, ctypes.CDLL(place))
    made.context()
    loading._loaded.cache_clear()  # whatever was found before, with other settings
    loading._opened.cache_clear()
    assert loading.unavailable() is None
    launcher = loading.module()
    _uninstall(launcher)
    assert ask_policy() is DEFAULT, "a test before left its policy in force: calls under one are Python's"
    yield made
    native.uninstall()
    _uninstall(launcher)
    dispatch.forget()
