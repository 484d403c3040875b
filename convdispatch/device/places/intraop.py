"""Launches on a CPU in PyTorch's intra-op threads, so that one pool of threads serves its operators and our kernels.

With a pool of its own beside PyTorch's, an OpenCL runtime wakes its threads for each launch, PyTorch wakes its own for
the next operator, and whichever of them spins takes a core from the other: more than a short layer takes. Where the
runtime has queues whose commands the giving thread computes (``runtime.serial_queue``), each of PyTorch's threads gives
a part of a kernel's work groups to one of those. The native module shares them out (``native/work_groups.h``).
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

KEPT = 4 << 20
"""Bytes of scratch memory up to which a thread keeps its own, in which its calls take turns."""
_queues, _scratch = threading.local(), threading.local()
_lent: list[cl.CommandQueue] = []


@functools.lru_cache(maxsize=1)
def _functions() -> list[int]:
    """The addresses of the functions of pyopencl's OpenCL loader that the native module calls."""
    from pyopencl import _cl

    library = ctypes.CDLL(_cl.__file__)
    found = (library.clEnqueueNDRangeKernel, library.clSetKernelArgSVMPointer)
    return [ctypes.cast(each, ctypes.c_void_p).value or 0 for each in found]


def scratch(device: cl.Device, size: int) -> int:
    """The address of at least ``size`` bytes, the same for all of a thread's calls."""
    known = _scratch.__dict__.get(device)
    if known is None or known[0] < size:
        memory = host_memory.lease(device, size)
        known = _scratch.__dict__[device] = size, ctypes.addressof(memory), memory
    return known[1]  # type: ignore[no-any-return]


def thread_count() -> int:
    """The number of PyTorch's threads that a call uses now; 1 where PyTorch is not imported."""
    torch = sys.modules.get("torch")
    return 1 if torch is None else int(torch.get_num_threads())


def refusal(device: cl.Device, kernels: Sequence[Kernel]) -> str | None:
    """Why PyTorch's threads cannot compute all kernels, each in parts; None where they can."""
    if loading.module() is None:
        return "the compiled module is not there: convdispatch doctor says why"
    for kernel in kernels:
        if dividing_axes(kernel) is None:
            return f"the kernel {kernel.name} asks how it is launched, and cannot be launched in parts"
    return None if runtime.serial_queue(device) else "the OpenCL runtime has no queues of a thread's own"


class IntraOpLaunches:
    """Kernels for the thread that makes this: each with its own, and with the arguments that are memory, as (argument,
    operand, bytes into that). ``run()`` launches them in order and waits."""

    __slots__ = ("_device", "_kernels", "_module", "groups")

    def __init__(
        self, device: cl.Device, launches: Sequence[tuple[Kernel, cl.Kernel, Sequence[tuple[int, int, int]]]]
    ) -> None:
        self._device, self._module, self._kernels = device, loading.module(), [own for _, own, _ in launches]
        given = [
            (own.int_ptr, dividing_axes(of), of.global_size, of.local_size or (), memory)
            for of, own, memory in launches
        ]
        self.groups = self._module.groups(*_functions(), given)

    def run(self, addresses: Sequence[int]) -> None:
        """Launch on operands at these addresses. Raises RuntimeError with OpenCL's status."""
        self._module.run_groups(self.groups, _queues_of(self._device), addresses)


def lend_queues(device: cl.Device) -> None:
    """Let the native call path have queues for one call more, if it has none left for as many threads as PyTorch has
    now."""
    context, count = int(runtime.context(device).int_ptr), thread_count()
    native = loading.module()
    if not native.has_idle(context, count):
        made = [runtime.new_serial_queue(device) for _ in range(count)]
        _lent.extend(made)  # the queues live for ever, because it is not known here which calls use them
        native.lend(context, struct.pack(f"{count}P", *(queue.int_ptr for queue in made)))


def _queues_of(device: cl.Device) -> bytes:
    """The addresses of this thread's queues, one for each thread that PyTorch may use."""
    count = thread_count()
    known = _queues.__dict__.setdefault(device, ([], b""))
    if len(known[0]) < count:
        made = [*known[0], *(runtime.new_serial_queue(device) for _ in range(count - len(known[0])))]
        known = _queues.__dict__[device] = made, struct.pack(f"{count}P", *(queue.int_ptr for queue in made))
    return known[1]
