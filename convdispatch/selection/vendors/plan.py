"""A plan of a vendor's library, which computes on the host, on an OpenCL queue or on a CUDA stream, in queue order.

On the host a new thread waits for the earlier commands, maps the buffers and computes, while a user event holds back
the later commands of the queue: ``enqueue`` returns immediately, and Python's lock is free while the library works.
"""

from __future__ import annotations

import contextlib
import copy
import ctypes
import threading
import warnings
from collections.abc import Mapping
from ctypes import byref
from typing import Any

import pyopencl as cl

from ...api.errors import ConvDispatchWarning, PluginError
from ...api.fault_text import words
from ...api.problem import ConvProblem
from ...device.cuda.bridge import Bridge, Operand, bridge_of, enqueue_across
from ...device.memory.shared_pool import out_of_order, whole_and_offset
from ...device.places.stream import Stream
from ..visible_problem import operand_sizes
from . import abi

_FAILED = -1


class VendorPlan:
    """The plan ``handle`` of a solver's ``table``; ``where`` is its place, and the bytes of its workspace and of packed
    weights."""

    recordable = False

    def __init__(
        self, table: Any, handle: int, where: tuple[int, int, int], context: cl.Context, problem: ConvProblem
    ) -> None:
        self._table, self._handle, self.name = table, _Handle(table, handle), table.name.decode()
        self._place, self.workspace_size, self.packed_size = where
        self._function = "enqueue"
        names = ("x", "w", "y", "bias", "residual", "workspace")
        self._sizes = dict(zip(names, (*operand_sizes(problem), self.workspace_size)))
        self._weights_size = self._sizes["w"]
        if self.packed_size:
            self._sizes["w"] = self.packed_size
        self._written = problem.written
        self._read = {*names[:-1]} - (set() if problem.accumulate else {problem.written})
        self.streams = self._place == abi.CODES["cuda"]
        self._failure: str | None = None
        """The failure of a run on the host, which was also reported by a warning; None without a failure."""
        if self._place == abi.CODES["host"]:
            # The caller's queue may wait for this very run, so buffers are mapped on a queue of the plan.
            self._mapping = cl.CommandQueue(context)
        elif self.streams:
            Bridge.prepare(context, context.devices[0])

    def enqueue(
        self, queue: Any, x: Any, w: Any, y: Any, workspace: Any, wait_for: Any = None, **parts: Any
    ) -> cl.Event:
        """Enqueue the library's work (see Plan). Raises PluginError if an earlier run on the host failed."""
        self.finished()
        memory = {"x": x, "w": w, "y": y, "workspace": workspace, **parts}
        memory = {name: buffer for name, buffer in memory.items() if buffer is not None}
        if self.streams:
            return self._on_cuda(queue, memory, wait_for)
        on_host = self._place == abi.CODES["host"]
        return self._on_host(queue, memory, wait_for) if on_host else self._on_queue(queue, memory, wait_for)

    def pack(self, queue: Any, w: Any, packed: Any, wait_for: Any = None) -> cl.Event:
        """Enqueue the packing of constant weights; see Solver.plan. Raises as ``finished``."""
        packing = copy.copy(self)
        packing._function, packing._read, packing._written = "pack", {"w"}, "y"
        packing._sizes = {"w": self._weights_size, "y": self.packed_size}
        return packing.enqueue(queue, None, w, packed, None, wait_for)

    def finished(self) -> None:
        """Raise PluginError if a run on the host has failed; see Executable."""
        if self._failure:
            raise PluginError(self._failure)

    def _run(self, queue: int | None, memory: Mapping[str, tuple[int, int]]) -> None:
        """Call the library's function with each operand's base and byte offset."""
        call = abi.Call(struct_size=ctypes.sizeof(abi.Call), place=self._place, queue=queue)
        for name, (base, offset) in memory.items():
            setattr(call, name, abi.Memory(base, offset, self._sizes[name]))
        text = abi.Text()
        function = getattr(self._table, self._function)
        abi.check(self._function, function(self._handle.value, byref(call), text.address, text.size), text)

    def _on_queue(self, queue: cl.CommandQueue, memory: Mapping[str, Any], wait_for: Any) -> cl.Event:
        """Run on the queue; for an out-of-order queue, on a new in-order queue between two events."""
        own_queue = cl.CommandQueue(queue.context, queue.device) if out_of_order(queue) else queue
        if own_queue is not queue:
            wait_for = [cl.enqueue_marker(queue, wait_for=wait_for or None)]
            queue.flush()
        if wait_for:
            cl.enqueue_barrier(own_queue, wait_for=wait_for)
        parts = {name: whole_and_offset(buffer) for name, buffer in memory.items()}
        self._run(own_queue.int_ptr, {name: (whole.int_ptr, offset) for name, (whole, offset) in parts.items()})
        done = cl.enqueue_marker(own_queue)
        if own_queue is queue:
            return done
        own_queue.flush()
        return cl.enqueue_marker(queue, wait_for=[done])

    def _on_cuda(self, queue: Any, memory: Mapping[str, Any], wait_for: Any) -> Any:
        """Run on a CUDA stream, or on the CUDA stream that is paired with an OpenCL queue."""
        if isinstance(queue, Stream):
            with queue.current():
                self._run(queue.handle, {name: (queue.address_of(buffer), 0) for name, buffer in memory.items()})
            return queue
        bridge = bridge_of(queue)
        if bridge is None:
            raise PluginError("the queue's device shares no memory with CUDA")

        def work(addresses: Mapping[str, int]) -> None:
            with bridge.cuda.current():
                self._run(bridge.stream.value, {name: (address, 0) for name, address in addresses.items()})

        operands = {
            name: Operand(buffer, self._sizes[name], name in self._read, name == self._written)
            for name, buffer in memory.items()
        }
        return enqueue_across(bridge, work, operands, wait_for)

    def _on_host(self, queue: cl.CommandQueue, memory: Mapping[str, Any], wait_for: Any) -> cl.Event:
        """Run in a thread, between a marker and a user event on the queue."""
        commands_before, done = cl.enqueue_marker(queue, wait_for=wait_for or None), cl.UserEvent(queue.context)
        queue.flush()
        # The thread starts first, because a queue that computes in the calling thread waits for the event immediately.
        threading.Thread(target=self._compute, args=(commands_before, done, memory), name=self.name).start()
        event_after = (cl.enqueue_marker if out_of_order(queue) else cl.enqueue_barrier)(queue, wait_for=[done])
        queue.flush()
        return event_after

    def _compute(self, before: cl.Event, done: cl.UserEvent, memory: Mapping[str, Any]) -> None:
        """Compute once the event ``before`` is complete; set the status of ``done`` to the outcome."""
        status, views = _FAILED, {}
        try:
            before.wait()
            for name, buffer in memory.items():
                flags = cl.map_flags.READ | (cl.map_flags.WRITE if name in (self._written, "workspace") else 0)
                shape = (self._sizes[name],)
                views[name], _ = cl.enqueue_map_buffer(self._mapping, buffer, flags, 0, shape, "u1")
            self._run(None, {name: (view.ctypes.data, 0) for name, view in views.items()})
            status = cl.command_execution_status.COMPLETE
        except BaseException as error:
            self._failure = f"a run failed: {words(error)}"
            if self._written in views:
                views[self._written][...] = 255  # These bytes are NaN, so that nobody mistakes them for a result.
            message = f"{self.name} failed, and what the result holds is undefined: {words(error)}"
            # If warnings are errors this one is ignored, because the event reports the failure too.
            with contextlib.suppress(ConvDispatchWarning):
                warnings.warn(message, ConvDispatchWarning, stacklevel=2)
        finally:
            for view in views.values():
                view.base.release(self._mapping)
            self._mapping.finish()
            done.set_status(status)


class _Handle:
    """A library's plan, which is freed with the last object that runs it."""

    def __init__(self, table: Any, value: int) -> None:
        self._table, self.value = table, value

    def __del__(self) -> None:
        self._table.free(self.value)
