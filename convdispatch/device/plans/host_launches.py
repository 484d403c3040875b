"""A plan's launches on a CPU device's queues, decided once: what is left of a call is to launch on its addresses.

Each thread has kernels of its own, which keep their arguments from call to call: only those that changed are set.
"""

from __future__ import annotations

import ctypes
import itertools
import threading
from collections.abc import Callable, Sequence
from typing import Any

import pyopencl as cl

from .. import runtime
from ..commands import host_memory
from ..commands.interface import Kernel
from ..commands.recording import Recording, Slot, launched, with_numbers
from . import intraop

_ALIGN = 256
"""Bytes to which each area of the scratch memory is rounded."""
_WEIGHTS = 1
"""The place of packed ones among the operands."""
_byte, _enqueue = ctypes.c_ubyte, cl.enqueue_nd_range_kernel


class _Own:
    """A thread's kernels with their sizes, the addresses that their arguments were set to, and its last queue."""

    __slots__ = ("addresses", "at_once", "intraop", "kernels", "queue")

    def __init__(
        self,
        kernels: list[tuple[cl.Kernel, tuple[int, ...], tuple[int, ...] | None]],
        intraop: intraop.IntraOpLaunches | None,
    ) -> None:
        self.kernels, self.intraop = kernels, intraop
        self.addresses: list[Any] = []
        self.queue: Any = None
        self.at_once = False
        """Whether the queue's commands are over when they are given."""


class HostLaunches:
    """The launches of a recording on slots for operands, and on memory that it asked for meanwhile.

    Safe from several threads. ``fit(addresses)`` says whether operands there may be taken; it is asked where they are
    not those of the thread's last call. ``intraop``: they run in PyTorch's threads, whatever queue is given.
    """

    __slots__ = ("_device", "_fit", "_launches", "_offsets", "_size", "_threads", "intraop")

    def __init__(
        self,
        device: cl.Device,
        launches: Sequence[tuple[Kernel, Sequence[Any]]],
        operands: Sequence[Slot],
        scratch: Sequence[Slot],
        fit: Callable[[list[int]], bool],
        in_pytorch: bool = False,
    ) -> None:
        self._device, self._threads, self._fit = device, threading.local(), fit
        self.intraop = in_pytorch and not intraop.refusal(device, [kernel for kernel, _ in launches])
        roots, rounded = [*operands, *scratch], [-(-slot.size // _ALIGN) * _ALIGN for slot in scratch]
        *self._offsets, self._size = itertools.accumulate(rounded, initial=0)
        self._launches = [
            (kernel, arguments, [(at, roots.index(a.root), a) for at, a in enumerate(arguments) if type(a) is Slot])
            for kernel, arguments in launches
        ]

    @classmethod
    def of(
        cls,
        recording: Recording,
        given: Sequence[Slot | None],
        fit: Callable[[list[int]], bool],
        in_pytorch: bool = False,
    ) -> HostLaunches | None:
        """``given`` stand for the operands, of which None are left out; ``in_pytorch``: in its threads, if that can be.

        None where the recording holds anything but launches, or takes a part of what may be packed weights.
        """
        operands = [slot for slot in given if slot is not None]
        found = launched(recording, operands)
        parts = (slot.offset and slot.root is given[_WEIGHTS] for each in recording.commands for slot in each.slots)
        if found is None or any(parts):
            return None
        return cls(recording.device, found[0], operands, found[1], fit, in_pytorch)

    def give(
        self, queue: cl.CommandQueue, addresses: list[int], packed: Any = None
    ) -> tuple[cl.Event | None, Any] | None:
        """Launch everything on the operands; the event to wait for, if any, and what must live until it is past. None,
        before anything is done, for operands that do not fit.

        ``packed`` is memory that weights are; their address then is a number that no other packed weights ever have.
        """
        scratch = event = None
        if self._size:
            if self.intraop and self._size <= intraop.KEPT:
                begin = intraop.scratch(self._device, self._size)
            else:
                scratch = host_memory.lease(self._device, self._size)
                begin = ctypes.addressof(scratch)
            addresses = [*addresses, *map(begin.__add__, self._offsets)]
        try:
            own = self._threads.own
        except AttributeError:
            own = self._threads.own = self._made()
        if own.addresses != addresses:
            if not self._fit(addresses):
                return None
            self._point(own, addresses, packed)
        if own.intraop is not None:
            own.intraop.run(addresses, -1 if packed is None else _WEIGHTS)
            return None, scratch
        if own.queue is not queue:
            own.queue, own.at_once = queue, runtime.is_synchronous(queue)
        for kernel, global_size, local_size in own.kernels:
            event = _enqueue(queue, kernel, global_size, local_size, None, event and [event])
        return None if own.at_once else event, scratch

    def program(self, launcher: Any, name: str, sizes: Sequence[int], strides: Sequence[int]) -> Any:
        """The same for the native call path, writing a tensor of these sizes; None where PyTorch's threads run none."""
        if not self.intraop:
            return None
        own, context = self._made(), int(runtime.context(self._device).int_ptr)
        groups = own.intraop.groups  # type: ignore[union-attr]
        kept = self._launches, own
        return launcher.host_program(name, groups, context, self._offsets, self._size, sizes, strides, kept)

    def _made(self) -> _Own:
        """The calling thread's kernels."""
        made = [with_numbers(kernel, arguments) for kernel, arguments, _ in self._launches]
        each = list(zip(made, self._launches, strict=True))
        kernels = [(own, kernel.global_size, kernel.local_size) for own, (kernel, _, _) in each]
        if not self.intraop:
            return _Own(kernels, None)
        given = [(kernel, own, [(at, place, slot.offset) for at, place, slot in p]) for own, (kernel, _, p) in each]
        return _Own(kernels, intraop.IntraOpLaunches(self._device, given))

    def _point(self, own: _Own, addresses: list[int], packed: Any) -> None:
        """Set the arguments that are not as this thread's last call left them."""
        before = own.addresses or [None] * len(addresses)
        own.addresses = []  # until all are set
        if own.intraop is not None:
            left = addresses[_WEIGHTS] if packed is None else before[_WEIGHTS]
            before = [*addresses[:_WEIGHTS], left, *addresses[_WEIGHTS + 1 :]]
        for (kernel, _, _), (_, _, places) in zip(own.kernels, self._launches, strict=True):
            for at, place, slot in places:
                if addresses[place] != before[place]:
                    new = packed if packed is not None and place == _WEIGHTS else _at(addresses[place] + slot.offset)
                    kernel.set_arg(at, new)
        own.addresses = addresses


def _at(address: int) -> cl.SVM:
    """As a kernel's argument."""
    return cl.SVM(_byte.from_address(address))
