"""Recording: stands where a queue does while work is enqueued, and keeps the commands to be replayed without Python.

Kernels are kept with their arguments set, memory asked for meanwhile is only a Slot: how long each is in use is known
when the recording ends, so that all of them share one arena. Commands stay in the order in which they came. What
cannot be recorded (a plan that calls another library) is kept as a call, which the caller says with ``call``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyopencl as cl

__all__ = ["Command", "Recording", "Slot"]


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

    @property
    def context(self) -> cl.Context:
        """The real queue's context."""
        return self.queue.context

    @property
    def device(self) -> cl.Device:
        """The real queue's device."""
        return self.queue.device

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
            real = [memory(a) if isinstance(a, Slot) else a for a in arguments]
            bound.set_args(*real)
            enqueue = cl.enqueue_nd_range_kernel

            def run(queue: cl.CommandQueue, wait_for: Any = None, _held: Any = real) -> cl.Event:
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


def _slots(operands: Iterable[Any]) -> Iterator[Slot]:
    return (operand for operand in operands if isinstance(operand, Slot))
