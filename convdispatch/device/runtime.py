"""Devices, contexts, queues and memory: the only module that creates OpenCL objects of these kinds.

Nothing happens at import. Each device has one context, which all share; each thread has one queue for each device, for
callers with NumPy arrays. Each queue has a pool of scratch memory: work on one in-order queue may reuse a block as soon
as the host has released it, work on another queue may not (see ``memory``).
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import threading
from ctypes import POINTER, byref, c_int, c_uint, c_void_p
from typing import Any

import numpy as np
import pyopencl as cl

from ..api import settings
from ..api.device import DeviceInfo
from ..api.errors import NoDevice
from .commands.interface import Commands, thread
from .commands.queues import commands_of
from .cuda_driver import current_number, number_of
from .cuda_driver import unavailable as cuda_unavailable
from .memory import allocator as memory
from .memory.allocator import (
    fresh,
    memory_statistics,
    release_memory,
    set_memory_limit,
    shared_with_cuda,
    sub_region,
)
from .opencl import icd
from .opencl.platforms import address, device_info, devices, platforms

__all__ = [
    "address",
    "allocate",
    "context",
    "copy",
    "cuda_devices",
    "default_device",
    "device_info",
    "devices",
    "find_device",
    "fresh",
    "is_synchronous",
    "memory_statistics",
    "new_serial_queue",
    "platforms",
    "probe",
    "queue",
    "refuse_forked",
    "release_memory",
    "serial_queue",
    "set_memory_limit",
    "sub_region",
]

INSTALL = "pip install 'convdispatch[cpu]'"
_PROBE = "kernel void probe(global int *p) { p[get_global_id(0)] = (int)get_global_id(0) + 41; }"
_LOCAL_THREAD = 1 << 31  # the queue property CL_QUEUE_THREAD_LOCAL_EXEC_ENABLE_INTEL
_threads = threading.local()
_lock = threading.RLock()
_with_context: set[cl.Device] = set()


@functools.lru_cache(maxsize=64)
def probe(device: cl.Device) -> str | None:
    """Build and run a trivial kernel; returns the reason of a failure, or None when the device works.

    A device that its platform lists need not work: PoCL's wheel lists one everywhere, and needs a linker to build.
    """
    from ..api.errors import BuildFailed
    from .programs.kernels import build

    try:
        shared_context = context(device)
        commands = cl.CommandQueue(shared_context)
        program = build(shared_context, _PROBE)
        memory = cl.Buffer(shared_context, cl.mem_flags.READ_WRITE, 16)
        cl.Kernel(program, "probe")(commands, (4,), None, memory)
        output = np.zeros(4, np.int32)
        cl.enqueue_copy(commands, output, memory)
    except BuildFailed as error:
        return f"{error}; {error.log.strip().splitlines()[-1] if error.log.strip() else 'no log'}"
    except cl.Error as error:
        text = str(error).strip().splitlines()
        return text[-1] if text else type(error).__name__
    return None if output.tolist() == [41, 42, 43, 44] else f"a trivial kernel gave {output.tolist()}, not 41 to 44"


def find_device(choice: Any = None) -> cl.Device:
    """The device that ``choice`` names, or the default one for None.

    ``choice`` is a ``pyopencl.Device``, or text: part of a device's name, a normalised vendor (``nvidia``, ``pocl``),
    a type (``cpu``, ``gpu``), or ``platform:device`` where each side is a part of the name or a number.

    Raises NoDevice, whose message lists the devices.
    """
    if choice is None:
        return default_device()
    if not isinstance(choice, str):
        return choice
    matches = [device for device in devices() if _matches(device, choice.strip().lower())]
    if not matches:
        listed = "; ".join(str(device_info(device)) for device in devices()) or f"none ({INSTALL})"
        raise NoDevice(f"no OpenCL device matches {choice!r}; there are: {listed}")
    for device in matches:
        if probe(device) is None:
            return device
    raise NoDevice(f"{device_info(matches[0])} matches {choice!r} but does not work: {probe(matches[0])}")


def _matches(device: cl.Device, choice: str) -> bool:
    info = device_info(device)
    if ":" in choice:
        platform, _, part = choice.partition(":")
        listed = platforms()
        index = listed.index(device.platform)
        if platform != str(index) and platform not in info.platform.lower() and platform != info.vendor:
            return False
        siblings = device.platform.get_devices()
        return not part or part == str(siblings.index(device)) or part in info.name.lower() or part == info.type
    return choice in (info.vendor, info.type) or choice in info.name.lower() or choice in info.platform.lower()


def _in_order() -> list[cl.Device]:
    """All devices, the one that should be the default first."""

    def rank(device: cl.Device) -> tuple[int, int]:
        info = device_info(device)
        kind = {"gpu": 0, "accelerator": 1, "cpu": 2}[info.type]
        # Oclgrind is a simulator that checks kernels, thousands of times slower than the processor it runs on.
        simulator = info.vendor == "oclgrind"
        return (3 if simulator else kind, 1 if info.vendor == "pocl" else 0)

    return sorted(devices(), key=rank)


@functools.lru_cache(maxsize=1)
def _ranked() -> cl.Device:
    failures = []
    for device in _in_order():
        problem = probe(device)
        if problem is None:
            return device
        failures.append(f"\n  {device_info(device)}: {problem}")
    if not failures:
        failures = [f"\n  {v.library}: {v.problem}; {v.mend}" for v in icd.vendors() if v.problem]
    reasons = "".join(failures) or " none was found"
    raise NoDevice(
        f"no OpenCL device works:{reasons}\n{INSTALL} brings a complete CPU runtime; `convdispatch doctor` tells more"
    )


def default_device() -> cl.Device:
    """``CONVDISPATCH_DEVICE``, else a GPU that works, else a CPU that works. Raises NoDevice."""
    chosen = settings.DEVICE.value()
    return _named(chosen) if chosen else _ranked()


def expected_device() -> cl.Device | None:
    """The device that will be the default one if its probe succeeds; None unless it is a CPU of Intel's runtime, whose
    programs are compiled in one thread, so that a program that is built now waits for the probe."""
    device = next(iter(_in_order()), None) if not settings.DEVICE.value() else None
    is_intel = device is not None and device.platform.name.startswith("Intel")
    return device if is_intel and device_info(device).type == "cpu" else None


@functools.lru_cache(maxsize=16)
def _named(choice: str) -> cl.Device:
    return find_device(choice)


def cuda_devices(info: DeviceInfo, size: int = 1) -> list[cl.Device]:
    """The first OpenCL device of a description whose memory, in blocks of ``size`` bytes, CUDA sees too.

    The thread's current CUDA device is tried first, and the search ends at the first that shares memory, because each
    trial creates a context, which takes memory of the GPU. Empty for other vendors' devices and without CUDA.
    """
    if info.vendor != "nvidia" or cuda_unavailable():
        return []
    matching = [device for device in devices() if device_info(device) == info]
    current = current_number()
    for device in sorted(matching, key=lambda each: number_of(each) != current):
        if shared_with_cuda(context(device), device, size):
            return [device]
    return []


FORKED = (
    "this process was forked from one that computes by OpenCL, whose threads it lacks: results would be wrong. Start "
    'it by "spawn" or "forkserver"'
)
forked = False
"""Whether this process is a forked child of a process that computes by OpenCL."""


def refuse_forked() -> None:
    """Raise NoDevice in a forked child of a process that computes by OpenCL."""
    if forked:
        raise NoDevice(FORKED)


def _after_fork() -> None:
    global forked, _lock
    # If the lock is taken, another thread of the parent process was creating a context at the fork.
    context_in_progress = not _lock.acquire(blocking=False)
    _lock = threading.RLock()
    if context_in_progress or _context.cache_info().currsize:
        forked = True
        _threads.__dict__.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


@functools.lru_cache(maxsize=64)
def _context(device: cl.Device) -> cl.Context:
    """A new context of one device, made without Python's lock, so that others work meanwhile: NVIDIA's driver took
    0.13 to 1.65 s on hosts of an H200. Raises pyopencl's errors."""
    create: Any
    try:  # clCreateContext of the OpenCL loader that pyopencl's own module is linked with
        create = ctypes.CDLL(cl._cl.__file__).clCreateContext
    except (AttributeError, OSError):
        return cl.Context([device])
    create.restype = c_void_p
    create.argtypes = (c_void_p, c_uint, POINTER(c_void_p), c_void_p, c_void_p, POINTER(c_int))
    handle = create(None, 1, (c_void_p * 1)(device.int_ptr), None, None, byref(c_int()))
    return cl.Context.from_int_ptr(handle, False) if handle else cl.Context([device])


def context(device: cl.Device | None = None) -> cl.Context:
    """The shared context of a device. Raises NoDevice in a forked child of a process that has one."""
    refuse_forked()
    device = device or default_device()
    with _lock:
        shared_context = _context(device)
    _with_context.add(device)
    return shared_context


def has_context(device: cl.Device) -> bool:
    """Whether ``context`` returns at once."""
    return device in _with_context


def queue(device: cl.Device | None = None) -> cl.CommandQueue:
    """This thread's in-order queue on the shared context of a device."""
    device = device or default_device()
    queues = _threads.__dict__.setdefault("queues", {})
    if device not in queues:
        queues[device] = cl.CommandQueue(context(device))
    return queues[device]


def serial_queue(device: cl.Device | None = None) -> cl.CommandQueue | None:
    """This thread's queue whose commands the waiting thread computes itself; None where the device has none.

    No other thread is woken: an empty kernel and its wait take 1.7 us in Intel's runtime, with two threads 9 us.
    """
    device = device or default_device()
    queues = _threads.__dict__.setdefault("serial", {})
    if device not in queues:
        queues[device] = new_serial_queue(device)
    return queues[device]


def new_serial_queue(device: cl.Device) -> cl.CommandQueue | None:
    """A new queue whose commands the enqueuing thread computes itself; None where the device has none."""
    if "cl_intel_exec_by_local_thread" in device.extensions.split():
        with contextlib.suppress(cl.Error):
            return cl.CommandQueue(context(device), properties=_LOCAL_THREAD)
    return None


def is_synchronous(queue: cl.CommandQueue) -> bool:
    """Whether commands are complete when the enqueuing call returns, as on Intel's serial queue of this thread."""
    return any(queue is each for each in _threads.__dict__.get("serial", {}).values())


def allocate(queue: cl.CommandQueue, size: int) -> cl.MemoryObject:
    """Memory of at least ``size`` bytes for work on ``queue``, from the queue's pool; see ``memory.allocate``."""
    if not isinstance(queue, Commands):
        return memory.allocate(queue, size)
    return commands_of(queue).allocate(size)


def copy(
    queue: cl.CommandQueue,
    target: cl.MemoryObject,
    source: cl.MemoryObject,
    size: int,
    source_offset: int = 0,
    target_offset: int = 0,
    wait_for: Any = None,
) -> cl.Event:
    """Enqueue a copy of ``size`` bytes from ``source`` to ``target``, from the given bytes on."""
    event = commands_of(queue).copy(target, source, size, (source_offset, target_offset), wait_for)
    thread.enqueued += 1
    return event


def fill(
    queue: cl.CommandQueue, target: cl.MemoryObject, number: Any, offset: int, size: int, wait_for: Any = None
) -> cl.Event:
    """Enqueue filling ``size`` bytes from byte ``offset`` on with repetitions of a NumPy number."""
    event = commands_of(queue).fill(target, number, offset, size, wait_for)
    thread.enqueued += 1
    return event


def pending(queue: cl.CommandQueue) -> cl.Event:
    """An event that completes after everything enqueued on ``queue`` so far, for work on another queue."""
    if isinstance(queue, Commands):
        return queue
    opencl_queue = getattr(queue, "queue", queue)  # `queue` may be an object that wraps OpenCL's queue
    event = cl.enqueue_marker(opencl_queue)
    opencl_queue.flush()
    return event


def hold(queue: cl.CommandQueue, event: cl.Event) -> None:
    """Make all commands enqueued on ``queue`` from now on wait for ``event``, a flushed command of another queue."""
    if isinstance(queue, Commands):
        # A CUDA stream takes the place of its commands' events, so `event` is one.
        queue.after(event)  # type: ignore[attr-defined]
        return
    cl.enqueue_barrier(queue, wait_for=[event])
    queue.flush()
