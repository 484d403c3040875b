"""cuDNN's solvers: what they refuse, and the engines that cuDNN's heuristics propose, as configurations."""

from __future__ import annotations

import contextlib
import functools
import math
import threading
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from ctypes import byref, c_ulonglong, c_void_p
from typing import Any

import pyopencl as cl

from convdispatch.api import ConvDispatchError, ConvProblem, DeviceInfo, Solver
from convdispatch.api.cuda import (
    Bridge,
    CudaStream,
    Operand,
    bridge_of,
    cuda_devices,
    cuda_of,
    cuda_unavailable,
    enqueue_across,
    stream_address,
)

from .graph import NONDETERMINISTIC, candidates, execution_plan, variant_pack
from .library import CudnnError, Descriptor, library, missing

MAX_CONFIGS = 24
"""Most cuDNN configurations that are offered to a search."""


def unavailable() -> str | None:
    """The reason why cuDNN cannot be used on this machine; None when it can."""
    return cuda_unavailable() or missing()


@functools.lru_cache(maxsize=512)
def _choices(problem: ConvProblem, device: DeviceInfo, deterministic: bool) -> tuple[dict[str, Any], ...]:
    """Configurations in the order of cuDNN's heuristics; the first one is known to make a plan."""
    cl_device = cuda_devices(device)[0]
    with planning_handle(cl_device) as handle:
        return tuple(_working(problem, handle, deterministic)[:MAX_CONFIGS])


def _working(problem: ConvProblem, handle: c_void_p, deterministic: bool) -> list[dict[str, Any]]:
    configs = [
        each.config for each in candidates(problem, handle) if not (deterministic and NONDETERMINISTIC in each.notes)
    ]
    while configs:
        try:
            execution_plan(problem, handle, configs[0])
            break
        except CudnnError:
            del configs[0]
    return configs


class Convolution(Solver):
    """cuDNN with every engine that the problem's ``math`` permits; some add partial sums in a varying order."""

    def rejects(self, problem: ConvProblem, device: DeviceInfo) -> str | None:
        """Refuses if cuDNN is missing, padding is asymmetric, CUDA cannot see the tensors, or no engine fits."""
        if problem.mb == 0:
            return "mb of 1 or more only, got 0"
        for axis in problem.axes:
            padding, end_padding = getattr(problem, "p" + axis), getattr(problem, f"p{axis}_r")
            if padding != end_padding:
                return f"equal padding on both sides only, got {padding} and {end_padding} along {axis}"
        reason = unavailable()
        if reason:
            return reason
        if not cuda_devices(device):
            return f"a device that shares memory with cuda only, got {device.name}"
        largest = max(tensor_bytes(problem).values())
        if not cuda_devices(device, largest):
            return (
                f"tensors of 384 MiB at most only, as OpenCL here shares none larger with CUDA, got {largest >> 20} MiB"
            )
        return None if self.configs(problem, device) else "an engine in cudnn only, got none for this problem"

    def configs(self, problem: ConvProblem, device: DeviceInfo) -> Iterable[Mapping[str, Any]]:
        """Engines with their knobs, as the heuristics rank them."""
        return _choices(problem, device, self.deterministic)

    def plan(self, context: cl.Context, problem: ConvProblem, config: Mapping[str, Any]) -> CudnnPlan:
        return CudnnPlan(context, problem, config)


class Deterministic(Convolution):
    """cuDNN with only those engines that give the same bits every time."""


MAX_PACKS = 64
"""Most variant packs (cuDNN's lists of operand addresses) that a plan caches."""
ALIGNMENT = 256
"""Bytes to which the operands of a plan's first run are aligned."""
_NON_BLOCKING = 1
_planning_lock = threading.RLock()
_running_lock = threading.Lock()
_handles: dict[Any, c_void_p] = {}
_loading_streams: dict[Any, c_void_p] = {}
"""For each device, the CUDA stream on which a new plan runs once to load its kernels."""


def _handle(device: cl.Device, use: str) -> c_void_p:
    """The device's cuDNN handle for creating plans or for running them, created once.

    Creating a handle waits for all work of the CUDA context: both are created before anything is enqueued, and all
    queues share them. An existing handle is returned without the lock, which is held while a plan is created.
    """
    cached = _handles.get((device, use))
    if cached is not None:
        return cached
    with _planning_lock:
        if (device, use) not in _handles:
            cuda = cuda_of(device)
            if cuda is None:
                raise ConvDispatchError("cuDNN: the device is not CUDA's")
            with cuda.current():
                handle = library().create()
                if use == "make":
                    _loading_streams[device] = cuda.make("cuStreamCreate", _NON_BLOCKING)
                    library()("cudnnSetStream", handle, _loading_streams[device])
            _handles[device, use] = handle
        return _handles[device, use]


@contextlib.contextmanager
def planning_handle(device: cl.Device) -> Iterator[c_void_p]:
    """The cuDNN handle for creating plans. One thread at a time has it, and its CUDA context is current meanwhile."""
    with _planning_lock:
        handle = _handle(device, "make")
        with cuda_of(device).current():
            yield handle


@contextlib.contextmanager
def running(device: cl.Device, cuda: Any, stream: c_void_p) -> Iterator[c_void_p]:
    """The cuDNN handle for running plans, set to a CUDA stream. One thread at a time has it."""
    handle = _handle(device, "run")
    with _running_lock, cuda.current():
        library()("cudnnSetStream", handle, stream)
        yield handle


def tensor_bytes(problem: ConvProblem) -> dict[str, int]:
    """Bytes of x, w and y."""
    return {name: max(1, problem.itemsize * math.prod(getattr(problem, name + "_shape"))) for name in "xwy"}


def load(cuda: Any, handle: c_void_p, stream: c_void_p, plan: Descriptor, sizes: Sequence[int]) -> bool:
    """Load a plan's kernels: run it once on the handle's stream, on temporary memory, and wait.

    Returns whether there was memory. ``sizes`` are the bytes of x, w, y and workspace. If memory is short nothing is
    loaded, and the plan's first enqueue may wait. Memory is allocated and freed in the stream's order, which waits for
    no other stream.

    CUDA loads a kernel at its first launch, which then waits until the context has no work. If the first enqueue did
    that, it would wait for all other queues, and for ever if their work waits for an event that the host would complete
    next. (Capturing the plan into a graph that never runs would need no memory, but corrupted the process's heap with
    cuDNN 9.19.)

    Raises CudnnError if the engine cannot run after all.
    """
    offsets, total = [], 0
    for size in sizes:
        offsets.append(total)
        total += -(-size // ALIGNMENT) * ALIGNMENT
    block = c_ulonglong()
    try:
        cuda("cuMemAllocAsync", byref(block), total, stream)
    except ConvDispatchError:
        return False
    try:
        pack = variant_pack([block.value + offset if size else 0 for offset, size in zip(offsets, sizes)])
        library()("cudnnBackendExecute", handle, plan.handle, pack.handle)
    finally:
        cuda("cuMemFreeAsync", block, stream)
        cuda("cuStreamSynchronize", stream)
    return True


class CudnnPlan:
    """A plan of one cuDNN engine, which can run on any queue of its context.

    Creating the plan may wait for the device, so that ``enqueue`` never does: it loads the kernels and creates what the
    queues' bridges share. If memory was too short to run the engine once, the first enqueue may wait.

    CUDA can address the runtime's memory, so its buffers are not copied. Other buffers, which CUDA cannot see, are
    copied into the pool's memory and back. A workspace too large to share is allocated by CUDA for the time of a run.
    """

    recordable = False
    streams = True

    def __init__(self, context: cl.Context, problem: ConvProblem, config: Mapping[str, Any]) -> None:
        self._library, device = library(), context.devices[0]
        self._written = problem.written
        self._sizes = tensor_bytes(problem)
        _handle(device, "run")
        Bridge.prepare(context, device)
        with planning_handle(device) as handle:
            self._plan, self.workspace_size = execution_plan(problem, handle, config)
            sizes = [*self._sizes.values(), self.workspace_size]
            load(cuda_of(device), handle, _loading_streams[device], self._plan, sizes)
        self._packs: OrderedDict[tuple[int, ...], Descriptor] = OrderedDict()

    def enqueue(self, queue: Any, x: Any, w: Any, y: Any, workspace: Any, wait_for: Any = None) -> cl.Event:
        """Enqueue on the CUDA stream that is paired with ``queue``, in its order, or on a CUDA stream; never waits."""
        if isinstance(queue, CudaStream):
            return self._on_stream(queue, {"x": x, "w": w, "y": y}, workspace)
        bridge = bridge_of(queue)
        if bridge is None:
            raise ConvDispatchError("cuDNN: the queue's device is not CUDA's")
        operands = {
            name: Operand(buffer, self._sizes[name], read=name != self._written, written=name == self._written)
            for name, buffer in (("x", x), ("w", w), ("y", y))
        }
        if self.workspace_size:
            operands["workspace"] = Operand(workspace, self.workspace_size)

        def work(addresses: Mapping[str, int]) -> None:
            with running(queue.device, bridge.cuda, bridge.stream) as handle:
                pack = self._pack((*addresses.values(), 0)[:4])
                self._library("cudnnBackendExecute", handle, self._plan.handle, pack.handle)

        return enqueue_across(bridge, work, operands, wait_for)

    def _on_stream(self, stream: CudaStream, operands: Mapping[str, Any], workspace: Any) -> CudaStream:
        """Run on the caller's stream and memory, which dispatch has aligned."""
        addresses = [stream_address(memory) for memory in (*operands.values(), workspace)]
        with running(stream.device, stream.place.cuda, c_void_p(stream.handle)) as handle:
            self._library("cudnnBackendExecute", handle, self._plan.handle, self._pack(tuple(addresses)).handle)
        return stream

    def _pack(self, addresses: tuple[int, ...]) -> Descriptor:
        pack = self._packs.get(addresses)
        if pack is None:
            pack = self._packs[addresses] = variant_pack(addresses)
            if len(self._packs) > MAX_PACKS:
                self._packs.popitem(last=False)
        return pack
