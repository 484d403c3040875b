"""Program: a recording prepared to run on an OpenCL queue: one arena, bound kernels, one enqueue per command.

Memory is allocated and kernels are bound at the first run. The queue keeps the commands' order without events.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any

import pyopencl as cl

from ...api.errors import ConvDispatchError, InvalidArgument
from .. import runtime
from ..commands.queues import OpenCLQueue
from ..commands.recording import Recording, Slot
from ..memory.allocator import sub_region
from ..places.stream import Stream, StreamPlace, place_of_device
from .arena import Arena, lay_out, lifetimes


class Program:
    """``run()`` enqueues everything that ``recording`` holds. Safe from several threads, one run at a time.

    ``persistent`` slots have memory of their own, which ``memory(slot)`` returns; the others share the arena.
    """

    def __init__(self, recording: Recording) -> None:
        self.queue, self.lock = recording.queue, threading.RLock()
        """The lock is held while commands are enqueued, and while memory is allocated."""
        self.what = [command.what for command in recording.commands]
        self._recording = recording
        self._own: dict[Slot, cl.MemoryObject] = {}
        """Memory of inputs and results, by slot."""
        self._parts: dict[Any, Any] = {}
        self._replay: Callable[[Stream], Any] | None = None
        self.no_graph: str | None = None
        """The reason why the program has no CUDA graph, once one was requested."""

    @functools.cached_property
    def arena(self) -> Arena:
        """The arena: the offset of each slot that is not persistent."""
        align = max(128, runtime.device_info(self._recording.device).buffer_alignment)
        return lay_out(lifetimes([command.slots for command in self._recording.commands]), align)

    @functools.cached_property
    def _memory(self) -> cl.MemoryObject:
        return runtime.fresh(self.queue, self.arena.size)

    @functools.cached_property
    def _commands(self) -> OpenCLQueue:
        return OpenCLQueue(self.queue)

    @functools.cached_property
    def _runs(self) -> list[Callable[..., Any]]:
        """The functions that enqueue the commands, bound to their memory."""
        return [command.make(self.memory, self._commands) for command in self._recording.commands]

    def memory(self, slot: Slot) -> cl.MemoryObject:
        """The buffer of a slot."""
        root, start = slot.root, slot.offset
        with self.lock:
            if root.persistent and root not in self._own:
                self._own[root] = runtime.fresh(self.queue, root.size)
            buffer = self._own[root] if root.persistent else self._memory
            if root.persistent and start == 0:
                return buffer
            start += 0 if root.persistent else self.arena.offsets[root]
            key = (root if root.persistent else None, start, slot.size)
            if key not in self._parts:  # cached here, because a cl.Kernel does not keep its arguments' memory alive
                self._parts[key] = sub_region(buffer, start, slot.size)
            return self._parts[key]

    @property
    def nbytes(self) -> int:
        """Bytes of memory that a run takes: the arena, inputs and results."""
        roots = {slot.root for command in self._recording.commands for slot in command.slots if slot.root.persistent}
        return self.arena.size + sum(root.size for root in roots | self._own.keys())

    def run(self) -> cl.Event | None:
        """Enqueue all commands; returns the event of the last one. Never waits."""
        with self.lock:
            event = None
            for run in self._runs:
                event = run(self._commands)
            return event

    @functools.cached_property
    def _place(self) -> StreamPlace | None:
        return place_of_device(self.queue.device)

    @property
    def replay(self) -> Callable[[Stream], Any] | None:
        """``give(stream)``, which gives the program to a stream of the device, cached; None if there is none, for the
        reason ``no_graph``."""
        if self._replay is None and self.no_graph is None:
            if self._place is None:
                self.no_graph = "the device has no streams beside OpenCL's queues"
                return None
            try:
                self.queue.finish()  # wait for constant weights that are being packed on the queue
                self._replay = self._place.replay(self._recording.commands, self.memory)
            except ConvDispatchError as error:
                self.no_graph = str(error)
        return self._replay

    def run_on(self, stream: Stream) -> None:
        """Launch all commands on a stream of the device, instead of the queue. Raises InvalidArgument."""
        if self.replay is None:
            raise InvalidArgument(f"the program does not run on a stream: {self.no_graph}")
        with self.lock:
            self.replay(stream)
