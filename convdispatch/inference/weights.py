"""Constant weights on their way into plans.

A thread multiplies batch norms into them while the net is planned; each is packed as soon as its plan is there.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Any

import pyopencl as cl

from ..device.background import Threads
from ..elementwise.tensor import Tensor
from ..selection.prepared import Prepared, constant


class Background:
    """Computes tensors in a thread, one after the other."""

    def __init__(self) -> None:
        self._thread = Threads(1, "convdispatch-weights")
        self._pending: dict[int, Future[Any]] = {}
        """The background computations of weights, by the weights' memory, which views share."""

    def begin(self, made: Tensor, compute: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
        """Let ``compute`` fill ``made``."""
        self._pending[id(made.base_data)] = self._thread.submit(partial(compute, *args, **kwargs))

    def wait(self, made: Tensor) -> None:
        """Wait for a tensor, if it is computed here."""
        pending = self._pending.get(id(made.base_data))
        if pending is not None:
            pending.result()

    def end(self) -> None:
        """Wait for all of them."""
        for each in self._pending.values():
            each.result()
        self._pending = {}


class Weights:
    """Weights in the forms that plans take, for commands of ``queue``; safe from several threads."""

    def __init__(self, queue: cl.CommandQueue, background: Background) -> None:
        self._queue, self._background = queue, background
        self._made: dict[Any, Any] = {}
        self._packing: list[tuple[Any, Tensor | None]] = []
        """The events of weights that are being packed, each with a tensor that must live until then."""

    def take(self, given: Tensor, prepared: Prepared) -> Any:
        """Return memory with the weights in a plan's form; nodes that share weights share the memory."""
        key = id(given), prepared.pack_key if prepared.packed_size else None
        return self._made[key] if key in self._made else self._made.setdefault(key, self._make(given, prepared))

    def _make(self, given: Tensor, prepared: Prepared) -> Any:
        w = given
        self._background.wait(w)
        if w.offset or not w.contiguous:
            w = w.copy()
        # Work on different queues has no order, so the weights' own queue is finished first.
        if w.queue != self._queue:
            w.queue.finish()
        if not prepared.packed_size:
            # The weights are copied, so that later changes of them do not reach the net.
            return (w.copy() if w is given else w).base_data
        memory, event = constant(w).packed(prepared, self._queue, w.base_data)
        if event is not None:
            # A copy on the same queue may be freed: its memory serves commands enqueued after the packing.
            self._packing.append((event, None if w.queue == self._queue else w))
        return memory

    def settle(self) -> None:
        """Wait until all weights are packed and copied: replays have no event to wait for, and may run on no queue at
        all."""
        while self._packing:
            self._packing.pop()[0].wait()
        self._queue.finish()
