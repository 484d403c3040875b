"""An executable on host memory: a CPU device's queues, or PyTorch's threads. Only what changed is set before a launch.

Each thread has kernels of its own, which keep their arguments from call to call.
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
    """Pointers of the host's on a CPU device's queues; ``in_pytorch``: in PyTorch's threads, if these can.

    ``keeps_scratch``: each thread keeps its scratch memory from call to call, as a net does, whose launches then have
    it among the arguments that never change.
    """

    device: cl.Device
    in_pytorch: bool = False
    keeps_scratch: bool = False

    def bind(self, executable: Executable) -> HostLaunches | HostEnqueue:
        """Bind the executable; kernels that PyTorch's threads cannot compute in parts run in OpenCL's threads."""
        return HostEnqueue(executable) if executable.opaque else HostLaunches(executable, self)

    @staticmethod
    def operand(packed: host_memory.HostMemory) -> int:
        """The address that stands for packed weights among a call's addresses."""
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
        """``work(commands, *memory)`` on the operands; waits."""
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
        """Enqueue everything on the operands, and wait; False as ``HostLaunches.run``."""
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

    def program(self, launcher: Any, name: str, sizes: Sequence[int], strides: Sequence[int]) -> None:
        """Returns None, because the native call path makes kernel launches only."""


class _Own:
    """A thread's kernels with their sizes, the addresses that their arguments were set to, and its last queue."""

    __slots__ = ("addresses", "at_once", "in_order", "intraop", "kernels", "memory", "queue", "scratch")

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
        self.in_order = self.at_once = False
        """Whether the queue keeps the commands' order, and whether they are over when they are given."""


class HostLaunches:
    """The launches of an executable on host memory. Safe from several threads.

    ``intraop``: they run in PyTorch's threads, whatever queue is given.
    """

    __slots__ = ("__weakref__", "_device", "_executable", "_keeps_scratch", "_scratch_size", "_threads", "intraop")

    def __init__(self, executable: Executable, place: HostPlace) -> None:
        self._device, self._threads, self._executable = place.device, threading.local(), executable
        self._keeps_scratch = place.keeps_scratch
        self._scratch_size = 0 if place.keeps_scratch else executable.scratch_size
        kernels = [launch.kernel for launch in executable.launches]
        self.intraop = place.in_pytorch and not intraop.refusal(place.device, kernels)

    def run(self, queue: cl.CommandQueue, addresses: list[int]) -> bool:
        """Launch everything on the operands, and wait; False, before anything is done, for operands that have no
        address or lie over the output."""
        executable, size, scratch = self._executable, self._scratch_size, None
        if size:
            if self.intraop and size <= intraop.KEPT:
                begin = intraop.scratch(self._device, size)
            else:
                scratch = host_memory.lease(self._device, size)
                begin = ctypes.addressof(scratch)
            addresses = [*addresses, *map(begin.__add__, executable.offsets)]
        try:
            own = self._threads.own
        except AttributeError:
            own = self._threads.own = self._made()
        if own.addresses != addresses:
            if executable.overlaps(addresses):
                return False
            if own.intraop is None:  # IntraOpLaunches sets the kernels' arguments itself
                self._point(own, addresses)
            own.addresses = addresses
        if own.queue is not queue:
            own.queue, own.at_once = queue, runtime.is_synchronous(queue)
            own.in_order = not queue.properties & cl.command_queue_properties.OUT_OF_ORDER_EXEC_MODE_ENABLE
        event = None
        try:
            if own.intraop is not None:
                event = True
                own.intraop.run(addresses)
                return True
            for kernel, global_size, local_size in own.kernels:
                wait_for = None if event is None or own.in_order else [event]
                event = _enqueue(queue, kernel, global_size, local_size, None, wait_for)
            if not own.at_once:
                event.wait()
        except BaseException as error:
            if event:
                note_launched(error)
            raise
        return True

    def program(self, launcher: Any, name: str, sizes: Sequence[int], strides: Sequence[int]) -> Any:
        """The same for the native call path, writing a tensor of these sizes; None where PyTorch's threads run none."""
        if not self.intraop:
            return None
        own, executable = self._made(), self._executable
        groups, context = own.intraop.groups, int(runtime.context(self._device).int_ptr)  # type: ignore[union-attr]
        scratch = executable.offsets, executable.scratch_size
        return launcher.host_program(name, groups, context, *scratch, sizes, strides, (executable, own))

    def _made(self) -> _Own:
        """Create the kernels of the calling thread."""
        executable, scratch = self._executable, None
        launches, operands = executable.launches, len(executable.operands)
        made = [with_numbers(kernel, arguments) for kernel, arguments, _ in launches]
        memory = [list(launch.memory) for launch in launches]
        if self._keeps_scratch and executable.scratch_size:
            scratch = host_memory.lease(self._device, executable.scratch_size)
            begin = ctypes.addressof(scratch)
            for own, parts in zip(made, memory, strict=True):
                for index, number, offset in parts:
                    if number >= operands:
                        own.set_arg(index, _at(begin + executable.offsets[number - operands] + offset))
                parts[:] = [part for part in parts if part[1] < operands]
        kernels = [
            (own, launch.kernel.global_size, launch.kernel.local_size)
            for own, launch in zip(made, launches, strict=True)
        ]
        places = [(own, *part) for own, parts in zip(made, memory, strict=True) for part in parts]
        if not self.intraop:
            return _Own(kernels, places, None, scratch)
        given = [(launch.kernel, own, parts) for own, launch, parts in zip(made, launches, memory, strict=True)]
        return _Own(kernels, places, intraop.IntraOpLaunches(self._device, given), scratch)

    def _point(self, own: _Own, addresses: list[int]) -> None:
        """Set the arguments that differ from those of this thread's last call."""
        before = own.addresses or [None] * len(addresses)
        own.addresses = []  # no addresses count as set until all arguments are
        for kernel, index, operand, offset in own.memory:
            if addresses[operand] != before[operand]:
                kernel.set_arg(index, _at(addresses[operand] + offset))


def _at(address: int) -> cl.SVM:
    """A host address as a kernel's argument."""
    return cl.SVM(_byte.from_address(address))
