"""Streams of devices on which kernels get addresses of memory: CUDA's, and those of PyTorch's other builds.

A kind of stream is one module: a subclass of ``StreamPlace`` (one device of the kind, where executables are bound) and
a subclass of ``Stream`` (its commands), and a line of ``KINDS``. Calls, nets, array libraries and the frameworks'
integrations use these two classes alone.
"""

from __future__ import annotations

import functools
import importlib
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pyopencl as cl

from ...api.errors import ConvDispatchError
from ..commands.interface import Commands

if TYPE_CHECKING:
    from ..commands.recording import Command
    from ..executable import Executable

Allocate = Callable[[int], tuple[int, Any]]
"""``allocate(size) -> (address, owner)``: memory for work on the stream, which the owner's destructor frees."""
KINDS: dict[str, str] = {"cuda": "convdispatch.device.cuda.stream:CudaPlace"}
"""The kinds of streams, by the name that PyTorch gives the device's type: module and class of the kind's place."""


class Unlaunchable(ConvDispatchError):
    """A program that a stream's driver cannot load or launch; the message says why."""


class StreamMemory:
    """Memory of ``size`` bytes at an address of a stream's device; ``held`` is an object that must live as long."""

    __slots__ = ("address", "held", "size")

    def __init__(self, address: int, size: int, held: Any = None) -> None:
        self.address, self.size, self.held = address, size, held

    def get_sub_region(self, offset: int, size: int) -> StreamMemory:
        """``size`` bytes from byte ``offset`` on; keeps the whole memory alive."""
        return StreamMemory(self.address + offset, size, self)

    def __repr__(self) -> str:
        return f"StreamMemory({self.size} bytes at {self.address:#x})"


class StreamPlace:
    """One device of a kind of streams, and the same device in OpenCL, which compiles what the streams launch."""

    kind: ClassVar[str]
    """The name in ``KINDS``."""
    title: ClassVar[str]
    """The name of a device of the kind in errors; the device's number follows it."""
    dlpack: ClassVar[int]
    """DLPack's number for the kind's devices."""
    xla: ClassVar[str] = ""
    """XLA's name of the platform; empty where XLA has none."""
    torch_type: ClassVar[str]
    """The type of PyTorch's devices of the kind."""
    torch_graph: ClassVar[str] = ""
    """The class of captured graphs in PyTorch's module of the kind's name; empty where it captures none."""
    blocking: ClassVar[bool] = False
    """Whether each call waits for its kernels, so that a fault is reported where it happened."""

    def __init__(self, number: int, device: cl.Device, context: cl.Context) -> None:
        self.number, self.device, self.context = number, device, context
        self.recent = deque[str](maxlen=8)
        """The solvers that were launched last, for the message about a fault."""

    def __str__(self) -> str:
        return f"{self.title} {self.number}"

    @classmethod
    def numbered(cls, number: int) -> StreamPlace:
        """The place of the device with this number. Raises NoDevice if OpenCL has no such device."""
        raise NotImplementedError

    @classmethod
    def of_device(cls, device: cl.Device) -> StreamPlace | None:
        """The place of an OpenCL device; None for a device of another kind."""
        raise NotImplementedError

    @classmethod
    def serves(cls, torch: Any) -> bool:
        """Whether a build of PyTorch has devices of the kind; a build has devices of one kind."""
        raise NotImplementedError

    @classmethod
    def torch_functions(cls, torch: Any) -> tuple[Callable[[int], int], Callable[[], int]]:
        """Two functions of PyTorch: the handle of the current stream of a device, and the current device's number."""
        raise NotImplementedError

    def stream(self, handle: int, allocate: Allocate | None = None) -> Stream:
        """The stream of a handle; ``allocate`` is its caller's allocator."""
        raise NotImplementedError

    def new_stream(self) -> Stream:
        """A stream that nobody else uses and that waits for no other."""
        raise NotImplementedError

    def bind(self, executable: Executable) -> Any:
        """Returns an object whose ``run(stream, addresses)`` launches the executable, or returns False, before any
        launch, where memory or a context is lacking; ``program`` as in ``places/host``. None where the plan must
        enqueue anew at each call. Raises Unlaunchable."""
        raise NotImplementedError

    def assemble(self, executable: Executable) -> None:
        """Cache what the driver makes of the executable's programs, for another process that launches them. Raises
        Unlaunchable."""
        self.bind(executable)

    def replay(self, commands: Sequence[Command], memory: Callable[[Any], Any]) -> Callable[[Stream], Any]:
        """Returns ``give(stream)``, which enqueues all recorded commands without a wait; here one by one, in order.

        Raises Unlaunchable if a program or a plan cannot run on a stream.
        """
        with self.current():
            first = self.new_stream()
            runs = [command.make(memory, first) for command in commands]

        def give(stream: Stream) -> None:
            with stream.current():
                for run in runs:
                    run(stream)

        return give

    def current(self) -> Any:
        """A context manager that makes the device the thread's current one."""
        raise NotImplementedError

    def is_current(self) -> bool:
        """Whether the device is the thread's current one."""
        raise NotImplementedError


class Stream(Commands):
    """Commands for one stream. Memory is StreamMemory, or OpenCL's that the device's driver sees too.

    ``allocate`` is the caller's allocator; the default is a pool in the stream's order. The stream itself takes the
    place of its commands' events: ``wait`` waits for all of them.
    """

    __slots__ = ("_allocate", "handle", "place")
    properties = 0
    """The properties of an in-order OpenCL queue, which a stream behaves like."""

    def __init__(self, place: StreamPlace, handle: int, allocate: Allocate | None = None) -> None:
        self.place, self.handle, self._allocate = place, handle, allocate

    @property
    def kind(self) -> str:  # type: ignore[override]
        """The kind of the stream, a name in ``KINDS``."""
        return self.place.kind

    @property
    def context(self) -> cl.Context:
        """OpenCL's context, for which programs are compiled."""
        return self.place.context

    @property
    def device(self) -> cl.Device:
        """OpenCL's device."""
        return self.place.device

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Stream) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())

    def _key(self) -> tuple[str, int, int]:
        return self.kind, self.place.number, self.handle

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.handle:#x} on {self.place})"

    def allocate(self, size: int) -> StreamMemory:
        """Memory from the caller's allocator, else from the pool; it is freed in the stream's order."""
        address, owner = self.scratch(size or 1)
        return StreamMemory(address, size, owner)

    def scratch(self, size: int) -> tuple[int, Any]:
        """Returns (address, owner) of memory from the same source as ``allocate``."""
        return self.pooled(size) if self._allocate is None else self._allocate(size)

    def pooled(self, size: int) -> tuple[int, Any]:
        """Returns (address, owner) of memory from the pool in the stream's order."""
        raise NotImplementedError

    def fresh(self, size: int) -> StreamMemory:
        """Memory from the pool, not from the caller's allocator, which may be using a graph's private memory.

        Raises ConvDispatchError while the stream is captured.
        """
        if self.capturing():
            raise ConvDispatchError(
                f"weights are packed at a first call, which a {self.kind.upper()} graph cannot capture: make one before"
            )
        address, owner = self.pooled(size or 1)
        return StreamMemory(address, size, owner)

    def call(self, work: Callable[..., Any], operands: Sequence[Any], what: str, wait_for: Any = None) -> Any:
        """See Commands; ``work`` gets this stream as its queue, for example to call a library of the device's on it."""
        work(self, *operands, wait_for=wait_for)
        return self

    def bring(self, array: np.ndarray) -> StreamMemory:
        """A copy of a contiguous host array; complete when this returns."""
        memory = self.fresh(array.nbytes)
        self.write(memory, array)
        return memory

    def complete(self, event: Stream) -> bool:
        """Waits for the stream, because weights are packed once and read by other streams."""
        event.wait()
        return True

    def current(self) -> Any:
        """A context manager that makes the stream's device the thread's current one."""
        return self.place.current()

    def address_of(self, region: Any) -> int:
        """The address of memory for the stream's kernels; 0 for None. Raises ConvDispatchError for memory that only
        OpenCL sees."""
        raise NotImplementedError

    def wait(self) -> None:
        """Wait for all commands so far. Raises ConvDispatchError if one of their kernels failed."""
        raise NotImplementedError

    def capturing(self) -> bool:
        """Whether the stream's commands are being captured into a graph."""
        raise NotImplementedError

    def before(self, handle: int) -> None:
        """Make later commands of another stream of the device wait for all commands of this stream so far."""
        raise NotImplementedError

    def after(self, other: Stream) -> None:
        """Make later commands of this stream wait for all commands of another stream so far."""
        raise NotImplementedError

    def keep(self, held: Any) -> None:
        """Keep objects alive until the commands so far have ended."""
        raise NotImplementedError

    def check(self) -> None:
        """Wait for the commands so far if the place is blocking: a fault is then reported here, by its solver's
        name."""
        if self.place.blocking:
            self.wait()


def stream_kind(name: str) -> type[StreamPlace]:
    """The class of the places of a kind of streams."""
    return _loaded(KINDS[name])


@functools.cache
def _loaded(home: str) -> type[StreamPlace]:
    module, _, name = home.partition(":")
    return getattr(importlib.import_module(module), name)


def dlpack_kind(number: int) -> type[StreamPlace] | None:
    """The kind of streams of DLPack's device type; None for a type of another kind."""
    return next((kind for kind in map(stream_kind, KINDS) if kind.dlpack == number), None)


def place_of_device(device: cl.Device) -> StreamPlace | None:
    """The place of an OpenCL device; None if none of the kinds has it."""
    return next(filter(None, (stream_kind(name).of_device(device) for name in KINDS)), None)
