"""Runs an executable on host memory, on a CPU device's queues or in PyTorch's threads.

Each thread has its own kernels, which store their arguments from call to call, so that only changed arguments are set.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import pyopencl as cl

from .. import runtime
from ..commands import host_memory
from ..commands.interface import thread
from ..commands.recording import with_numbers
from ..executable import Executable, note_launched
from . import intraop

_byte, _enqueue = ctypes.c_ubyte, cl.enqueue_nd_range_kernel


class HostPlace(NamedTuple):
    """Host pointers on a CPU device's queues; ``in_pytorch``: in PyTorch's threads, if they can compute the kernels.

    ``keeps_scratch``: each thread keeps its scratch memory from call to call, so that its addresses are among the
    arguments that never change. Nets do so.
    """

    device: cl.Device
    in_pytorch: bool = False
    keeps_scratch: bool = False

    def bind(self, executable: Executable) -> HostLaunches | HostEnqueue:
        """Bind the executable; kernels that PyTorch's threads cannot compute in parts run in OpenCL's threads."""
        return HostEnqueue(executable) if executable.opaque else HostLaunches(executable, self)

    @staticmethod
    def operand(packed: host_memory.HostMemory) -> int:
        """The address of packed weights, to be passed among a call's addresses."""
        return packed.svm_ptr  # type: ignore[no-any-return]

    @staticmethod
    def memory(queue: cl.CommandQueue, address: int, size: int | None) -> host_memory.HostMemory:
        """The memory at a host address, as an operand of commands."""
        return host_memory.HostMemory.at(address, size or 0)

    @staticmethod
    def enqueue(
        work: Callable[..., Any],
        queue: cl.CommandQueue,
        addresses: Sequence[int],
        sizes: Sequence[int | None],
        outputs: Sequence[int] = (),
    ) -> None:
        """Call ``work(commands, *memory)`` on the operands, and wait."""
        commands = host_memory.HostQueue(queue)
        operands = [
            None if size is None else host_memory.HostMemory.at(address, size)
            for address, size in zip(addresses, sizes, strict=True)
        ]
        event = work(commands, *operands)
        if event is not None:
            commands.finish(event)


class HostEnqueue:
    """An opaque executable on host memory."""

    __slots__ = ("__weakref__", "_executable")
    intraop = False

    def __init__(self, executable: Executable) -> None:
        self._executable = executable

    def run(self, queue: cl.CommandQueue, addresses: list[int]) -> bool:
        """Enqueue everything on the operands, and wait; returns as ``HostLaunches.run``."""
        executable = self._executable
        if executable.overlaps(addresses):
            return False
        enqueued_before = thread.enqueued
        try:
            HostPlace.enqueue(executable.enqueue, queue, addresses, executable.operands)  # type: ignore[arg-type]
            executable.finished()
        except BaseException as error:
            if thread.enqueued > enqueued_before:
                note_launched(error)
            raise
        return True


class _ThreadKernels:
    """A thread's kernels with their sizes, the addresses that their arguments were set to, and its last queue."""

    __slots__ = ("addresses", "in_order", "intraop", "kernels", "memory", "queue", "scratch", "synchronous")

    def __init__(
        self,
        kernels: list[tuple[cl.Kernel, tuple[int, ...], tuple[int, ...] | None]],
        memory: list[tuple[cl.Kernel, int, int, int]],
        intraop: intraop.IntraOpLaunches | None,
        scratch: Any,
    ) -> None:
        self.kernels, self.memory, self.intraop, self.scratch = kernels, memory, intraop, scratch
        """Each entry of ``memory`` is (kernel, argument's index, operand's number, bytes into the operand)."""
        self.addresses: list[Any] = []
        self.queue: Any = None
        self.in_order = self.synchronous = False
        """Whether the queue keeps the commands' order, and whether commands are done when enqueuing them returns."""


class HostLaunches:
    """The launches of an executable on host memory. Safe from several threads.

    ``intraop``: they run in PyTorch's threads, and ``run`` ignores its queue.
    """

    __slots__ = ("__weakref__", "_device", "_executable", "_keeps_scratch", "_scratch_size", "_threads", "intraop")

    def __init__(self, executable: Executable, place: HostPlace) -> None:
        self._device, self._threads, self._executable = place.device, threading.local(), executable
        self._keeps_scratch = place.keeps_scratch
        self._scratch_size = 0 if place.keeps_scratch else executable.scratch_size
        kernels = [launch.kernel for launch in executable.launches]
        self.intraop = place.in_pytorch and not intraop.refusal(place.device, kernels)

    def run(self, queue: cl.CommandQueue, addresses: list[int]) -> bool:
        """Launch everything on the operands, and wait; returns False, without a launch, if an operand has no address
        or overlaps the output."""
        executable, size, scratch = self._executable, self._scratch_size, None
        if size:
            if self.intraop and size <= intraop.MAX_KEPT_SCRATCH:
                begin = intraop.scratch(self._device, size)
            else:
                scratch = host_memory.lease(self._device, size)
                begin = ctypes.addressof(scratch)
            addresses = [*addresses, *map(begin.__add__, executable.offsets)]
        try:
            own_kernels = self._threads.own
        except AttributeError:
            own_kernels = self._threads.own = self._create_kernels()
        if own_kernels.addresses != addresses:
            if executable.overlaps(addresses):
                return False
            if own_kernels.intraop is None:  # IntraOpLaunches sets the kernels' arguments itself
                self._set_addresses(own_kernels, addresses)
            own_kernels.addresses = addresses
        if own_kernels.queue is not queue:
            own_kernels.queue, own_kernels.synchronous = queue, runtime.is_synchronous(queue)
            own_kernels.in_order = not queue.properties & cl.command_queue_properties.OUT_OF_ORDER_EXEC_MODE_ENABLE
        event = None
        try:
            if own_kernels.intraop is not None:
                event = True
                own_kernels.intraop.run(addresses)
                return True
            for kernel, global_size, local_size in own_kernels.kernels:
                wait_for = None if event is None or own_kernels.in_order else [event]
                event = _enqueue(queue, kernel, global_size, local_size, None, wait_for)
            if not own_kernels.synchronous:
                event.wait()
        except BaseException as error:
            if event:
                note_launched(error)
            raise
        return True

    def program(self, launcher: Any, name: str, sizes: Sequence[int], strides: Sequence[int]) -> Any:
        """The launches for the native call path, which allocates an output of these sizes; None without ``intraop``."""
        if not self.intraop:
            return None
        kernels, executable = self._create_kernels(), self._executable
        groups, context = kernels.intraop.groups, int(runtime.context(self._device).int_ptr)  # type: ignore[union-attr]
        scratch = executable.offsets, executable.scratch_size
        return launcher.host_program(name, groups, context, *scratch, sizes, strides, (executable, kernels))

    def _create_kernels(self) -> _ThreadKernels:
        executable, scratch = self._executable, None
        launches, operands = executable.launches, len(executable.operands)
        clones = [with_numbers(kernel, arguments) for kernel, arguments, _ in launches]
        memory = [list(launch.memory) for launch in launches]
        if self._keeps_scratch and executable.scratch_size:
            scratch = host_memory.lease(self._device, executable.scratch_size)
            begin = ctypes.addressof(scratch)
            for bound, parts in zip(clones, memory, strict=True):
                for index, number, offset in parts:
                    if number >= operands:
                        bound.set_arg(index, _svm(begin + executable.offsets[number - operands] + offset))
                parts[:] = [part for part in parts if part[1] < operands]
        kernels = [
            (bound, launch.kernel.global_size, launch.kernel.local_size)
            for bound, launch in zip(clones, launches, strict=True)
        ]
        memory_arguments = [(bound, *part) for bound, parts in zip(clones, memory, strict=True) for part in parts]
        if not self.intraop:
            return _ThreadKernels(kernels, memory_arguments, None, scratch)
        grouped = [(launch.kernel, bound, parts) for bound, launch, parts in zip(clones, launches, memory, strict=True)]
        return _ThreadKernels(kernels, memory_arguments, intraop.IntraOpLaunches(self._device, grouped), scratch)

    def _set_addresses(self, own_kernels: _ThreadKernels, addresses: list[int]) -> None:
        """Set the arguments that differ from those of this thread's last call."""
        previous = own_kernels.addresses or [None] * len(addresses)
        own_kernels.addresses = []  # no addresses count as set until all arguments are
        for kernel, index, operand, offset in own_kernels.memory:
            if addresses[operand] != previous[operand]:
                kernel.set_arg(index, _svm(addresses[operand] + offset))


def _svm(address: int) -> cl.SVM:
    """A host address as a kernel's argument."""
    return cl.SVM(_byte.from_address(address))
