"""A function of tensors, such as a training step, whose kernels are recorded once and then enqueued without Python.

A step of a deep net enqueues hundreds of small kernels, and deciding each time which ones costs the host more than the
device needs to run them. What is decided depends on shapes alone, so it is decided once for each shape.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

from ..api.errors import InvalidArgument
from ..device import runtime
from ..device.commands.recording import Recording, Slot
from ..device.replay.program import Program
from ..device.tracing import map_structure
from ..elementwise.tensor import Tensor

_SHAPES = 4
GRAPH_FROM = 16
"""The number of commands from which a CUDA graph, with its two synchronisations of queue and stream, costs less than
enqueuing."""


def capture(function: Callable[..., Any]) -> Captured:
    """``function`` as something faster to call again and again; a decorator.

    ``function`` takes tensors on one queue and returns tensors (or tuples, lists, dictionaries of them, or None). The
    first call for some shapes runs it as it is, the second records what it enqueues, and from then on a call copies
    the arguments to where the recording reads them, enqueues its kernels and returns the same tensors, **whose values
    the next call overwrites**. Parameters, gradients, running statistics and other tensors that the function uses
    besides its arguments stay where they are and are read and written anew each time; dropout draws anew too.

    What else the function does in Python (counting, printing, choosing by a value) happens in the first two calls
    only. An optimiser's step belongs after the call: it counts, and its rate may change.

        @capture
        def gradients(x, labels):
            with Tape() as tape:
                loss = cross_entropy(net(x), labels)
            tape.backward(loss)
            return loss

        for x, labels in batches:
            loss = gradients(x, labels)
            optimizer.step()
    """
    return Captured(function)


class _Recorded:
    """One recording of the function: its inputs' memory, its program, its results."""

    def __init__(self, function: Callable[..., Any], given: tuple[Tensor, ...]) -> None:
        self.recording = Recording(given[0].queue)
        inputs = [
            Tensor(self.recording.allocate(x.nbytes, persistent=True), x.shape, x.dtype, x.queue) for x in given
        ]  # fmt: skip
        with self.recording.capture():
            results = function(*inputs)
        map_structure(Tensor, _keep, results)
        self.program = Program(self.recording)
        if len(self.recording.commands) >= GRAPH_FROM:
            self.program.use_graph()
        self.inputs = [self._real(x) for x in inputs]
        self.results = map_structure(Tensor, self._real, results)

    def _real(self, tensor: Tensor) -> Tensor:
        if type(tensor.base_data) is not Slot:
            return tensor
        memory = self.program.memory(tensor.base_data)
        return Tensor(memory, tensor.shape, tensor.dtype, tensor.queue, tensor.strides, tensor.offset)

    def __call__(self, given: tuple[Tensor, ...]) -> Any:
        for recorded_input, argument in zip(self.inputs, given, strict=True):
            argument = argument if argument.contiguous else argument.copy()
            runtime.copy(
                recorded_input.queue,
                recorded_input.base_data,
                argument.base_data,
                recorded_input.nbytes,
                source_offset=argument.offset,
            )
        self.program.run()
        return self.results


class Captured:
    """What ``capture`` returns. Safe from several threads, one call at a time."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function, self._lock = function, threading.Lock()
        self._known: OrderedDict[Any, _Recorded | None] = OrderedDict()

    def __call__(self, *given: Tensor) -> Any:
        """The function's results for ``given``. Raises InvalidArgument for anything but tensors on one queue."""
        if not given or not all(isinstance(x, Tensor) for x in given):
            raise InvalidArgument(f"a captured function takes tensors, got {[type(x).__name__ for x in given]}")
        if any(x.queue != given[0].queue for x in given):
            raise InvalidArgument("a captured function takes tensors on one queue")
        key = (given[0].queue, *((x.shape, x.dtype) for x in given))
        with self._lock:
            if key not in self._known:
                # The first call, which is not recorded, makes plans and allocates gradients.
                results = self._function(*given)
                self._known[key] = None
                if len(self._known) > _SHAPES:
                    self._known.popitem(last=False)
                return results
            self._known.move_to_end(key)
            recorded = self._known[key]
            if recorded is None:
                recorded = self._known[key] = _Recorded(self._function, given)
            return recorded(given)

    def forget(self) -> None:
        """Drop the recordings and their memory, as after a change of what the function does."""
        with self._lock:
            self._known.clear()

    @property
    def nbytes(self) -> int:
        """Bytes of memory that the recordings hold."""
        return sum(each.program.nbytes for each in self._known.values() if each is not None)

    @property
    def commands(self) -> int:
        """Enqueues of the last shapes' replay; 0 before they are recorded."""
        latest = next(reversed(self._known.values()), None)
        return 0 if latest is None else len(latest.program.what)


def _keep(tensor: Tensor) -> Tensor:
    if type(tensor.base_data) is Slot:
        tensor.base_data.root.persistent = True
    return tensor
