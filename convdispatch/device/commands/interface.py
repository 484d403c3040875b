"""The interface of everything that takes commands in order, which plans, products, steps and layers use as a queue.

A plan passes its queue on to launches, products and copies; ``queues.commands_of`` returns the Commands for a queue:
they launch, copy, fill, allocate and call. There are four kinds: an OpenCL queue (``queues``), host memory under a CPU
device's queue (``host_memory``), a stream of a device (``places.stream``) and a recording (``recording``), which is
replayed on any of the others.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyopencl as cl

from ..memory import allocator


class Kernel:
    """A kernel of a built program, its sizes and its arguments' types; safe to launch from several threads.

    ``dtypes`` has an entry for each argument: None for memory, NumPy's dtype for a number.
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
        if name not in program.get_info(cl.program_info.KERNEL_NAMES).split(";"):
            self.make()  # raises with the driver's message, as the program has no such kernel
        self.lock = threading.Lock()  # a cl.Kernel stores its arguments: setting them and launching must not interleave
        self.streams: Any = None
        """The CUDA function that launches the kernel on streams, once it has been loaded."""

    @property
    def bound(self) -> cl.Kernel:
        """The pyopencl kernel for launches on OpenCL queues, which set its arguments at each launch; created by the
        first."""
        if self._bound is None:
            self._bound = self.make()
        return self._bound

    def make(self) -> cl.Kernel:
        """A new pyopencl kernel, whose arguments no other launch sets."""
        kernel = self.plain()
        kernel.set_scalar_arg_dtypes(self.dtypes)
        return kernel

    def plain(self) -> cl.Kernel:
        """A pyopencl kernel whose arguments are set one by one, quicker to create than by ``make``."""
        return cl.Kernel(getattr(self.program, "opencl", self.program), self.name)


class Commands:
    """Takes commands in order. ``context`` and ``device`` are OpenCL's, which compiled the kernels.

    ``launch``, ``copy``, ``fill`` and ``call`` return the command's event or its equivalent, to be waited for or passed
    on as ``wait_for``. Memory comes from ``allocate`` or from the caller; memory that is no OpenCL buffer has
    ``size`` and ``get_sub_region(offset, size)`` as a buffer has.
    """

    __slots__ = ()
    queue: cl.CommandQueue
    """The OpenCL queue of commands that are no stream's."""
    kind = "opencl"
    """The kind of memory that commands use: a binding serves all Commands of the same kind, context and device."""
    replayed = False
    """Whether commands are only recorded, to run later, perhaps many times."""

    @property
    def context(self) -> cl.Context:
        """The queue's context."""
        return self.queue.context

    @property
    def device(self) -> cl.Device:
        """The queue's device."""
        return self.queue.device

    def launch(self, kernel: Kernel, arguments: Sequence[Any], wait_for: Any = None) -> Any:
        """Run a kernel; ``arguments`` are memory, None for a null pointer, and numbers as ``kernel.dtypes`` says."""
        raise NotImplementedError

    def copy(self, target: Any, source: Any, size: int, offsets: tuple[int, int] = (0, 0), wait_for: Any = None) -> Any:
        """Copy ``size`` bytes from one memory to another; ``offsets`` are the first bytes in source and target."""
        raise NotImplementedError

    def fill(self, target: Any, number: Any, offset: int, size: int, wait_for: Any = None) -> Any:
        """Fill ``size`` bytes from byte ``offset`` on with repetitions of a NumPy number."""
        raise NotImplementedError

    def allocate(self, size: int) -> Any:
        """Memory of at least ``size`` bytes for commands of this queue; the caller may release it once they are
        enqueued."""
        raise NotImplementedError

    def call(self, work: Callable[..., Any], operands: Sequence[Any], what: str, wait_for: Any = None) -> Any:
        """Call ``work(queue, *operands, wait_for=)``, which enqueues by itself; None among operands stays None."""
        raise NotImplementedError

    def fresh(self, size: int) -> Any:
        """Long-lived memory that is never a part of another block, for example for packed weights; see
        ``memory.fresh``."""
        return allocator.fresh(self.queue, size)

    def bring(self, array: np.ndarray) -> Any:
        """Memory as from ``fresh`` with a copy of a contiguous array, complete when this returns."""
        return allocator.fresh(self.queue, array.nbytes, array)

    def read(self, region: Any, array: np.ndarray, offset: int = 0) -> None:
        """Copy from byte ``offset`` of memory into a contiguous host array, after all earlier commands; waits."""
        raise NotImplementedError

    def write(self, region: Any, array: np.ndarray, offset: int = 0) -> None:
        """Copy a contiguous host array to byte ``offset`` of memory, after all earlier commands; waits."""
        raise NotImplementedError

    def complete(self, event: Any) -> bool:
        """Whether a command of this kind of queue has completed."""
        return event.command_execution_status == cl.command_execution_status.COMPLETE

    def flush(self) -> Any:
        """Submit the commands so far, so that they run without a further call."""
        return None

    def bind(self, kernel: Kernel, arguments: Sequence[Any]) -> Callable[..., Any]:
        """Returns ``run(commands, wait_for=None)``, a launch with its arguments set, for replays on such commands."""
        return lambda commands, wait_for=None: commands.launch(kernel, arguments, wait_for)


class _Thread(threading.local):
    texts: list[str | bytes] | None = None
    enqueued = compiled = slow = 0


thread = _Thread()
"""This thread's state: ``texts`` collects program texts that are rendered instead of compiled (``kernels.rendering``);
``enqueued`` counts its commands, ``compiled`` the texts that were compiled for it, ``slow`` its slow builds, from text
or binary."""
