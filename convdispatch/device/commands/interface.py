"""Where commands go: the one interface that plans, products, steps and layers see in a queue's place.

A plan is handed a queue and hands it on: to launches, products, copies. What these do with it is said here, once:
``commands_of`` answers what a queue stands for, and that launches, copies, fills, allocates and calls. There are four
kinds: an OpenCL queue (``queues``), host memory under a CPU device's queue (``host``), a CUDA stream (``stream``) and a
recording (``recording``), which is replayed on any of the others.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import pyopencl as cl


@functools.cache
def _kernel_names() -> Any:
    import pyopencl as cl

    return cl.program_info.KERNEL_NAMES


class Kernel:
    """A kernel of a built program, its sizes and its arguments' types; safe to launch from several threads.

    ``dtypes`` has None for memory, else NumPy's type of a number.
    """

    __slots__ = ("_bound", "dtypes", "global_size", "local_size", "lock", "name", "program", "streams")

    def __init__(
        self,
        program: cl.Program,
        name: str,
        global_size: Sequence[int],
        local_size: Sequence[int] | None,
        dtypes: Sequence[Any],
    ) -> None:
        self.program, self.name = program, name
        self.global_size = tuple(map(int, global_size))
        self.local_size = None if local_size is None else tuple(map(int, local_size))
        self.dtypes = [None if dtype is None else np.dtype(dtype) for dtype in dtypes]
        self._bound: Any = None
        if name not in program.get_info(_kernel_names()).split(";"):
            self.make()  # raises with the driver's message, as the program has no such kernel
        self.lock = threading.Lock()  # a cl.Kernel stores its arguments: setting them and launching must not interleave
        self.streams: Any = None
        """The CUDA function that launches the kernel on streams, once it has been loaded."""

    @property
    def bound(self) -> cl.Kernel:
        """The pyopencl kernel for launches on OpenCL queues, which set its arguments one launch at a time; made at the
        first launch."""
        if self._bound is None:
            self._bound = self.make()
        return self._bound

    def make(self) -> cl.Kernel:
        """A pyopencl kernel with arguments of its own."""
        made = self.plain()
        made.set_scalar_arg_dtypes(self.dtypes)
        return made

    def plain(self) -> cl.Kernel:
        """A pyopencl kernel whose arguments are set one by one, numbers as NumPy scalars; quicker to create than by
        ``make``."""
        import pyopencl as cl

        return cl.Kernel(getattr(self.program, "opencl", self.program), self.name)


class Late:
    """A kernel's argument that differs at every replay: a number that is asked for, such as the next counter of a
    random stream, or memory that the caller sets."""

    __slots__ = ("ask", "value")

    def __init__(self, ask: Callable[[], Any]) -> None:
        self.ask, self.value = ask, None

    def draw(self) -> None:
        """Ask for the number; kernels that are enqueued from now on get it."""
        self.value = self.ask()


class Commands:
    """Takes commands in order. ``context`` and ``device`` are OpenCL's, which compiled the kernels.

    ``launch``, ``copy``, ``fill`` and ``call`` answer what stands for the command's event: something to wait for, to
    be handed on as ``wait_for``. Memory is what ``allocate`` answers, or the caller's own of the same kind; what is no
    OpenCL buffer has ``size`` and ``get_sub_region(offset, size)`` as a buffer has.
    """

    __slots__ = ()
    context: cl.Context
    device: cl.Device
    kind = "opencl"
    """The kind of memory that commands use: a binding made for one kind serves all of the same kind, context and
    device."""
    replayed = False
    """Whether commands are recorded, and run later, perhaps many times."""

    def launch(self, kernel: Kernel, arguments: Sequence[Any], wait_for: Any = None) -> Any:
        """Run a kernel; ``arguments`` are memory, None for a null pointer, and numbers as ``kernel.dtypes`` says."""
        raise NotImplementedError

    def copy(
        self,
        target: Any,
        source: Any,
        size: int,
        source_offset: int = 0,
        target_offset: int = 0,
        wait_for: Any = None,
    ) -> Any:
        """Copy ``size`` bytes from one memory to another, each from its byte offset on."""
        raise NotImplementedError

    def fill(self, target: Any, number: Any, offset: int, size: int, wait_for: Any = None) -> Any:
        """Fill ``size`` bytes from byte ``offset`` on with repetitions of a NumPy number."""
        raise NotImplementedError

    def allocate(self, size: int) -> Any:
        """Memory of at least ``size`` bytes for commands given here; it may be released as soon as they are
        enqueued."""
        raise NotImplementedError

    def call(self, work: Callable[..., Any], operands: Sequence[Any], what: str, wait_for: Any = None) -> Any:
        """Call ``work(queue, *operands, wait_for=)``, which enqueues by its own means; None among operands stays
        None."""
        raise NotImplementedError

    def fresh(self, size: int) -> Any:
        """Memory that lives long and is never a part of another; not for a recording."""
        raise NotImplementedError

    def bring(self, array: np.ndarray) -> Any:
        """Memory as ``fresh`` with a contiguous array's values, complete when this returns."""
        raise NotImplementedError

    def read(self, region: Any, array: np.ndarray, offset: int = 0) -> None:
        """Copy from byte ``offset`` of memory into a contiguous host array, after all that was given; waits."""
        raise NotImplementedError

    def write(self, region: Any, array: np.ndarray, offset: int = 0) -> None:
        """Copy a contiguous host array to byte ``offset`` of memory, after all that was given; waits."""
        raise NotImplementedError

    def complete(self, event: Any) -> bool:
        """Whether a command of this kind of queue has completed."""
        import pyopencl as cl

        return event.command_execution_status == cl.command_execution_status.COMPLETE

    def flush(self) -> Any:
        """Flush: the commands so far will run without a further call."""
        return None

    def bind(self, kernel: Kernel, arguments: Sequence[Any]) -> Callable[..., Any]:
        """Returns ``run(commands, wait_for=None)``, a launch with its arguments set, for many replays on this kind of
        commands."""
        if not any(type(a) is Late for a in arguments):
            return lambda commands, wait_for=None: commands.launch(kernel, arguments, wait_for)

        def run(commands: Commands, wait_for: Any = None) -> Any:
            return commands.launch(kernel, [a.value if type(a) is Late else a for a in arguments], wait_for)

        return run

    def late(self, ask: Callable[[], Any]) -> Any:
        """A number for ``launch``: ``ask()`` now, or at each replay."""
        return ask()


class _Thread(threading.local):
    capturing: Any = None
    texts: list[str | bytes] | None = None
    given = compiled = slow = 0


thread = _Thread()
"""``capturing`` is the recording that takes what this thread gives to a queue; ``texts`` takes the programs that it
would have compiled, where they are only to be read (``kernels.rendering``); ``given`` counts its commands,
``compiled`` the texts that it had compiled, ``slow`` the builds that took their time, of binaries too."""
