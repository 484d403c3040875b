"""The inference form of a net as it runs: on OpenCL's queues, on NumPy's arrays in place, on a CUDA stream."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import pyopencl as cl

from ..api.errors import InvalidArgument
from ..calls.arrays.accepted import refuse_mask
from ..calls.arrays.array_library import Library
from ..calls.arrays.known_libraries import library_of
from ..device import runtime
from ..device.places.stream import Stream, StreamMemory
from ..device.replay.program import Program
from ..elementwise.tensor import Tensor
from .graph import map_operands
from .host_arrays import OWN, HostNet
from .lower import Lowered

Change = Callable[[np.ndarray], Any]
"""A function that converts each result array, for instance to a tensor of PyTorch."""


def _same(array: np.ndarray) -> np.ndarray:
    return array


@dataclass(frozen=True)
class Layer:
    """One operation of the net as it runs: its name, and for a convolution its problem, solver and why this one."""

    name: str
    problem: Any = None
    solver: str = ""
    source: str = ""
    sources: tuple[str, ...] = ()
    """The model file's names of the nodes that the layer computes, if known."""


class Watch(Protocol):
    """The interface of an object that times calls with NumPy arrays, until it removes itself."""

    def call(self, net: InferenceNet, inputs: Sequence[np.ndarray], change: Change) -> Any:
        """The results of a call; waits."""

    def pin(self, net: InferenceNet) -> None:
        """The caller holds tensors of this form: it stays."""


class InferenceNet:
    """A net ready to run: ``net(x)`` copies x in, replays the program and returns the result.

    Calls are enqueued in order on one queue and do not wait for each other; NumPy arrays come back as NumPy arrays.
    """

    def __init__(self, lowered: Lowered, program: Program, layout: str | None, threads: str = OWN) -> None:
        self._lowered, self._program, self._threads = lowered, program, threads
        self.layout = layout
        self.ms = float("nan")
        """The milliseconds of a call when forms were compared; NaN if there was only one form."""
        self.watch: Watch | None = None
        self._quick: HostNet | None = None
        """The fast path of calls with NumPy arrays, from the second call on."""
        self.tried: list[str] = []
        """A description of every form that was built, with its milliseconds."""

    @property
    def described(self) -> str:
        """Layout and time."""
        return f"{self.layout or 'as traced'}: {self.ms:.3f} ms"

    @property
    def own_threads(self) -> str | None:
        """Why calls with the host's arrays run in the device's own threads; None where they run in PyTorch's."""
        return self._on_host[1]

    @property
    def nbytes(self) -> int:
        """Bytes of activations, workspaces, inputs and outputs; without weights."""
        return self._program.nbytes

    @property
    def queue(self) -> cl.CommandQueue:
        """The queue on which a run begins and ends."""
        return self._program.queue

    @property
    def commands(self) -> int:
        """Enqueues of one run."""
        return len(self._program.what)

    @property
    def steps(self) -> list[int]:
        """For each enqueue of a run, the place in ``layers`` of the operation that it belongs to."""
        return [command.step for command in self._lowered.recording.commands]

    @property
    def layers(self) -> list[Layer]:
        """The operations in the order in which they run."""
        return [
            Layer(node.name, sources=node.sources)
            if node.prepared is None
            else Layer(node.name, node.problem, node.prepared.solver.name, node.prepared.source, node.sources)
            for node in self._lowered.nodes
        ]

    def __call__(self, *inputs: Any) -> Any:
        """The result for inputs of the built shapes: tensors (new ones, on the net's queue), or arrays of their kind.

        Arrays of another library on the net's device are read, and results written, on that library's current
        stream, on which the net runs as a CUDA graph.
        """
        if self._quick is not None and (results := self._quick(inputs)) is not None:
            return results
        if len(inputs) != len(self._lowered.inputs):
            raise InvalidArgument(f"the net takes {len(self._lowered.inputs)} inputs, got {len(inputs)}")
        library = library_of(type(inputs[0])) if inputs else None
        if library is None:
            if not all(isinstance(given, np.ndarray) for given in inputs):
                return self._call(inputs, lambda inner: self._real(inner).copy())
            return self._watched(inputs, _same)
        devices = [library.place(given) for given in inputs]
        if any(library_of(type(given)) is not library for given in inputs) or len(set(devices)) > 1:
            raise InvalidArgument(f"the net's inputs must all be of {library.name}, in one place")
        if devices[0] is not None:
            return self._call_on_stream(library, inputs, library.stream(inputs[0], devices[0]))
        views = [library.host(given) for given in inputs]

        def change(array: np.ndarray) -> Any:
            return library.from_host(array, inputs[0])

        results = None if self._quick is None else self._quick(views, change)
        return self._watched(views, change) if results is None else results

    def _watched(self, inputs: Sequence[np.ndarray], change: Change) -> Any:
        return self.call_on_host(inputs, change) if self.watch is None else self.watch.call(self, inputs, change)

    def _call(self, inputs: Sequence[Any], fetch: Callable[[Tensor], Any]) -> Any:
        for given, slot_tensor in zip(inputs, self._lowered.inputs, strict=True):
            self._bring(given, slot_tensor)
        self._program.run()
        return map_operands(fetch, self._lowered.output)

    def call_on_host(self, inputs: Sequence[np.ndarray], change: Change = _same) -> Any:
        """What ``change`` makes of the results: where the arrays lie, if the device can, else by way of its memory."""
        for given, slot_tensor in zip(inputs, self._lowered.inputs, strict=True):
            refuse_mask("an input", given)
            self._check(given.shape, given.dtype.name, slot_tensor)
        plain = [
            np.asarray(given, slot_tensor.dtype)
            for given, slot_tensor in zip(inputs, self._lowered.inputs, strict=True)
        ]
        on_host = self._on_host[0]
        if on_host is None:
            return self._call(plain, lambda inner: change(self._real(inner).numpy()))
        if self.watch is None:
            self._quick = on_host
        return on_host(plain, change)

    @functools.cached_property
    def _on_host(self) -> tuple[HostNet | None, str | None]:
        """The net on the host's arrays in place, None where there is none; why it runs in the device's own threads."""
        return HostNet.of(self._lowered, self._threads)

    def _call_on_stream(self, library: Library, inputs: Sequence[Any], stream: Stream) -> Any:
        """The result for another library's arrays on a device with streams, all of it on one stream."""
        if stream.device != self._program.queue.device:
            raise InvalidArgument(f"the net was built on {self._program.queue.device.name}, got arrays on {stream}")
        with stream.current():
            for given, slot_tensor in zip(inputs, self._lowered.inputs, strict=True):
                self._check(tuple(given.shape), library.dtype(given), slot_tensor)
                address, owner = library.pointer(given, stream)
                if owner is None:
                    address, owner = library.pointer(library.compact(given), stream)
                source = StreamMemory(address, slot_tensor.nbytes, owner)
                stream.copy(self._program.memory(slot_tensor.base_data), source, slot_tensor.nbytes)
            self._program.run_on(stream)

            def fetch(inner: Tensor) -> Any:
                memory = self._program.memory(inner.base_data)
                tensor = Tensor(memory, inner.shape, inner.dtype, stream, inner.strides, inner.offset)
                tensor = tensor if tensor.contiguous else tensor.copy()
                fetched = library.empty(tensor.shape, inputs[0], stream)
                address, owner = library.pointer(fetched, stream)
                target = StreamMemory(address, tensor.nbytes, owner)
                stream.copy(target, tensor.base_data, tensor.nbytes, (tensor.offset, 0))
                return library.finished(fetched, stream)

            results = map_operands(fetch, self._lowered.output)
            library.keep(stream, inputs)
        return results

    def become(self, form: InferenceNet) -> None:
        """Run as another form of the same net from now on."""
        self._on_host = form._on_host
        self._lowered, self._program, self._quick = form._lowered, form._program, None
        self.layout, self.ms = form.layout, form.ms

    def _pin(self) -> None:
        if self.watch is not None:
            self.watch.pin(self)

    def run(self, stream: Stream | None = None) -> cl.Event | None:
        """Replay without bringing or fetching, perhaps on a stream; see ``inputs`` and ``output``."""
        self._pin()
        if stream is not None:
            self._program.run_on(stream)
            return None
        return self._program.run()

    @property
    def inputs(self) -> list[Tensor]:
        """The tensors that a run reads; write to them on the net's queue and call ``run``."""
        self._pin()
        return [self._real(slot_tensor) for slot_tensor in self._lowered.inputs]

    @property
    def output(self) -> Any:
        """The tensors that a run writes, overwritten by the next one."""
        self._pin()
        return map_operands(self._real, self._lowered.output)

    def _real(self, slot_tensor: Tensor) -> Tensor:
        memory = self._program.memory(slot_tensor.base_data)
        return Tensor(
            memory, slot_tensor.shape, slot_tensor.dtype, self._program.queue, slot_tensor.strides, slot_tensor.offset
        )

    @staticmethod
    def _check(shape: tuple[int, ...], dtype: str, slot_tensor: Tensor) -> None:
        if shape != slot_tensor.shape or dtype != slot_tensor.dtype.name:
            raise InvalidArgument(
                f"the net was built for {slot_tensor.shape} {slot_tensor.dtype.name}, got {shape} {dtype}"
            )

    def _bring(self, given: Any, slot_tensor: Tensor) -> None:
        self._check(tuple(given.shape), given.dtype.name, slot_tensor)
        queue, memory = self._program.queue, self._program.memory(slot_tensor.base_data)
        if isinstance(given, np.ndarray):
            cl.enqueue_copy(queue, memory, np.ascontiguousarray(given), is_blocking=True)
            return
        given = given if given.contiguous else given.copy()
        other_queue, ready = given.queue if given.queue != queue else None, None
        if other_queue is not None:
            ready = [runtime.pending(other_queue)]
        event = runtime.copy(
            queue, memory, given.base_data, slot_tensor.nbytes, source_offset=given.offset, wait_for=ready
        )
        # The other queue must keep the tensor until it is copied: freed memory would serve that queue's later work.
        if other_queue is not None:
            queue.flush()
            runtime.hold(other_queue, event)
