"""oneDNN's solvers: what they refuse, and which layouts they offer for measurement."""

from __future__ import annotations

import ctypes
import functools
import math
import threading
from collections.abc import Iterable, Mapping
from ctypes import c_int, c_void_p
from typing import Any

import numpy as np
import pyopencl as cl

from convdispatch.api import Areas, ConvDispatchError, ConvProblem, DeviceInfo, Solver, kernel_erratum
from convdispatch.api.activations import onednn_eltwise

from .library import OneDNNError, library, missing
from .native import Invocation, Script
from .primitive import Convolution, Descriptor, described, shared

_BLOCKS = "blocked", "blocked8"


def _layouts(problem: ConvProblem) -> tuple[str, ...]:
    """Layouts of x and y, the best guess first: the fastest ones including reorders, measured with AVX-512 and AVX2.

    oneDNN's own choice (``any``) does not count the reorders. A reorder does not pay for a 1x1 kernel and for the
    weights' gradient. A depthwise convolution takes up to ten times as long in plain layouts as in blocked ones.
    """
    if problem.depthwise:
        return (*(_BLOCKS if problem.direction == "fwd" else ()), "any", *_BLOCKS, "nhwc", "plain")
    if problem.direction == "bwd_weights" or problem.kd * problem.kh * problem.kw == 1:
        return ("plain", "any", "nhwc", *_BLOCKS)
    return ("any", "nhwc", *_BLOCKS, "plain")


@functools.lru_cache(maxsize=1024)
def _choices(problem: ConvProblem) -> tuple[tuple[dict[str, Any], ...], str]:
    """(configurations that run different implementations, the best guess first; the reason if there is none)."""
    choices: list[tuple[dict[str, Any], Convolution]] = []
    reference, refused = "", ""
    for data in dict.fromkeys(_layouts(problem)):
        config = {"data": data}
        try:
            convolution = described(problem, data)
        except OneDNNError as error:
            refused = refused or str(error)
            continue
        if convolution.implementation.startswith("ref"):
            reference = convolution.implementation
        elif not any(convolution.same(chosen) for _, chosen in choices):
            choices.append((config, convolution))
    reason = f"only the reference code {reference}" if reference else f"no implementation ({refused})"
    return tuple(config for config, _ in choices), reason


class _OneDNN(Solver):
    directions: tuple[str, ...] = ()

    def rejects(self, problem: ConvProblem, device: DeviceInfo) -> str | None:
        if problem.direction not in self.directions:
            return f"{' or '.join(self.directions)} only, got {problem.direction}"
        if problem.mb == 0:
            return "mb of 1 or more only, got 0"
        if problem.residual and problem.accumulate:
            return "residual or accumulate only, got both"
        largest = max(math.prod(shape) for shape in (problem.x_shape, problem.w_shape, problem.y_shape))
        if largest >= 1 << 31:  # some oneDNN implementations divide by an overflowed size, which ends the process
            return f"tensors of less than 2**31 elements only, got {largest}"
        if problem.activation and onednn_eltwise(problem.activation) is None:
            return f"activations that oneDNN has only, got {problem.activation}"
        reason = missing()
        if reason:
            return reason
        choices, missing_reason = _choices(shared(problem))
        return None if choices else f"an implementation in onednn only, got {missing_reason}"

    def configs(self, problem: ConvProblem, device: DeviceInfo) -> Iterable[Mapping[str, Any]]:
        """Layouts of the images: the library's choice, the caller's, channels last, blocks of channels."""
        return _choices(shared(problem))[0]

    def workspace(self, problem: ConvProblem, device: DeviceInfo, config: Mapping[str, Any]) -> int:
        return workspace_areas(problem, described(shared(problem), config["data"]))[1]

    def plan(self, context: cl.Context, problem: ConvProblem, config: Mapping[str, Any]) -> OneDNNPlan:
        """The primitive and its reorders; oneDNN generates their machine code in this call."""
        return OneDNNPlan(problem, config)


class Forward(_OneDNN):
    """Forward convolution with bias, a sum and an activation in the same pass."""

    directions = ("fwd",)


class Gradient(_OneDNN):
    """The data gradient and the weights' gradient."""

    directions = ("bwd_data", "bwd_weights")


_ARGUMENT_NUMBERS = {"x": 1, "w": 33, "y": 17, "bias": 41, "scratch": 80, "dx": 129, "dy": 145, "dw": 161}
_REORDER_SOURCE, _REORDER_TARGET = 1, 17
_ZEROED = "zeroed scratch"
"""Errata name this remedy for an oneDNN implementation that reads scratch memory before it writes it."""


class _Argument(ctypes.Structure):
    _fields_ = [("number", c_int), ("memory", c_void_p)]


class _Work:
    """oneDNN primitives in order of execution, and their memory objects, each with its operand and byte offset."""

    def __init__(self) -> None:
        self._lib, self._descriptors = library(), []
        self._placements: list[tuple[c_void_p, str, int]] = []
        self._memories: list[c_void_p] = []
        self._primitives: list[tuple[c_void_p, Any]] = []

    def memory(self, descriptor: Descriptor, operand: str, offset: int = 0) -> c_void_p:
        """Create a memory object of a layout; its data begins ``offset`` bytes into an operand."""
        memory_handle = self._lib.make("memory_create", descriptor.handle, self._lib.engine, None)
        self._descriptors.append(descriptor)
        self._memories.append(memory_handle)
        self._placements.append((memory_handle, operand, offset))
        return memory_handle

    def run(self, primitive: c_void_p, arguments: Mapping[int, c_void_p]) -> None:
        """Append a primitive with its memory objects, by argument number."""
        pairs = (_Argument * len(arguments))(*((number, memory) for number, memory in arguments.items()))
        self._primitives.append((primitive, pairs))

    def reorder(self, source: Descriptor, origin: c_void_p, target: Descriptor, destination: c_void_p) -> None:
        engine = self._lib.engine
        descriptor = self._lib.make("reorder_primitive_desc_create", source.handle, engine, target.handle, engine, None)
        primitive = self._lib.make("primitive_create", descriptor)
        self.run(primitive, {_REORDER_SOURCE: origin, _REORDER_TARGET: destination})
        self._lib.call("primitive_desc_destroy", descriptor)

    def calls(self) -> list[Invocation]:
        """All C calls of the work: first set the address of each memory object, then execute the primitives."""
        set_address, execute = (self._lib.address(name) for name in ("memory_set_data_handle", "primitive_execute"))
        return [
            *(Invocation(set_address, memory.value, name, offset=offset) for memory, name, offset in self._placements),
            *(
                Invocation(execute, primitive.value, self._lib.stream.value, len(pairs), ctypes.addressof(pairs))
                for primitive, pairs in self._primitives
            ),
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
        self._script = Script(work.calls())
        # (OpenCL queue, event) of the previous run; None before the first run.
        self._last_run: tuple[Any, Any] | None = None

    def enqueue(self, queue: cl.CommandQueue, buffers: dict[str, Any], wait_for: Any) -> cl.Event:
        if status := self._script.status.value:
            raise ConvDispatchError(f"oneDNN: an earlier run failed with status {status}")
        with self._lock:
            # oneDNN's memory objects hold the addresses of one run, so a run on another queue waits for the previous
            # run. Commands of the same in-order queue run one after another anyway.
            events = list(wait_for or ())
            if self._last_run is not None and (self._last_run[0] != queue or _out_of_order(queue)):
                self._last_run[0].flush()
                events.append(self._last_run[1])
            event = self._script.enqueue(queue, buffers, events)
            self._last_run = (queue, event)
        return event

    def __del__(self) -> None:
        if self._last_run is not None:
            self._last_run[0].flush()
            self._last_run[1].wait()
        self._work.destroy()


def _out_of_order(queue: cl.CommandQueue) -> bool:
    return bool(queue.properties & cl.command_queue_properties.OUT_OF_ORDER_EXEC_MODE_ENABLE)


def workspace_areas(problem: ConvProblem, found: Convolution) -> tuple[dict[str, int], int]:
    """(workspace offsets of reordered tensors and of oneDNN's scratchpad, size of the workspace), in bytes."""
    areas, offsets = Areas(), {}
    for name in "xwy":
        packed = name == "w" and problem.constant_weights and problem.written != "w"
        if not packed and found.user[name] != found.chosen[name]:
            offsets[name] = areas.add(found.chosen[name].size)
    if found.scratch.size:
        offsets["scratch"] = areas.add(found.scratch.size)
    return offsets, areas.size


class OneDNNPlan:
    """A plan of oneDNN's convolution and the reorders around it.

    Reordered tensors and oneDNN's scratchpad are in the workspace. Constant weights are reordered once, by ``pack``.
    A residual is reordered into the output, which the convolution adds to.
    """

    recordable = False
    packed_size = 0

    def __init__(self, problem: ConvProblem, config: Mapping[str, Any]) -> None:
        convolution = described(shared(problem), config["data"])
        primitive = convolution.primitive()
        work = _Work()
        offsets, self.workspace_size = workspace_areas(problem, convolution)
        self._packer = None
        user, chosen, written = convolution.user, convolution.chosen, problem.written
        memories: dict[int, c_void_p] = {}
        reorders_in, reorders_out = [], []
        for name in "xwy":
            in_user_layout = user[name] == chosen[name]
            if name == "w" and problem.constant_weights and written != "w" and not in_user_layout:
                self.packed_size = chosen[name].size
                self._pack = (user[name], chosen[name])
                in_user_layout = True
            if in_user_layout:
                memory = work.memory(chosen[name], name)
            else:
                memory = work.memory(chosen[name], "workspace", offsets[name])
                reorder = (user[name], work.memory(user[name], name), chosen[name], memory)
                if name == written:
                    reorders_out.append((reorder[2], reorder[3], reorder[0], reorder[1]))
                else:
                    reorders_in.append(reorder)
            if name == written and (problem.residual or problem.accumulate):
                source = "residual" if problem.residual else name
                # oneDNN's sum post-op adds to what the output holds: reorder the addend there if it is elsewhere.
                self._sum = (user[name], work.memory(user[name], source), chosen[name], memory)
                if problem.residual or not in_user_layout:
                    reorders_in.append(self._sum)
            memories[_ARGUMENT_NUMBERS[convolution.roles[name]]] = memory
        if problem.bias:
            bias = Descriptor.strided((problem.oc,), (1,), problem.dtype)
            memories[_ARGUMENT_NUMBERS["bias"]] = work.memory(bias, "bias")
        if convolution.scratch.size:
            memories[_ARGUMENT_NUMBERS["scratch"]] = work.memory(convolution.scratch, "workspace", offsets["scratch"])
        for reorder in reorders_in:
            work.reorder(*reorder)
        work.run(primitive, memories)
        for reorder in reorders_out:
            work.reorder(*reorder)
        self.implementation = convolution.implementation
        self._zeroed_scratch = None
        if "scratch" in offsets and kernel_erratum("onednn.gradient", problem, self.implementation, _ZEROED):
            self._zeroed_scratch = (offsets["scratch"], convolution.scratch.size)
        self._runner = _Runner(work)

    def enqueue(self, queue: Any, x: Any, w: Any, y: Any, workspace: Any, wait_for: Any = None, **parts: Any) -> Any:
        """Enqueue the reorders and the convolution as one native command; the host never waits."""
        buffers = {"x": x, "w": w, "y": y, "workspace": workspace, **parts}
        if self._zeroed_scratch:
            offset, size = self._zeroed_scratch
            wait_for = [cl.enqueue_fill_buffer(queue, workspace, np.uint8(0), offset, size, wait_for=wait_for or None)]
        return self._runner.enqueue(queue, buffers, wait_for)

    def pack(
        self, queue: cl.CommandQueue, w: cl.MemoryObject, packed: cl.MemoryObject, wait_for: Any = None
    ) -> cl.Event:
        """Enqueue the reorder of constant weights into the layout that the convolution reads."""
        if self._packer is None:
            work, (user, chosen) = _Work(), self._pack
            work.reorder(user, work.memory(user, "w"), chosen, work.memory(chosen, "packed"))
            self._packer = _Runner(work)
        return self._packer.enqueue(queue, {"w": w, "packed": packed}, wait_for)
