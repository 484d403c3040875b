"""A plan: the reorders that a problem's layouts need and the convolution between them, as one command of the queue."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Mapping, Sequence
from ctypes import c_int, c_void_p
from typing import TYPE_CHECKING, Any

from convdispatch.api import Areas, ConvDispatchError, ConvProblem, kernel_erratum

from .library import library
from .native import Invocation, Script, apart, mixes_buffers, wholes
from .primitive import Convolution, Descriptor, described, shared

if TYPE_CHECKING:
    import pyopencl as cl

_ARGUMENT = {"x": 1, "w": 33, "y": 17, "bias": 41, "scratch": 80, "dx": 129, "dy": 145, "dw": 161}
_FROM, _TO = 1, 17
_ZEROED = "zeroed scratch"
"""The remedy, as errata name it, for an implementation that reads scratch memory that it has not written."""


class _Argument(ctypes.Structure):
    _fields_ = [("number", c_int), ("memory", c_void_p)]


class _Work:
    """oneDNN primitives in order of execution, and their memory objects with the operand and offset of each."""

    def __init__(self) -> None:
        self._lib, self._keep = library(), []
        self._places: list[tuple[c_void_p, str, int]] = []
        self._memories: list[c_void_p] = []
        self._primitives: list[tuple[c_void_p, Any]] = []

    def memory(self, descriptor: Descriptor, operand: str, offset: int = 0) -> c_void_p:
        """Create a memory object of a layout, whose data will be ``offset`` bytes into an operand."""
        made = self._lib.make("memory_create", descriptor.handle, self._lib.engine, None)
        self._keep.append(descriptor)
        self._memories.append(made)
        self._places.append((made, operand, offset))
        return made

    def run(self, primitive: c_void_p, arguments: Mapping[int, c_void_p]) -> None:
        """Append a primitive with its memory objects, by argument number."""
        pairs = (_Argument * len(arguments))(*((number, memory) for number, memory in arguments.items()))
        self._primitives.append((primitive, pairs))

    def reorder(self, source: Descriptor, origin: c_void_p, target: Descriptor, destination: c_void_p) -> None:
        """Append a reorder from one layout to another."""
        engine = self._lib.engine
        descriptor = self._lib.make("reorder_primitive_desc_create", source.handle, engine, target.handle, engine, None)
        self.run(self._lib.make("primitive_create", descriptor), {_FROM: origin, _TO: destination})
        self._lib.call("primitive_desc_destroy", descriptor)

    def calls(self) -> list[Invocation]:
        """All C calls of the work: first set the address of each memory object, then execute the primitives."""
        place, execute = (self._lib.address(name) for name in ("memory_set_data_handle", "primitive_execute"))
        calls = [Invocation(place, memory.value, operand, offset=offset) for memory, operand, offset in self._places]
        return calls + [
            Invocation(execute, primitive.value, self._lib.stream.value, len(pairs), ctypes.addressof(pairs))
            for primitive, pairs in self._primitives
        ]

    def destroy(self) -> None:
        """Destroy the primitives and memory objects; no run may be in progress."""
        for primitive, _ in self._primitives:
            self._lib.call("primitive_destroy", primitive)
        for memory in self._memories:
            self._lib.call("memory_destroy", memory)


class _Runner:
    """A ``_Work`` as a command that may be enqueued repeatedly, one run at a time."""

    def __init__(self, work: _Work) -> None:
        self._work, self._lock = work, threading.Lock()
        calls = work.calls()
        self._together, self._apart = [Script(calls)], apart(calls)
        self._last: tuple[Any, Any] | None = None  # (OpenCL queue, event) of the previous run; None before the first

    def enqueue(self, queue: cl.CommandQueue, buffers: dict[str, Any], wait_for: Any) -> cl.Event:
        mixed = mixes_buffers(queue.device)
        scripts, starts = (self._apart if mixed else self._together), None
        if mixed:
            buffers, starts = wholes(buffers)
        for script in scripts:
            if script.status.value:
                raise ConvDispatchError(f"oneDNN: an earlier run failed with status {script.status.value}")
        with self._lock:
            # oneDNN's memory objects hold the addresses of one run, so a run on another queue waits for the previous
            # run. On the same in-order queue it does so anyway.
            events = list(wait_for or ())
            if self._last is not None and (self._last[0] != queue or _out_of_order(queue)):
                self._last[0].flush()
                events.append(self._last[1])
            for script in scripts:
                event = script.enqueue(queue, buffers, events, starts)
                events = [event]
            self._last = (queue, event)
        return event

    def __del__(self) -> None:
        if self._last is not None:
            self._last[0].flush()
            self._last[1].wait()
        self._work.destroy()


def _out_of_order(queue: cl.CommandQueue) -> bool:
    import pyopencl as cl

    return bool(queue.properties & cl.command_queue_properties.OUT_OF_ORDER_EXEC_MODE_ENABLE)


def rooms(problem: ConvProblem, found: Convolution) -> tuple[dict[str, int], int]:
    """(workspace offsets of reordered tensors and of oneDNN's scratchpad, size of the workspace), in bytes."""
    areas, starts = Areas(), {}
    for name in "xwy":
        packed = name == "w" and problem.constant_weights and problem.written != "w"
        if not packed and found.user[name] != found.chosen[name]:
            starts[name] = areas.add(found.chosen[name].size)
    if found.scratch.size:
        starts["scratch"] = areas.add(found.scratch.size)
    return starts, areas.size


class OneDNNPlan:
    """A plan of oneDNN's convolution and the reorders around it.

    Reordered tensors and oneDNN's scratchpad are in the workspace. Constant weights are reordered once, by ``pack``.
    A residual is reordered into the output, which the convolution adds to.
    """

    recordable = False
    packed_size = 0

    def __init__(self, problem: ConvProblem, config: Mapping[str, Any]) -> None:
        found = described(shared(problem), config["data"])
        primitive = found.primitive()
        work = _Work()
        starts, self.workspace_size = rooms(problem, found)
        self._packer = None
        user, chosen, written = found.user, found.chosen, problem.written
        memories: dict[int, c_void_p] = {}
        before, after = [], []
        for name in "xwy":
            same = user[name] == chosen[name]
            if name == "w" and problem.constant_weights and written != "w" and not same:
                self.packed_size = chosen[name].size
                self._pack = (user[name], chosen[name])
                same = True
            if same:
                memory = work.memory(chosen[name], name)
            else:
                memory = work.memory(chosen[name], "workspace", starts[name])
                move = (user[name], work.memory(user[name], name), chosen[name], memory)
                if name == written:
                    after.append((move[2], move[3], move[0], move[1]))
                else:
                    before.append(move)
            if name == written and (problem.residual or problem.accumulate):
                source = "residual" if problem.residual else name
                # oneDNN's sum post-op adds to what the output holds: reorder the addend there if it is elsewhere.
                self._sum = (user[name], work.memory(user[name], source), chosen[name], memory)
                if problem.residual or not same:
                    before.append(self._sum)
            memories[_ARGUMENT[found.roles[name]]] = memory
        if problem.bias:
            memories[_ARGUMENT["bias"]] = work.memory(Descriptor.strided((problem.oc,), (1,), problem.dtype), "bias")
        if found.scratch.size:
            memories[_ARGUMENT["scratch"]] = work.memory(found.scratch, "workspace", starts["scratch"])
        for move in before:
            work.reorder(*move)
        work.run(primitive, memories)
        for move in after:
            work.reorder(*move)
        self.implementation = found.implementation
        self._cleared = (
            (starts["scratch"], found.scratch.size)
            if found.scratch.size and kernel_erratum("onednn.gradient", problem, found.implementation, _ZEROED)
            else None
        )
        self._runner = _Runner(work)

    def enqueue(
        self,
        queue: cl.CommandQueue,
        x: cl.MemoryObject,
        w: cl.MemoryObject,
        y: cl.MemoryObject,
        workspace: cl.MemoryObject | None,
        wait_for: Sequence[cl.Event] | None = None,
        bias: cl.MemoryObject | None = None,
        residual: cl.MemoryObject | None = None,
    ) -> cl.Event:
        """Enqueue the reorders and the convolution as one native command; the host never waits."""
        buffers = {"x": x, "w": w, "y": y, "workspace": workspace, "bias": bias, "residual": residual}
        if self._cleared:
            import numpy as np
            import pyopencl as cl

            begin, size = self._cleared
            wait_for = [cl.enqueue_fill_buffer(queue, workspace, np.uint8(0), begin, size, wait_for=wait_for or None)]
        return self._runner.enqueue(queue, buffers, wait_for)

    def pack(
        self, queue: cl.CommandQueue, w: cl.MemoryObject, packed: cl.MemoryObject, wait_for: Any = None
    ) -> cl.Event:
        """Enqueue the reorder of constant weights into the layout that the convolution reads."""
        if self._packer is None:
            work, (plain, wanted) = _Work(), self._pack
            work.reorder(plain, work.memory(plain, "w"), wanted, work.memory(wanted, "packed"))
            self._packer = _Runner(work)
        return self._packer.enqueue(queue, {"w": w, "packed": packed}, wait_for)
