"""Bandwidth of element-wise kernels and reductions against tensor size, and a call's cost, beside the device's copy.

    python bench/framework.py [--device NAME] [--largest MIB] [--rounds N]

Each figure is the median of rounds in which all kernels of a size take turns. Bytes are counted once for each element
read or written. The share of the copy is the median of the rounds' shares, so that load from others, slowing a whole
round, cancels; the copy is the better of the runtime's own and a plain kernel's.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import click
import numpy as np
from rich.console import Console
from rich.table import Table

from convdispatch.device import runtime
from convdispatch.elementwise import Generator, apply, reduce
from convdispatch.tensor import Tensor

LEAST_SECONDS = 2e-3
"""A sample repeats its kernel until it takes about this long."""


def kernels(count: int, queue: object) -> dict[str, tuple[Callable[[], object], int]]:
    """Work by name, and the bytes that it moves."""
    generator = Generator(1, queue)
    x, y, z, v = (generator.normal((count,)) for _ in range(4))
    side = max(1, count // (64 * 1024)) * 1024
    picture = x[: count // (64 * side) * 64 * side].reshape(-1, 64, side)
    bias = generator.normal((64, 1))
    into = z[: picture.size].reshape(picture.shape)
    import pyopencl as cl

    def copy() -> None:
        cl.enqueue_copy(queue, z.base_data, x.base_data, byte_count=x.nbytes)

    return {
        "copy, runtime's": (copy, 8 * count),
        "copy, kernel": (lambda: apply("x", x=x, out=z), 8 * count),
        "relu": (lambda: apply("where(x < 0, 0, x)", x=x, out=z), 8 * count),
        "x + y": (lambda: apply("x + y", x=x, y=y, out=z), 12 * count),
        "bias and relu of channels": (
            lambda: apply("max(x + b, 0)", x=picture, b=bias, out=into),
            8 * picture.size,
        ),
        "SGD with momentum": (
            lambda: apply("v = m * v + g; p = p - r * v", p=y, v=v, g=x, m=0.9, r=1e-9),
            20 * count,
        ),
        "sum": (lambda: reduce("sum", "x", x=x), 4 * count),
        "sum of channels": (lambda: reduce("sum", "x", (0, 2), x=picture), 4 * picture.size),
    }


def measure(works: list[Callable[[], object]], queue: object, rounds: int) -> list[list[float]]:
    """Seconds of each, round by round."""

    def sample(work: Callable[[], object], repeat: int) -> float:
        queue.finish()
        start = time.perf_counter()
        for _ in range(repeat):
            work()
        queue.finish()
        return (time.perf_counter() - start) / repeat

    repeats = []
    for work in works:
        sample(work, 2)
        repeats.append(max(1, min(1000, int(LEAST_SECONDS / max(sample(work, 3), 1e-7)))))
    return [[sample(work, repeat) for work, repeat in zip(works, repeats, strict=True)] for _ in range(rounds)]


@click.command()
@click.option("--device", default=None, help="A device's name, vendor, type, or platform:device.")
@click.option("--largest", default=256, help="MiB of the largest tensor.")
@click.option("--rounds", default=9)
def main(device: str | None, largest: int, rounds: int) -> None:
    """Print GB/s by kernel and tensor size, and the share of the best copy at the largest size."""
    queue = runtime.queue(runtime.find_device(device))
    console, begun = Console(width=120), time.perf_counter()
    sizes = [size for size in (2**14, 2**17, 2**20, 2**23, 2**26, 2**28) if size <= largest * 2**20]
    names = list(kernels(2**12, queue))
    columns: list[list[float]] = []
    shares: list[float] = []
    for size in sizes:
        count = size // 4
        works = kernels(count, queue)
        times = measure([work for work, _ in works.values()], queue, rounds)
        speeds = [[moved / t / 1e9 for (_, moved), t in zip(works.values(), row, strict=True)] for row in times]
        columns.append([statistics.median(column) for column in zip(*speeds, strict=True)])
        shares = [statistics.median(row[i] / max(row[:2]) for row in speeds) for i in range(len(names))]
        console.print(f"{size / 2**20:g} MiB: {time.perf_counter() - begun:.0f} s so far", style="dim")
    table = Table(title=f"GB/s by size of one tensor, on {runtime.device_info(queue.device)}", title_justify="left")
    for heading in ("kernel", *(f"{size / 2**20:g} MiB" for size in sizes), "of the copy"):
        table.add_column(heading, justify="left" if heading == "kernel" else "right", no_wrap=True)
    for i, name in enumerate(names):
        table.add_row(name, *(f"{column[i]:.1f}" if column[i] else "" for column in columns), f"{shares[i]:.0%}")
    console.print(table)
    small = Tensor.from_numpy(np.ones(16, np.float32), queue)
    out = Tensor.empty((16,), queue=queue)
    start = time.perf_counter()
    for _ in range(2000):
        apply("x + 1", x=small, out=out)
    console.print(f"a warm apply() takes {(time.perf_counter() - start) / 2000 * 1e6:.1f} µs of the host")
    queue.finish()


if __name__ == "__main__":
    main()
