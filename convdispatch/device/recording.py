"""Recording: stands where a queue does while work is enqueued, and keeps the commands to be replayed without Python.

Kernels are kept with their arguments set, memory asked for meanwhile is only a Slot: how long each is in use is known
when the recording ends, so that all of them share one arena. Commands stay in the order in which they came. What
cannot be recorded (a plan that calls another library) is kept as a call, which the caller says with ``call``.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import pyopencl as cl

__all__ = ["Command", "Late", "Recording", "Slot", "recording_of"]


class Slot:
    """Memory that a recorded program will have: ``size`` bytes, or a part of another slot.

    Used as an OpenCL buffer is while commands are recorded. ``kept`` slots are never shared: what they hold outlives
    one replay (inputs, results).
    """

    __slots__ = ("kept", "offset", "root", "size")

    def __init__(self, size: int, root: Slot | None = None, offset: int = 0, kept: bool = False) -> None:
        self.size, self.root, self.offset, self.kept = size, root or self, offset, kept

    def get_sub_region(self, offset: int, size: int) -> Slot:
        """``size`` bytes from byte ``offset`` on, as ``cl.Buffer.get_sub_region``."""
        return Slot(size, self.root, self.offset + offset)

    def __repr__(self) -> str:
        return f"Slot({self.size} bytes{f' at {self.offset}' if self.offset else ''})"


class Late:
    """A kernel's number that is asked for anew at every replay, such as the next counter of a random stream."""

    __slots__ = ("ask", "value")

    def __init__(self, ask: Callable[[], Any]) -> None:
        self.ask, self.value = ask, None

    def draw(self) -> None:
        """Ask; kernels that are enqueued from now on get the answer."""
        self.value = self.ask()


@dataclass(eq=False)
class Command:
    """One command: ``make(memory)`` answers a function of a queue (and of events to wait for) that enqueues it.

    ``memory(slot)`` gives a slot's buffer. ``step`` is the place of the caller's unit of work that it belongs to.
    """

    make: Callable[[Callable[[Any], Any]], Callable[..., Any]]
    slots: tuple[Slot, ...]
    what: str
    step: int = 0


@dataclass(eq=False)
class Recording:
    """What plans and tensors take for a queue (in order) of ``queue``'s context and device."""

    queue: cl.CommandQueue
    """The real one: work that must happen now, such as packing constant weights, goes there."""
    commands: list[Command] = field(default_factory=list)
    step: int = 0
    """The present unit of work; the caller counts."""
    lates: list[Late] = field(default_factory=list)
    """What a replay draws before it begins."""

    @property
    def context(self) -> cl.Context:
        """The real queue's context."""
        return self.queue.context

    @property
    def device(self) -> cl.Device:
        """The real queue's device."""
        return self.queue.device

    @contextlib.contextmanager
    def capture(self) -> Iterator[Recording]:
        """Inside the block, this thread's commands for the real queue come here, and nothing runs."""
        outer, _thread.recording = _thread.recording, self
        try:
            yield self
        finally:
            _thread.recording = outer

    def late(self, ask: Callable[[], Any]) -> Late:
        """An argument for ``launch`` that is ``ask()`` at each replay."""
        self.lates.append(Late(ask))
        return self.lates[-1]

    def allocate(self, size: int, kept: bool = False) -> Slot:
        """A slot of at least ``size`` bytes."""
        return Slot(max(size, 1), kept=kept)

    def launch(
        self,
        program: cl.Program,
        kernel: str,
        dtypes: Sequence[Any],
        global_size: tuple[int, ...],
        local_size: tuple[int, ...] | None,
        arguments: Sequence[Any],
    ) -> Command:
        """Record one kernel; stands for the event that a queue would answer."""

        def make(memory: Callable[[Any], Any]) -> Callable[..., Any]:
            import pyopencl as cl

            bound = cl.Kernel(program, kernel)  # one of its own: it keeps these arguments
            bound.set_scalar_arg_dtypes(list(dtypes))
            late = [(i, np.dtype(dtypes[i]).type, a) for i, a in enumerate(arguments) if type(a) is Late]
            real = [memory(a) if isinstance(a, Slot) else 0 if type(a) is Late else a for a in arguments]
            bound.set_args(*real)
            enqueue = cl.enqueue_nd_range_kernel

            def run(queue: cl.CommandQueue, wait_for: Any = None, _held: Any = real) -> cl.Event:
                for place, number, given in late:
                    bound.set_arg(place, number(given.value))
                return enqueue(queue, bound, global_size, local_size, wait_for=wait_for)

            return run  # holds the arguments: a kernel does not keep their memory alive

        return self._add(make, arguments, kernel)

    def copy(self, target: Any, source: Any, size: int, source_offset: int = 0, target_offset: int = 0) -> Command:
        """Record a copy of ``size`` bytes between buffers or slots."""

        def make(memory: Callable[[Any], Any]) -> Callable[..., Any]:
            import pyopencl as cl

            to, of = (memory(a) if isinstance(a, Slot) else a for a in (target, source))
            return lambda queue, wait_for=None: cl.enqueue_copy(
                queue, to, of, byte_count=size, src_offset=source_offset, dst_offset=target_offset, wait_for=wait_for
            )

        return self._add(make, (target, source), "copy")

    def fill(self, target: Any, pattern: Any, offset: int, size: int) -> Command:
        """Record the filling of ``size`` bytes with a NumPy number."""

        def make(memory: Callable[[Any], Any]) -> Callable[..., Any]:
            import pyopencl as cl

            to = memory(target) if isinstance(target, Slot) else target
            return lambda queue, wait_for=None: cl.enqueue_fill_buffer(
                queue, to, pattern, offset, size, wait_for=wait_for
            )

        return self._add(make, (target,), "fill")

    def call(self, work: Callable[..., Any], operands: Sequence[Any], what: str = "call") -> Command:
        """Record ``work(queue, *operands, wait_for=)``, which enqueues by itself each time; slots become buffers."""

        def make(memory: Callable[[Any], Any]) -> Callable[..., Any]:
            real = [memory(a) if isinstance(a, Slot) else a for a in operands]
            return lambda queue, wait_for=None: work(queue, *real, wait_for=wait_for)

        return self._add(make, operands, what)

    def _add(self, make: Any, operands: Iterable[Any], what: str) -> Command:
        command = Command(make, tuple(_slots(operands)), what, self.step)
        self.commands.append(command)
        return command


class _Thread(threading.local):
    recording: Recording | None = None


_thread = _Thread()


def recording_of(queue: Any) -> Recording | None:
    """The recording that takes what is enqueued on ``queue``: itself, or the one that captures it; or None."""
    if type(queue) is Recording:
        return queue
    found = _thread.recording
    return found if found is not None and queue == found.queue else None


def _slots(operands: Iterable[Any]) -> Iterator[Slot]:
    return (operand for operand in operands if isinstance(operand, Slot))
