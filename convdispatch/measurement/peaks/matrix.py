"""The ceiling of a device's matrix units, by the instructions that OpenCL C reaches.

OpenCL has no matrix instruction of its own. What a compiler takes is tried: today PTX's ``mma.sync`` inside OpenCL C,
which NVIDIA's does. A device that does not compile it, or computes something else, has no such ceiling here. Wider
instructions (``wgmma``) need a program of their own, and may be faster than what is measured here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ...api.device import DeviceInfo
from ...device.programs.kernels import build, kernel_text

if TYPE_CHECKING:
    import pyopencl as cl

WARP = 32
STEPS = 1024
SHAPES = {
    "float32": ("tf32", 8, "0x3f800000"),
    "float16": ("f16", 16, "0x3c003c00"),
    "bfloat16": ("bf16", 16, "0x3f803f80"),
}
"""For each dtype, the instruction's 16x8xK product: the operands' type, K, and a register filled with ones."""


@dataclass(frozen=True)
class Variant:
    """A kernel that does ``work`` units (operations or bytes) a run."""

    how: str
    work: float
    run: Callable[[], None]


def launcher(
    queue: cl.CommandQueue, kernel: Any, items: int, local: tuple[int, ...] | None, *memory: cl.Buffer
) -> Callable[[], None]:
    """A function that runs ``kernel`` over ``items`` once and waits; keeps ``memory`` alive as long as itself."""
    import pyopencl as cl

    # ``run`` holds the buffers, because an OpenCL kernel's arguments do not keep their memory alive.
    def run(_held: tuple[cl.Buffer, ...] = memory) -> None:
        cl.enqueue_nd_range_kernel(queue, kernel, (items,), local)
        queue.finish()

    return run


def matrix_variants(queue: cl.CommandQueue, info: DeviceInfo, dtype: str) -> Iterator[Variant]:
    """Products of ones, summed in float32 by independent chains; nothing where the device cannot."""
    import pyopencl as cl

    if info.type != "gpu" or dtype not in SHAPES:
        return
    kind, k, ones = SHAPES[dtype]
    items = info.compute_units * 2048
    out = cl.Buffer(queue.context, cl.mem_flags.READ_WRITE, items * 4)
    for chains in (2, 4, 8):
        text = kernel_text(__package__, "matrix.cl.mako", kind=kind, k=k, ones=ones, chains=chains, steps=STEPS)
        try:
            kernel = build(queue.context, text).matrix
        except Exception:  # The device's compiler does not know the matrix instruction.
            return
        kernel.set_args(out)
        run = launcher(queue, kernel, items, (min(256, info.max_work_group_size),), out)
        run()
        sums = np.empty(items, np.float32)
        cl.enqueue_copy(queue, sums, out)
        if not (sums == chains * STEPS * k).all():
            return
        work = 2.0 * 16 * 8 * k * chains * STEPS * (items // WARP)
        yield Variant(f"{chains} chains of mma.sync m16n8k{k} {kind}", work, run)
