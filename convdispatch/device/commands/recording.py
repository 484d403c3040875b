"""Recording takes the place of a queue while work is enqueued, and stores the commands, to be replayed without Python.

Memory that is allocated meanwhile is only a Slot: once the recording ends, the lifetimes of all slots are known, and
they share one arena. Commands stay in the order of their enqueuing. Work that cannot be recorded (a plan that calls
another library) is stored as a call, which is repeated at each replay.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyopencl as cl

from ...api.errors import InvalidArgument
from .interface import Commands, Kernel


class Slot:
    """Memory that a recorded program will have: ``size`` bytes, or a part of another slot.

    It is used like an OpenCL buffer while commands are recorded. ``persistent`` slots share no memory, because their
    values outlive one replay (inputs, results).
    """

    __slots__ = ("offset", "persistent", "root", "size")

    def __init__(self, size: int, root: Slot | None = None, offset: int = 0, persistent: bool = False) -> None:
        self.size, self.root, self.offset, self.persistent = size, root or self, offset, persistent

    def get_sub_region(self, offset: int, size: int) -> Slot:
        """``size`` bytes from byte ``offset`` on, as ``cl.Buffer.get_sub_region``."""
        return Slot(size, self.root, self.offset + offset)

    def __repr__(self) -> str:
        return f"Slot({self.size} bytes{f' at {self.offset}' if self.offset else ''})"


@dataclass(eq=False)
class Command:
    """A recorded command: ``make(memory, commands)`` returns ``run(commands, wait_for=None)``, which enqueues it.

    ``memory(slot)`` returns a slot's memory; ``commands`` are of the kind on which the command will be enqueued.
    ``step`` is the number of the caller's unit of work to which the command belongs.
    """

    make: Callable[[Callable[[Any], Any], Commands], Callable[..., Any]]
    slots: tuple[Slot, ...]
    what: str
    step: int = 0
    kernel: Kernel | None = None
    """The kernel that the command launches with ``arguments``; None for other commands."""
    arguments: Sequence[Any] = ()
    """The arguments of the kernel, or of the call of ``copy``; empty for other commands."""

    def wait(self) -> None:
        """Raises InvalidArgument, because a recorded command has not run."""
        raise InvalidArgument("a recorded command runs when it is replayed, there is nothing to wait for")


@dataclass(eq=False)
class Recording(Commands):
    """A recording of commands, which plans and tensors use like an in-order queue of ``queue``'s context and device."""

    queue: cl.CommandQueue
    """The real queue, which takes work that must happen now, such as packing constant weights, and which real memory
    (``fresh``, ``bring``) is for."""
    commands: list[Command] = field(default_factory=list)
    step: int = 0
    """The number of the unit of work that is being recorded; the caller counts them."""

    replayed = True

    def allocate(self, size: int, persistent: bool = False) -> Slot:
        """A slot of at least ``size`` bytes."""
        return Slot(max(size, 1), persistent=persistent)

    def read(self, region: Any, array: np.ndarray, offset: int = 0) -> None:
        """Raises InvalidArgument: there are no values before a replay."""
        raise InvalidArgument("a recording has no values to read before it is replayed")

    def write(self, region: Any, array: np.ndarray, offset: int = 0) -> None:
        """Raises InvalidArgument, because a replay would not repeat the write from the host."""
        raise InvalidArgument("a recording cannot replay a copy from the host")

    def launch(self, kernel: Kernel, arguments: Sequence[Any], wait_for: Any = None) -> Command:
        """Record the launch of one kernel; the Command takes the place of the event that a queue would return."""
        command = self._add(
            lambda memory, commands: commands.bind(kernel, _memory_of(memory, arguments)), arguments, kernel.name
        )
        command.kernel, command.arguments = kernel, arguments
        return command

    def copy(
        self, target: Any, source: Any, size: int, offsets: tuple[int, int] = (0, 0), wait_for: Any = None
    ) -> Command:
        """Record a copy of ``size`` bytes between memory or slots."""

        def make(memory: Callable[[Any], Any], commands: Commands) -> Callable[..., Any]:
            pair = _memory_of(memory, (target, source))
            return lambda commands, wait_for=None: commands.copy(*pair, size, offsets, wait_for)

        command = self._add(make, (target, source), "copy")
        command.arguments = target, source, size, *offsets
        return command

    def fill(self, target: Any, number: Any, offset: int, size: int, wait_for: Any = None) -> Command:
        """Record the filling of ``size`` bytes with a NumPy number."""

        def make(memory: Callable[[Any], Any], commands: Commands) -> Callable[..., Any]:
            (region,) = _memory_of(memory, (target,))
            return lambda commands, wait_for=None: commands.fill(region, number, offset, size, wait_for)

        return self._add(make, (target,), "fill")

    def call(self, work: Callable[..., Any], operands: Sequence[Any], what: str, wait_for: Any = None) -> Command:
        """Record ``work(queue, *operands, wait_for=)``, which enqueues by itself each time; slots become memory."""

        def make(memory: Callable[[Any], Any], commands: Commands) -> Callable[..., Any]:
            regions = _memory_of(memory, operands)
            return lambda commands, wait_for=None: commands.call(work, regions, what, wait_for)

        return self._add(make, operands, what)

    def _add(self, make: Any, operands: Iterable[Any], what: str) -> Command:
        slots = tuple(operand for operand in operands if isinstance(operand, Slot))
        command = Command(make, slots, what, self.step)
        self.commands.append(command)
        return command


def with_numbers(kernel: Kernel, arguments: Sequence[Any]) -> cl.Kernel:
    """A new pyopencl kernel with all arguments set except slots."""
    bound_kernel = kernel.plain()
    for index, (argument, dtype) in enumerate(zip(arguments, kernel.dtypes, strict=True)):
        if type(argument) is not Slot:
            bound_kernel.set_arg(index, argument if dtype is None else dtype.type(argument))
    return bound_kernel


def _memory_of(memory: Callable[[Any], Any], operands: Iterable[Any]) -> list[Any]:
    return [memory(operand) if isinstance(operand, Slot) else operand for operand in operands]
