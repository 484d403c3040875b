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
from ..commands.interface import Kernel
from ..native import loading
from ..programs.work_groups import dividing_axis

_queues = threading.local()


@functools.lru_cache(maxsize=1)
def _enqueue() -> int:
    """Where pyopencl's own loader has clEnqueueNDRangeKernel."""
    from pyopencl import _cl

    found = ctypes.CDLL(_cl.__file__).clEnqueueNDRangeKernel
    return ctypes.cast(found, ctypes.c_void_p).value or 0


def can_run(device: cl.Device, kernels: Sequence[Kernel]) -> bool:
    """Whether PyTorch's threads can compute all kernels, each in parts."""
    if loading.module() is None or None in map(dividing_axis, kernels):
        return False
    return runtime.serial_queue(device) is not None


class IntraOpLaunches:
    """Kernels whose arguments are set, for the thread that makes this; ``run()`` launches them in order and waits."""

    __slots__ = ("_device", "_groups", "_module")

    def __init__(self, device: cl.Device, launches: Sequence[tuple[Kernel, cl.Kernel]]) -> None:
        self._device, self._module = device, loading.module()
        given = [(own.int_ptr, dividing_axis(of), of.global_size, of.local_size or ()) for of, own in launches]
        self._groups = self._module.groups(_enqueue(), given)

    def run(self) -> None:
        """Raises RuntimeError with OpenCL's status."""
        self._module.run_groups(self._groups, _queues_of(self._device))


def _queues_of(device: cl.Device) -> bytes:
    """The addresses of this thread's queues, one for each thread that PyTorch may use."""
    count = sys.modules["torch"].get_num_threads()
    known = _queues.__dict__.setdefault(device, ([], b""))
    if len(known[0]) < count:
        made = [*known[0], *(runtime.new_serial_queue(device) for _ in range(count - len(known[0])))]
        known = _queues.__dict__[device] = made, struct.pack(f"{count}P", *(queue.int_ptr for queue in made))
    return known[1]
