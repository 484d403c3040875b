"""Launches on a CPU in PyTorch's intra-op threads, so that one pool of threads serves its operators and our kernels.

With two pools, the OpenCL runtime wakes its threads for each launch and PyTorch wakes its own for the next operator;
threads that spin take a core from the others, which costs more than a short layer takes. Where the runtime has queues
whose commands the enqueuing thread computes (``runtime.serial_queue``), each of PyTorch's threads enqueues a part of a
kernel's work groups on such a queue. The native module distributes the parts (``native/work_groups.h``).
"""

from __future__ import annotations

import ctypes
import functools
import struct
import sys
import threading
from collections.abc import Sequence

import pyopencl as cl

from .. import runtime
from ..commands import host_memory
from ..commands.interface import Kernel
from ..native import loading
from ..programs.work_groups import dividing_axes

MAX_KEPT_SCRATCH = 4 << 20
"""A thread keeps its own scratch memory of up to this many bytes, which its calls use in turn."""
_scratch = threading.local()
_lent: list[cl.CommandQueue] = []
"""Queues of the native module, one for each thread of a call; a call takes idle ones."""


@functools.lru_cache(maxsize=1)
def _functions() -> list[int]:
    """The addresses of clEnqueueNDRangeKernel and clSetKernelArgSVMPointer in pyopencl's OpenCL loader."""
    from pyopencl import _cl

    library = ctypes.CDLL(_cl.__file__)
    functions = (library.clEnqueueNDRangeKernel, library.clSetKernelArgSVMPointer)
    return [ctypes.cast(each, ctypes.c_void_p).value or 0 for each in functions]


def scratch(device: cl.Device, size: int) -> int:
    """The address of at least ``size`` bytes of scratch memory, the same for all of a thread's calls."""
    cached = _scratch.__dict__.get(device)
    if cached is None or cached[0] < size:
        memory = host_memory.lease(device, size)
        cached = _scratch.__dict__[device] = size, ctypes.addressof(memory), memory
    return cached[1]  # type: ignore[no-any-return]


def thread_count() -> int:
    """The number of PyTorch's threads that a call uses; 1 if PyTorch is not imported."""
    torch = sys.modules.get("torch")
    return 1 if torch is None else int(torch.get_num_threads())


def refusal(device: cl.Device, kernels: Sequence[Kernel]) -> str | None:
    """The reason why PyTorch's threads cannot compute all kernels in parts; None if they can."""
    if loading.module() is None:
        return "the compiled module is not there: convdispatch doctor says why"
    for kernel in kernels:
        if dividing_axes(kernel) is None:
            return f"the kernel {kernel.name} asks how it is launched, and cannot be launched in parts"
    return None if runtime.serial_queue(device) else "the OpenCL runtime has no queues of a thread's own"


class IntraOpLaunches:
    """Kernels for the creating thread. Each launch is the Kernel, the thread's own pyopencl kernel, and (argument,
    operand, byte offset) of its memory arguments. ``run()`` launches all in order and waits."""

    __slots__ = ("_context", "_device", "_kernels", "_run", "groups")

    def __init__(
        self, device: cl.Device, launches: Sequence[tuple[Kernel, cl.Kernel, Sequence[tuple[int, int, int]]]]
    ) -> None:
        native, self._device, self._context = loading.module(), device, int(runtime.context(device).int_ptr)
        self._run, self._kernels = native.run_groups, [bound for _, bound, _ in launches]
        groups = [
            (bound.int_ptr, dividing_axes(kernel), kernel.global_size, kernel.local_size or (), memory)
            for kernel, bound, memory in launches
        ]
        self.groups = native.groups(*_functions(), groups)

    def run(self, addresses: Sequence[int]) -> None:
        """Launch on operands at these addresses. Raises RuntimeError with OpenCL's status."""
        while not self._run(self.groups, self._context, addresses):
            lend_queues(self._device)


def lend_queues(device: cl.Device) -> None:
    """Lend the native module queues for one more call, if no idle ones fit PyTorch's present number of threads."""
    context, native = int(runtime.context(device).int_ptr), loading.module()
    if not native.has_idle(context):
        count = thread_count()
        queues = [runtime.new_serial_queue(device) for _ in range(count)]
        _lent.extend(queues)  # the queues are never destroyed, because it is not known here which calls use them
        native.lend(context, struct.pack(f"{count}P", *(queue.int_ptr for queue in queues)))
