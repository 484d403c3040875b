"""Runs one net on several devices in one process: each batch goes to a free device, and results are returned in
order."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any

import numpy as np
import pyopencl as cl

from ..api.errors import InvalidArgument
from ..device import background, runtime

AHEAD = 2
"""The number of batches per device that are enqueued before the oldest result is waited for."""


def chosen_devices(devices: Any) -> list[Any]:
    """OpenCL devices for ``"all"`` or for a list of what ``runtime.find_device`` takes.

    All are those that work and are of the default device's type and no simulators; of a CPU only the default one, for
    several runtimes share its processors. Raises NoDevice and InvalidArgument.
    """
    if devices == "all":
        default = runtime.default_device()
        kind = runtime.device_info(default).type
        if kind == "cpu":
            return [default]
        same = [d for d in runtime.devices() if (i := runtime.device_info(d)).type == kind and i.vendor != "oclgrind"]
        return [device for device in same if device == default or runtime.probe(device) is None] or [default]
    if isinstance(devices, str) or not devices:
        raise InvalidArgument(f'devices is "all" or a list of devices, got {devices!r}')
    return [runtime.find_device(device) for device in devices]


def build_on(
    build: Callable[..., Any], devices: Any, net: Callable[..., Any], *shapes: Sequence[int], **options: Any
) -> InferenceNets:
    """``build`` on each of ``devices``, a queue each; ``options`` are ``build``'s."""
    batches = {shape[0] for shape in shapes if len(shape)}
    if len(batches) != 1:
        raise InvalidArgument(f"on several devices all inputs are batches of one size, got {[*map(tuple, shapes)]}")
    queues = [cl.CommandQueue(runtime.context(device)) for device in chosen_devices(devices)]
    return InferenceNets([build(net, *shapes, queue=queue, **options) for queue in queues], batches.pop())


class InferenceNets:
    """Forms of one net, each on a device of its own: ``nets(x)`` and ``nets.map(batches)``.

    A thread a device brings a batch there, runs it and fetches the result. Inputs and results are NumPy arrays.
    """

    def __init__(self, nets: Sequence[Any], batch: int) -> None:
        self.nets, self.batch = list(nets), batch

    @property
    def devices(self) -> list[Any]:
        """The devices, in the order given."""
        return [net.queue.device for net in self.nets]

    def __call__(self, *inputs: np.ndarray) -> Any:
        """The result for inputs of any number of built batches one after the other along their first axis.

        Raises InvalidArgument where the inputs hold no whole number of them.
        """
        counts = {batch.shape[0] for batch in inputs}
        (count,) = counts if len(counts) == 1 else (0,)
        if not count or count % self.batch:
            sizes = ", ".join(str(batch.shape[0]) for batch in inputs)
            raise InvalidArgument(f"the net was built for batches of {self.batch}, got {sizes} along the first axis")
        parts = (tuple(x[start : start + self.batch] for x in inputs) for start in range(0, count, self.batch))
        return _joined(list(self.map(parts)))

    def map(self, batches: Iterable[Any]) -> Iterator[Any]:
        """The result for each batch (an array, or a tuple of them), in order; only some batches ahead are taken.

        The first error of a device is raised in its batch's place.
        """
        work: SimpleQueue[tuple[Any, Future[Any]] | None] = SimpleQueue()
        threads = [threading.Thread(target=_serve, args=(net, work), daemon=True) for net in self.nets]
        for thread in threads:
            thread.start()
        waiting: deque[Future[Any]] = deque()
        try:
            for inputs in batches:
                result: Future[Any] = Future()
                work.put((inputs if isinstance(inputs, tuple) else (inputs,), result))
                waiting.append(result)
                if len(waiting) >= AHEAD * len(self.nets):
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for _ in threads:
                work.put(None)
            for thread in threads:
                thread.join()


def _serve(net: Callable[..., Any], work: SimpleQueue[Any]) -> None:
    while (task := work.get()) is not None:
        inputs, result = task
        with background.at_work():
            try:
                result.set_result(net(*inputs))
            except BaseException as error:
                result.set_exception(error)


def _joined(parts: Sequence[Any]) -> Any:
    """Results of equal structure, each leaf's parts one after the other."""
    example = parts[0]
    if isinstance(example, dict):
        return {key: _joined([part[key] for part in parts]) for key in example}
    if isinstance(example, list | tuple):
        return type(example)(_joined(leaves) for leaves in zip(*parts))
    return np.concatenate(parts)
