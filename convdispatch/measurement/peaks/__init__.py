"""Measures a device's ceilings, which make the roofline: multiply-adds, a copy's bandwidth, matrix units.

Variants of a kernel (vector width, chains, block) are compared by time per unit of work; the best one's median is the
ceiling. A ceiling that cannot be measured is left out; none is taken from a data sheet.
"""

from __future__ import annotations

import dataclasses
import itertools
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyopencl as cl

from ...api.device import DeviceInfo
from ...api.dtypes import DTYPES
from ...api.errors import BuildFailed
from ...device import runtime
from ...device.programs.kernels import build, define, kernel_text
from ..measure import Candidate, interleaved, timed

ROUNDS = 15
"""The number of interleaved rounds in which the kernel variants are timed."""
GLANCE_ROUNDS = 3
"""The number of rounds of ``glance``."""
SINGLE_RUNS = 8
"""The number of single runs of a variant that are timed in addition to its samples."""
LEAST_SAMPLE_MS = 10.0
"""The least duration of a sample in milliseconds; a shorter kernel is repeated in a sample."""
COPY_BYTES = 1 << 26
"""The least bytes of a copied buffer; four times the device's cache if that is more."""


@dataclass(frozen=True)
class Peak:
    """One measured ceiling: ``rate`` operations or bytes per second, of ``count`` samples of the kernel ``how``.

    ``spread`` is the ratio of slow to quick samples, at the 80th and the 20th percentile; ``cores`` the processors that
    this process had meanwhile, its processor seconds per second; ``single`` the quickest of a few single runs over the
    samples' median, both in time per run.
    """

    rate: float
    how: str
    count: int = 0
    spread: float = 1.0
    cores: float = 0.0
    single: float = 1.0


@dataclass(frozen=True)
class Roof:
    """The ceilings that bound one dtype on one device; ``matrix`` is that of its matrix units, if OpenCL exposes them
    and a kernel of this module reached them."""

    dtype: str
    flops: Peak
    bandwidth: Peak
    matrix: Peak | None = None


def measure_roof(device: cl.Device, dtype: str, matrix: bool = True) -> Roof:
    """Measure the ceilings of a dtype, in about a second. Without ``matrix`` the matrix units are left out."""
    queue = cl.CommandQueue(runtime.context(device))
    info = runtime.device_info(device)
    flops = _best(_flops(queue, info, DTYPES[dtype].accumulator))
    bandwidth = _best(_copies(queue, info))
    if flops is None or bandwidth is None:
        raise BuildFailed(f"no kernel could measure the ceilings of {info}")
    return Roof(dtype, flops, bandwidth, _best(matrix_variants(queue, info, dtype)) if matrix else None)


def glance(device: cl.Device) -> Peak | None:
    """A rough ceiling of float32's multiply-adds, by one kernel in 50 milliseconds: its ``single`` shows whether the
    device has other work, which ``measure_roof`` would slow down for seconds."""
    variants = _flops(cl.CommandQueue(runtime.context(device)), runtime.device_info(device), "float")
    peak = _best(itertools.islice(variants, 1), GLANCE_ROUNDS)
    return peak and dataclasses.replace(peak, spread=1.0)  # so few samples do not show how they spread


def _best(variants: Iterator[Variant], rounds: int = ROUNDS) -> Peak | None:
    """Benchmark variants, in milliseconds per 10^9 units of work. A variant that fails to build or run is ignored."""
    rivals: dict[str, Candidate] = {}
    single_of: dict[str, float] = {}
    for variant in variants:
        try:
            variant.run()
            once_ms = timed(variant.run)()
        except Exception:
            # A compiler or a device's register file may not take a variant; the ceilings come from the other variants.
            continue
        repeat = max(1, round(LEAST_SAMPLE_MS / once_ms))
        rivals[variant.how] = Candidate(variant.how, _per_unit(variant, repeat), repeat * once_ms)
        single = _per_unit(variant, 1)
        single_of[variant.how] = min(single() for _ in range(SINGLE_RUNS if repeat > 1 else 1))
    start, cpu_start = time.perf_counter(), time.process_time()
    outcomes = interleaved(list(rivals.values()), rounds=rounds)
    cores = (time.process_time() - cpu_start) / (time.perf_counter() - start)
    timings = {name: outcome.timing for name, outcome in outcomes.items() if outcome.timing}
    if not timings:
        return None
    name = min(timings, key=lambda name: timings[name].median)
    timing = timings[name]
    median, spread = timing.median, timing.p80 / timing.p20
    return Peak(1e12 / median, name, timing.count, spread, cores, single_of[name] / median)


def _per_unit(variant: Variant, repeat: int) -> Callable[[], float]:
    sample = timed(variant.run, repeat=repeat)
    return lambda: sample() * 1e9 / variant.work


def _flops(queue: cl.CommandQueue, info: DeviceInfo, acc: str) -> Iterator[Variant]:
    """Variants that measure multiply-adds (two operations each) in the accumulation type ``acc``."""
    cpu = info.type == "cpu"
    width = max(1, info.simd_width // (2 if acc == "double" else 1))
    steps = 20000 if cpu else 4096
    items = info.compute_units * (8 if cpu else 2048)
    group_size = (1,) if cpu else (min(256, info.max_work_group_size),)
    element = np.dtype("float64" if acc == "double" else "float32")
    for lanes, chains in [(width, 24), (width, 12), (width, 8)] if cpu else [(1, 16), (1, 32), (2, 8), (4, 8)]:
        vector = f"{acc}{lanes if lanes > 1 else ''}"
        program = _program(queue, chains, V=vector, ACC=acc, STEPS=steps, ITEM=1, APART=0)
        kernel, out = cl.Kernel(program, "flops"), cl.Buffer(queue.context, cl.mem_flags.READ_WRITE, items * lanes * 8)
        kernel.set_args(out, element.type(0.999), element.type(0.001))
        run = launcher(queue, kernel, items, group_size, out)
        yield Variant(f"{chains} chains of {acc}{lanes}", 2.0 * items * lanes * chains * steps, run)


def _copies(queue: cl.CommandQueue, info: DeviceInfo) -> Iterator[Variant]:
    """Variants that measure a copy; bytes that are read and bytes that are written both count."""
    cpu = info.type == "cpu"
    cache = queue.device.global_mem_cache_size
    size = max(COPY_BYTES if cpu else 8 * COPY_BYTES, 4 * cache)
    size = min(size, info.max_alloc_size // 2, info.global_mem_size // 8) // COPY_BYTES * COPY_BYTES or COPY_BYTES // 8
    flags = cl.mem_flags.READ_WRITE
    source, target = cl.Buffer(queue.context, flags, size), cl.Buffer(queue.context, flags, size)
    cl.enqueue_fill_buffer(queue, source, np.float32(1), 0, size)
    width = max(4, info.simd_width)
    for lanes, item in [(width, 4096), (width, 256)] if cpu else [(4, 1), (4, 4), (2, 4), (1, 8)]:
        vector = f"float{lanes if lanes > 1 else ''}"
        program = _program(queue, 1, V=vector, ACC="float", STEPS=1, ITEM=item, APART=int(not cpu))
        kernel = cl.Kernel(program, "copy")
        kernel.set_args(target, source)
        run = launcher(queue, kernel, size // (4 * lanes * item), None if cpu else (256,), source, target)
        yield Variant(f"kernel, {item} float{lanes} an item", 2.0 * size, run)

    def command() -> None:
        cl.enqueue_copy(queue, target, source, byte_count=size)
        queue.finish()

    yield Variant("clEnqueueCopyBuffer", 2.0 * size, command)


def _program(queue: cl.CommandQueue, chains: int, **macros: str | int) -> Any:
    return build(queue.context, define(**macros) + kernel_text(__package__, "peaks.cl.mako", chains=chains))


WARP = 32
CHAIN_STEPS = 1024
SHAPES = {
    "float32": ("tf32", 8, "0x3f800000"),
    "float16": ("f16", 16, "0x3c003c00"),
    "bfloat16": ("bf16", 16, "0x3f803f80"),
}
"""For each dtype, the instruction's 16x8xK product: the operands' type, K, and a register filled with ones."""


@dataclass(frozen=True)
class Variant:
    """A kernel whose run does ``work`` units (operations or bytes)."""

    how: str
    work: float
    run: Callable[[], None]


def launcher(
    queue: cl.CommandQueue, kernel: Any, items: int, local: tuple[int, ...] | None, *memory: cl.Buffer
) -> Callable[[], None]:
    """A function that runs ``kernel`` over ``items`` once, waits, and keeps the buffers of ``memory`` alive."""

    # ``run`` holds the buffers, because an OpenCL kernel's arguments do not keep their memory alive.
    def run(_held: tuple[cl.Buffer, ...] = memory) -> None:
        cl.enqueue_nd_range_kernel(queue, kernel, (items,), local)
        queue.finish()

    return run


def matrix_variants(queue: cl.CommandQueue, info: DeviceInfo, dtype: str) -> Iterator[Variant]:
    """Variants that sum products of ones in float32 in independent chains; none if the device cannot.

    OpenCL has none, but NVIDIA's compiler accepts PTX's ``mma.sync`` inside OpenCL C. Wider
    instructions (``wgmma``) are not measured, and may be faster.
    """
    if info.type != "gpu" or dtype not in SHAPES:
        return
    kind, k, ones = SHAPES[dtype]
    items = info.compute_units * 2048
    out = cl.Buffer(queue.context, cl.mem_flags.READ_WRITE, items * 4)
    for chains in (2, 4, 8):
        text = kernel_text(__package__, "matrix.cl.mako", kind=kind, k=k, ones=ones, chains=chains, steps=CHAIN_STEPS)
        try:
            kernel = build(queue.context, text).matrix
        except Exception:  # The device's compiler does not know the matrix instruction.
            return
        kernel.set_args(out)
        run = launcher(queue, kernel, items, (min(256, info.max_work_group_size),), out)
        run()
        sums = np.empty(items, np.float32)
        cl.enqueue_copy(queue, sums, out)
        if not (sums == chains * CHAIN_STEPS * k).all():
            return
        work = 2.0 * 16 * 8 * k * chains * CHAIN_STEPS * (items // WARP)
        yield Variant(f"{chains} chains of mma.sync m16n8k{k} {kind}", work, run)
