"""An executable: the recorded launches of a plan or of a whole net. It never changes.

It holds the launches in order: kernels, arguments that are numbers, and for each argument that is memory the operand
and the byte offset into it. Scratch memory is laid out once; areas that are never in use together share bytes
(``replay.arena``). ``bind`` prepares an executable for a kind of memory and driver (``places``); a call then only
inserts the operands' addresses. ``place`` appends the launches to a longer recording, a net's. A plan that enqueues
other commands than launches, or that cannot be recorded (a vendor's library), is an executable of one opaque command:
its ``enqueue``.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar

from .commands.interface import Kernel, thread
from .commands.recording import Recording, Slot
from .replay.arena import lay_out, lifetimes

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
X, W, Y, BIAS, RESIDUAL, NORM, SAVED, SUMS = range(8)
"""The numbers of a convolution's operands; areas of scratch memory have the numbers that follow. Only problems with a
norm or sums have operands from NORM on."""
OUTPUTS = {"fwd": Y, "bwd_data": X, "bwd_weights": W}
"""The operand that each direction writes."""
SCRATCH_ALIGNMENT_BYTES = 256
"""Each area of scratch memory begins at a multiple of this many bytes."""


class KernelLaunch(NamedTuple):
    """One launch of an executable."""

    kernel: Kernel
    arguments: tuple[Any, ...]
    """The kernel's arguments; a Slot stands for each that is memory of the call."""
    memory: tuple[tuple[int, int, int], ...]
    """The arguments that are memory of the call: (argument's index, operand's number, bytes into the operand)."""


class Executable:
    """``launches`` on ``operands`` (their sizes in bytes, None for an absent operand), and on areas of scratch memory
    at ``offsets`` of a block of ``scratch_size`` bytes. ``outputs`` are the numbers of the operands that are
    written."""

    def __init__(
        self,
        launches: Sequence[tuple[Kernel, Sequence[Any]]] | None,
        operands: Sequence[Slot | None],
        outputs: Sequence[int],
        enqueue: Callable[..., Any] | None = None,
    ) -> None:
        """``enqueue(queue, *operands, wait_for)`` enqueues everything on a queue or its replacement, and returns the
        event.

        Whoever waited for that event calls ``finished()``. It may be replaced by a function that raises the work's
        error, which an event need not report: Intel's runtime completes commands that wait for a failed user event.
        """
        self.finished: Callable[[], Any] = _nothing
        self.opaque, launches, self.enqueue = launches is None, launches or (), enqueue
        self.operands, self.outputs = tuple(None if slot is None else slot.size for slot in operands), tuple(outputs)
        roots = {slot.root: number for number, slot in enumerate(operands) if slot is not None}
        slots = [[each for each in arguments if type(each) is Slot] for _, arguments in launches]
        scratch = [lifetime for lifetime in lifetimes(slots) if lifetime.slot not in roots]
        roots |= {lifetime.slot: number for number, lifetime in enumerate(scratch, len(operands))}
        self.launches = tuple(
            KernelLaunch(kernel, tuple(arguments), _memory_arguments(arguments, roots))
            for kernel, arguments in launches
        )
        self.scratch_sizes = tuple(lifetime.slot.size for lifetime in scratch)
        arena = lay_out(scratch, SCRATCH_ALIGNMENT_BYTES)
        self.offsets, self.scratch_size = tuple(arena.offsets[lifetime.slot] for lifetime in scratch), arena.size
        self._bound: weakref.WeakValueDictionary[Any, Any] = weakref.WeakValueDictionary()

    @classmethod
    def of(
        cls,
        recording: Recording,
        operands: Sequence[Slot | None],
        outputs: Sequence[int],
        enqueue: Callable[..., Any] | None = None,
    ) -> Executable:
        """The executable of a recording; opaque if it has more than launches."""
        if any(command.kernel is None for command in recording.commands):
            return cls(None, operands, outputs, enqueue)
        launches = [(command.kernel, command.arguments) for command in recording.commands if command.kernel]
        return cls(launches, operands, outputs, enqueue)

    def bind(self, place: Place[T]) -> T:
        """The object that runs the executable at a place, shared by all callers; it references the executable, not the
        reverse."""
        bound = self._bound.get(place)
        if bound is None:
            bound = place.bind(self)
            if bound is not None:
                bound = self._bound.setdefault(place, bound)
        return bound  # type: ignore[return-value]

    def is_bound(self, place: Any) -> bool:
        """Whether ``bind`` loads nothing for a place, because a caller holds what it returned."""
        return self._bound.get(place) is not None

    def enqueue_noted(self, queue: Any, *operands: Any, wait_for: Any = None) -> Any:
        """``enqueue``, whose errors say whether a command was enqueued before them."""
        enqueued_before = thread.enqueued
        try:
            return self.enqueue(queue, *operands, wait_for=wait_for)  # type: ignore[misc]
        except BaseException as error:
            if thread.enqueued > enqueued_before:
                note_launched(error)
            raise

    def place(self, recording: Recording, operands: Sequence[Any]) -> Any:
        """Record the launches on a longer recording's memory, or on real memory; returns the last command."""
        if self.opaque:
            return self.enqueue(recording, *operands)  # type: ignore[misc]
        memory = [*operands, *map(recording.allocate, self.scratch_sizes)]
        command = None
        for kernel, arguments, parts in self.launches:
            launch_arguments = list(arguments)
            for index, number, offset in parts:
                operand = memory[number]
                launch_arguments[index] = operand.get_sub_region(offset, arguments[index].size) if offset else operand
            command = recording.launch(kernel, launch_arguments)
        return command

    def overlaps(self, addresses: Sequence[int]) -> bool:
        """Whether an output's bytes at these addresses are also another operand's, or an operand has none."""
        for output in self.outputs:
            begin = addresses[output]
            end = begin + (self.operands[output] or 0)
            for number, size in enumerate(self.operands):
                if size is None:
                    continue
                address = addresses[number]
                if not address or (number != output and begin < address + size and address < end):
                    return True
        return False


def _memory_arguments(arguments: Sequence[Any], roots: Mapping[Slot, int]) -> tuple[tuple[int, int, int], ...]:
    """See ``KernelLaunch.memory``; ``roots`` are the operands' numbers by root slot."""
    slots = ((index, each) for index, each in enumerate(arguments) if type(each) is Slot)
    return tuple((index, roots[slot.root], slot.offset) for index, slot in slots)


def _nothing() -> None:
    """The default of ``Executable.finished``: launches that have ended report no error."""


def note_launched(error: BaseException) -> None:
    """Mark an error that came after a command was enqueued, so that the output may have been written in part."""
    with contextlib.suppress(AttributeError):  # an exception class with __slots__ takes no further attributes
        error.launched = True  # type: ignore[attr-defined]


class Place(Protocol[T_co]):
    """A place where executables run: one kind of memory and driver. Places with the same of both compare equal."""

    def bind(self, executable: Executable) -> T_co:
        """Returns the object that runs an executable in this place."""
