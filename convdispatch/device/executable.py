"""An executable: what a plan is once its ``enqueue`` has run on a recording. It is immutable and launched everywhere.

It holds the plan's launches in their order: kernels, arguments that are numbers, and for each argument that is memory
which operand it is and from which byte on. ``bind`` makes it ready for a place where commands go (``places``); what is
left of a call then is to put the operands' addresses in. A plan that gives other commands than launches, or that cannot
be recorded (a vendor's library), is an executable of one opaque command: its ``enqueue``.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any, NamedTuple, Protocol, TypeVar

from .commands.interface import Kernel
from .commands.recording import Recording, Slot

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
__all__ = ["BIAS", "OUTPUTS", "RESIDUAL", "W", "X", "Y", "Executable", "KernelLaunch", "Place", "note_launched"]

X, W, Y, BIAS, RESIDUAL = range(5)
"""The numbers of a convolution's operands; areas of scratch memory have those that follow."""
OUTPUTS = {"fwd": Y, "bwd_data": X, "bwd_weights": W}
"""By direction: the operand that is written."""
_ALIGN = 256
"""Bytes to which each area of the scratch memory is rounded."""


class KernelLaunch(NamedTuple):
    """One launch of an executable."""

    kernel: Kernel
    arguments: tuple[Any, ...]
    """A Slot stands for each that is memory of the call."""
    memory: tuple[tuple[int, int, int], ...]
    """The arguments that are memory of the call: (argument's index, operand's number, bytes into the operand)."""


class Executable:
    """``launches`` on ``operands``, whose sizes in bytes are given (None for one that there is not), and on areas of
    scratch memory at ``offsets`` of a block of ``scratch_size`` bytes. The operand of number ``output`` is written."""

    __slots__ = (
        "_bound",
        "enqueue",
        "launches",
        "offsets",
        "opaque",
        "operands",
        "output",
        "scratch_size",
        "scratch_sizes",
    )

    def __init__(
        self,
        launches: Sequence[tuple[Kernel, Sequence[Any]]] | None,
        operands: Sequence[Slot | None],
        output: int,
        enqueue: Callable[..., Any] | None = None,
    ) -> None:
        """``enqueue(queue, *operands, wait_for)`` gives everything to what stands for a queue; its event."""
        self.opaque, launches, self.enqueue = launches is None, launches or (), enqueue
        self.operands, self.output = tuple(None if slot is None else slot.size for slot in operands), output
        roots = {slot.root: number for number, slot in enumerate(operands) if slot is not None}
        found, scratch = [], list[Slot]()
        for kernel, arguments in launches:
            memory = []
            for index, argument in enumerate(arguments):
                if type(argument) is Slot:
                    if argument.root not in roots:
                        roots[argument.root] = len(operands) + len(scratch)
                        scratch.append(argument.root)
                    memory.append((index, roots[argument.root], argument.offset))
            found.append(KernelLaunch(kernel, tuple(arguments), tuple(memory)))
        self.launches = tuple(found)
        self.scratch_sizes = tuple(slot.size for slot in scratch)
        rounded = [-(-size // _ALIGN) * _ALIGN for size in self.scratch_sizes]
        *offsets, self.scratch_size = accumulate(rounded, initial=0)
        self.offsets = tuple(offsets)
        self._bound: weakref.WeakValueDictionary[Any, Any] = weakref.WeakValueDictionary()

    @classmethod
    def of(
        cls,
        recording: Recording,
        operands: Sequence[Slot | None],
        output: int,
        enqueue: Callable[..., Any] | None = None,
    ) -> Executable:
        """Opaque where the recording holds other commands than launches, or numbers that each call asks for anew."""
        if any(command.kernel is None or command.late for command in recording.commands):
            return cls(None, operands, output, enqueue)
        launches = [(command.kernel, command.arguments) for command in recording.commands if command.kernel]
        return cls(launches, operands, output, enqueue)

    def bind(self, place: Place[T]) -> T:
        """What runs it at a place, the same for all who hold it; it holds the executable, and is not held by that."""
        found = self._bound.get(place)
        if found is None:
            found = place.bind(self)
            if found is not None:
                found = self._bound.setdefault(place, found)
        return found  # type: ignore[return-value]

    def overlaps(self, addresses: Sequence[int]) -> bool:
        """Whether the output's bytes at these addresses are also another operand's, or an operand has none."""
        begin = addresses[self.output]
        end = begin + (self.operands[self.output] or 0)
        for number, size in enumerate(self.operands):
            if size is None:
                continue
            address = addresses[number]
            if not address or (number != self.output and begin < address + size and address < end):
                return True
        return False


def note_launched(error: BaseException) -> None:
    """Mark what went wrong after a command was given: the output may have been written in part."""
    with contextlib.suppress(AttributeError):  # an exception with slots
        error.launched = True  # type: ignore[attr-defined]


class Place(Protocol[T_co]):
    """Where executables run; compares equal to another of the same memory and driver."""

    def bind(self, executable: Executable) -> T_co:
        """What runs an executable there."""
