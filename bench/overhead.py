"""Host time of a warm conv() on a tiny problem, above the bare enqueue of the same kernel.

    python bench/overhead.py [--device NAME] [--calls 5000]

Prints the median microseconds of: the kernel called through pyopencl; the plan; conv() into ``out=``; conv() that
allocates its result; on every kind of array that is here. One queue, finished between batches so that no call waits for
room; calls on host memory wait for their kernel, to be compared with the kernel and its wait.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import click
import numpy as np
import pyopencl as cl
import pyopencl.array as cla
from rich.console import Console
from rich.table import Table

import convdispatch as cd
from convdispatch.device import kernels, runtime
from convdispatch.selection import dispatch

NOTHING = "kernel void nothing(global const float *x, global const float *w, global float *y) { y[0] = x[0] * w[0]; }"


class Tiny(cd.Solver):
    """One kernel that does next to nothing, so that what is left is the road to it."""

    name = "overhead.tiny"

    def rejects(self, problem: cd.ConvProblem, device: cd.DeviceInfo) -> str | None:
        """Forward only."""
        return None if problem.direction == "fwd" else "forward only"

    def plan(self, context: cl.Context, problem: cd.ConvProblem, config: object) -> Plan:
        """One launch of one work item."""
        return Plan(context)


class Plan:
    """A plan of one launch."""

    workspace_size = 0

    def __init__(self, context: cl.Context) -> None:
        program = kernels.build(context, NOTHING)
        self.launch = kernels.Launch(program, "nothing", (1,), (1,), "x w y", names=("x", "w", "y"))

    def enqueue(self, queue, x, w, y, workspace, wait_for=None):
        """Enqueue the one kernel."""
        return self.launch(queue, (x, w, y), wait_for)


def median_us(call: Callable[[], object], finish: Callable[[], object], calls: int, batch: int = 100) -> float:
    """Median time of one call in microseconds."""
    times = []
    for _ in range(calls // batch):
        for _ in range(batch):
            start = time.perf_counter_ns()
            call()
            times.append(time.perf_counter_ns() - start)
        finish()
    return statistics.median(times[len(times) // 10 :]) / 1000


@click.command()
@click.option("--device", help="A device's name, vendor, type, or platform:device.")
@click.option("--calls", default=5000, show_default=True)
def main(device: str | None, calls: int) -> None:
    """Measure."""
    queue = runtime.queue(runtime.find_device(device))
    x, w, y = (cla.zeros(queue, shape, np.float32) for shape in ((1, 2, 4, 4), (2, 2, 3, 3), (1, 2, 2, 2)))
    problem = cd.ConvProblem(mb=1, ic=2, ih=4, iw=4, oc=2, kh=3, kw=3)
    from convdispatch.selection.loader import plugins

    plugins().solvers["overhead.tiny"] = Tiny()
    plugins().plugin_of["overhead.tiny"] = "overhead"
    with cd.policy(solver="overhead.tiny"):
        prepared = dispatch.prepare(problem, queue.context)
        kernel = prepared.plan.launch.kernel
        buffers = (x.base_data, w.base_data, y.base_data)
        tensors = [cd.Tensor.from_numpy(array.get(), queue) for array in (x, w, y)]
        sizes = kernel.global_size, kernel.local_size
        cases = {
            "bare enqueue through pyopencl": lambda: kernel.bound(queue, *sizes, *buffers),
            "plan.enqueue": lambda: prepared.plan.enqueue(queue, *buffers, None),
            "conv(Array, out=)": lambda: cd.conv(x, w, out=y),
            "conv(Array)": lambda: cd.conv(x, w),
            "conv(Tensor, out=)": lambda: cd.conv(tensors[0], tensors[1], out=tensors[2]),
            "conv(Tensor)": lambda: cd.conv(tensors[0], tensors[1]),
        }
        host = [array.get() for array in (x, w, y)]
        cases |= {
            "conv(NumPy, out=)": lambda: cd.conv(host[0], host[1], out=host[2], queue=queue),
            "conv(NumPy)": lambda: cd.conv(host[0], host[1], queue=queue),
            "the kernel and its wait": lambda: kernel.bound(queue, *sizes, *buffers).wait(),
        }
        try:
            import torch
        except ImportError:
            pass
        else:
            torches = [torch.from_numpy(array) for array in host]
            cases["conv(torch), on the CPU"] = lambda: cd.conv(*torches[:2], queue=queue)
            if runtime.device_info(queue.device).vendor == "nvidia" and torch.cuda.is_available():
                cudas = [array.cuda() for array in torches]
                cases["conv(torch, out=), on CUDA"] = lambda: cd.conv(*cudas[:2], out=cudas[2])
                cases["conv(torch), on CUDA"] = lambda: cd.conv(*cudas[:2])
        table = Table("call", "median us", "above bare", title=f"Warm call on {runtime.device_info(queue.device)}")
        medians = {name: median_us(call, queue.finish, calls) for name, call in cases.items()}
    bare = medians["bare enqueue through pyopencl"]
    for name, value in medians.items():
        table.add_row(name, f"{value:.2f}", f"{value - bare:.2f}")
    Console().print(table)


if __name__ == "__main__":
    main()
