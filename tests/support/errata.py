"""Runs a kernel that a compiler gets wrong; the exit status is 0 where it is right.

python tests/support/errata.py KERNEL SIZE
"""

from __future__ import annotations

import sys
import warnings
from pathlib import Path

import numpy as np
import pyopencl as cl

from convdispatch.device import runtime

HERE = Path(__file__).parent / "errata"


def program(queue: cl.CommandQueue, name: str, **values: int) -> cl.Program:
    head = "".join(f"#define {key} {value}\n" for key, value in values.items())
    return cl.Program(queue.context, head + (HERE / name).read_text()).build()


def rows(queue: cl.CommandQueue, name: str, size: int) -> bool:
    """The largest of each value and its neighbours left and right."""
    x = np.random.default_rng(0).standard_normal((size, size)).astype(np.float32)
    y = np.zeros_like(x)
    flags = cl.mem_flags
    source = cl.Buffer(queue.context, flags.READ_ONLY | flags.COPY_HOST_PTR, hostbuf=x)
    target = cl.Buffer(queue.context, flags.READ_WRITE | flags.COPY_HOST_PTR, hostbuf=y)
    program(queue, name, W=size, H=size).rows(queue, (1,), (1,), source, target)
    cl.enqueue_copy(queue, y, target)
    wide = np.pad(x, ((0, 0), (1, 1)), constant_values=-np.inf)
    return np.array_equal(y, np.maximum(np.maximum(wide[:, :-2], x), wide[:, 2:]))


def depthwise(queue: cl.CommandQueue, name: str, size: int) -> bool:
    """A 3x3 of 32 channels, each by itself, channels last, ``size`` columns."""
    height, channels, flags = 14, 32, cl.mem_flags
    rng = np.random.default_rng(0)
    x = rng.integers(-3, 4, (height, size, channels)).astype(np.float16)
    w = rng.integers(-3, 4, (channels, 3, 3)).astype(np.float16)
    y = np.full_like(x, 7)
    buffers = [cl.Buffer(queue.context, flags.READ_WRITE | flags.COPY_HOST_PTR, hostbuf=a) for a in (x, w, y)]
    program(queue, name, H=height, W=size, C=channels).depthwise(queue, (size, height, channels), None, *buffers)
    cl.enqueue_copy(queue, y, buffers[2])
    wide = np.pad(x.astype(np.float64), ((1, 1), (1, 1), (0, 0)))
    parts = [wide[i : i + height, j : j + size] * w[:, i, j] for i in range(3) for j in range(3)]
    return np.array_equal(y, sum(parts))


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    kernel, size = sys.argv[1], int(sys.argv[2])
    queue = runtime.queue(runtime.default_device())
    sys.exit(0 if (depthwise if kernel.startswith("half") else rows)(queue, kernel, size) else 1)
