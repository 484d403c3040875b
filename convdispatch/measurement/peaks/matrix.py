"""The ceiling of a device's matrix units, by the instructions that OpenCL C reaches.

OpenCL has no matrix instruction. The one that is tried is PTX's ``mma.sync`` inside OpenCL C, which NVIDIA's compiler
accepts. A device that does not compile it, or computes another result, has no such ceiling here. Wider instructions
(``wgmma``) are not measured, and may be faster.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyopencl as cl

from ...api.device import DeviceInfo
from ...device.programs.kernels import build, kernel_text

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
    """Variants that sum products of ones in float32 in independent chains; none if the device cannot."""
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
