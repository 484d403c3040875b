"""Constant weights, and their packed forms, each made once for each context and way of packing."""

from __future__ import annotations

import hashlib
import math
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyopencl as cl

from ..api.errors import InvalidArgument
from ..device.cache import artifact_store, keys
from ..device.cache.artifact_store import forbid_unstored
from ..device.commands.host_memory import HostQueue
from ..device.commands.interface import Commands
from ..device.commands.queues import commands_of
from ..device.places.stream import KINDS as STREAMS
from ..device.startup_profile import layer, phase


class Constant:
    """Weights that will not change: a plan may pack or transform them once, and the packed form is cached here.

    Has the shape and dtype of the array that it wraps. Writing to the array afterwards is an error that nothing
    detects.
    """

    __slots__ = ("__weakref__", "_device_copies", "_lock", "_packed", "_seen", "addresses", "array", "releases")

    def __init__(self, array: Any) -> None:
        self.array = array
        self._packed: dict[Any, Any] = {}
        self.addresses: dict[Any, Any] = {}
        """The device addresses of packed weights that are complete, by the key of the fast path that reads them."""
        self.releases = 0
        """The number of times that packed weights were released; a fast path that caches an address compares it."""
        self._device_copies: dict[Any, Any] = {}
        self._seen: dict[str, Constant] = {}
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return f"<constant weights of {self.dtype}, {tuple(self.shape)}, in {type(self.array).__name__}>"

    def seen_as(self, kind: str, view: Callable[[], Any]) -> Constant:
        """Return the same weights as another kind of array over the same memory, with a separate cache of packed
        forms."""
        constant = self._seen.get(kind)
        if constant is None:
            constant = self._seen.setdefault(kind, Constant(view()))
        return constant

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the wrapped weights."""
        return self.array.shape

    @property
    def dtype(self) -> np.dtype:
        """Dtype of the wrapped weights."""
        return self.array.dtype

    def on_device(self, queue: cl.CommandQueue) -> cl.MemoryObject:
        """A copy of host weights in the queue's context, made once a context."""
        commands = commands_of(queue)
        key = (commands.kind, commands.context)
        copy = self._device_copies.get(key)
        if copy is None:
            forbid_unstored("copy constant weights to the device", commands.device)
            native = np.ascontiguousarray(self.array, self.array.dtype.newbyteorder("="))
            copy = commands.bring(native)
            with self._lock:
                copy = self._device_copies.setdefault(key, copy)
        return copy

    def packed(
        self, prepared: Any, queue: cl.CommandQueue, w: cl.MemoryObject, wait_for: Sequence[cl.Event] | None = None
    ) -> tuple[cl.MemoryObject, cl.Event | None]:
        """Return the packed weights for ``prepared``, and the event that completes them, or None once they are
        complete.

        They are packed once for each context and pack key, on ``queue``, after the events ``wait_for``.
        """
        commands = commands_of(queue)
        key = (commands.kind, prepared.pack_key)
        entry, is_new = self._packed.get(key), False
        if entry is None:
            forbid_unstored("pack constant weights", commands.device)
            with self._lock:
                entry = self._packed.get(key)
                if entry is None:
                    with layer(str(prepared.problem)), phase("packing"):
                        entry = _pack(prepared, commands, queue, w, wait_for)
                    commands.flush()  # The commands are flushed, because other queues may wait for the packed weights.
                    self._packed[key], is_new = entry, True
        # Packed weights of streams are never evicted: a captured graph may hold nothing but their address.
        if is_new and commands.kind not in STREAMS:
            # ``packed_for`` is called without the lock, because it may evict packed forms of these same weights.
            prepared.packed_for(self)
        memory, event = entry
        if event is not None and commands.complete(event):
            if key in self._packed:
                self._packed[key] = memory, None
            event = None
        return memory, event

    def release(self, pack_key: Any) -> None:
        """Release the packed forms of a pack key, except those of streams. Calls under way hold ``addresses``, and by
        it the memory that they read, so the dictionary is replaced and not changed."""
        with self._lock:
            released = {key for key in self._packed if key[1] == pack_key and key[0] not in STREAMS}
            memory = [self._packed[key][0] for key in released]
            self._packed = {key: packed for key, packed in self._packed.items() if key not in released}
            kept = [key for key, address in self.addresses.items() if not any(address is packed for packed in memory)]
            self.addresses = {key: self.addresses[key] for key in kept}
            self.releases += 1


def _pack(prepared: Any, commands: Commands, queue: Any, w: Any, wait_for: Any) -> tuple[Any, Any]:
    """New memory for the packed form of ``w``, and the event that completes it."""
    memory = commands.fresh(prepared.packed_size)
    pack = prepared.plan.pack  # type: ignore[attr-defined]
    form = f"{prepared.solver.name} {keys.key_of(repr(prepared.pack_key[1:]))}"
    if artifact_store.in_force() and artifact_store.find("weights", form, commands.device):
        stored = artifact_store.find("weights", _weights_key(form, prepared, commands, w, wait_for), commands.device)
        if stored is not None and len(stored[0]) == prepared.packed_size:
            commands.write(memory, np.frombuffer(stored[0], np.uint8))
            return memory, None

    def made() -> tuple[Any, Any]:
        if prepared.recordable:
            event = pack(queue, w, memory, wait_for)
        else:
            event = commands.call(pack, (w, memory), "pack", wait_for)
        if isinstance(commands, HostQueue):  # Scratch memory of a host queue lives until the queue is finished.
            commands.finish(event)
        return memory, event

    return _timed_pack(form, prepared, commands, w, wait_for, made) if artifact_store.gathers() else made()


def _timed_pack(form: str, prepared: Any, commands: Commands, w: Any, wait_for: Any, pack: Callable[[], Any]) -> Any:
    """Return the result of ``pack``; store the packed weights in the plan pack if packing takes longer than reading."""
    pack()[1].wait()  # The first packing is not timed, because it loads its kernels.
    packed_s = read_s = math.inf
    # The least of three times counts, so that other work on the machine does not decide what a plan pack holds.
    for _ in range(3):
        start = time.perf_counter()
        memory, event = pack()
        event.wait()
        packed_s, start = min(packed_s, time.perf_counter() - start), time.perf_counter()
        key = _weights_key(form, prepared, commands, w, wait_for)
        content = _read(commands, memory, prepared.packed_size)
        read_s = min(read_s, time.perf_counter() - start)
    if artifact_store.all_weights() or packed_s > read_s:
        artifact_store.note("weights", form, lambda: b"", commands.device)
        artifact_store.note("weights", key, lambda: content, commands.device)
    return memory, None


def _weights_key(form: str, prepared: Any, commands: Commands, w: Any, wait_for: Any) -> str:
    """Return the key of packed weights: the plan's way of packing, and the weights' values."""
    problem = prepared.problem
    source = _read(commands, w, int(np.prod(problem.w_shape)) * problem.itemsize, *(wait_for or ()))
    return f"{form} {hashlib.sha256(source).hexdigest()}"


def _read(commands: Commands, memory: Any, size: int, *events: Any) -> np.ndarray:
    for event in events:
        if event is not None:
            event.wait()
    content = np.empty(size, np.uint8)
    commands.read(memory, content)
    return content


def constant(w: Any) -> Constant:
    """Promise that ``w`` (NumPy array, ``pyopencl.array.Array`` or Tensor) keeps its values; see Constant."""
    if not hasattr(w, "dtype"):
        raise InvalidArgument(f"constant takes an array of weights, got {type(w).__name__}")
    return w if isinstance(w, Constant) else Constant(w)
