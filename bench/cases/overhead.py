"""Host time of a warm conv() on a tiny problem, above the bare enqueue of the same kernel.

    python -m bench overhead [--device NAME] [--calls 5000]
    python -m bench overhead --layers          # five layers instead, by where their arrays are

Prints the median microseconds of: the kernel called through pyopencl; the plan; conv() into ``out=``; conv() that
allocates its result; on every kind of array that is here. One queue, finished between batches so that no call waits for
room, and all in turns. Each is compared with the bare launch on its path: an enqueue; one that waits for the event that
an ``Array`` carries; an enqueue and its wait, for host memory; a launch by CUDA's driver; and, for ``enable()``,
PyTorch's call of an operator that is overridden in Python by an enqueue and its wait. With ``--layers`` each kind of
array is compared with ``out=`` on device arrays.
"""

from __future__ import annotations

import contextlib
import contextvars
import functools
import statistics
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import click
import numpy as np
import pyopencl as cl
import pyopencl.array as cla

import convdispatch as cd
from bench.results import markdown
from bench.timer import host_seconds, in_turns
from convdispatch.api import Solver
from convdispatch.calls.arrays.known_libraries import library_of
from convdispatch.calls.stream_call import loaded_launches
from convdispatch.device import runtime
from convdispatch.device.commands import host_memory
from convdispatch.device.programs import kernels
from convdispatch.selection import dispatch

BARE = (
    *("bare enqueue through pyopencl", "bare enqueue after an event", "the kernel and its wait"),
    *("bare launch by CUDA's driver", "PyTorch's call of a Python kernel that only launches"),
    "the kernel on host pointers and its wait",
)
ROUNDS = 10
"""All calls are measured in turns, so often."""
NOTHING = "kernel void nothing(global const float *x, global const float *w, global float *y) { y[0] = x[0] * w[0]; }"


LAYERS = {
    "1x1 256->64, 56x56, batch 8": ((8, 256, 56, 56), (64, 256, 1, 1), {}),
    "depthwise 144, 56x56, batch 8": ((8, 144, 56, 56), (144, 1, 3, 3), {"padding": 1, "groups": 144}),
    "64->64 3x3, 224x224, batch 2": ((2, 64, 224, 224), (64, 64, 3, 3), {"padding": 1}),
    "64->64 3x3, 56x56, batch 1": ((1, 64, 56, 56), (64, 64, 3, 3), {"padding": 1}),
    "32->32 3x3, 14x14, batch 1": ((1, 32, 14, 14), (32, 32, 3, 3), {"padding": 1}),
}
SAMPLE_S = 0.01
"""Seconds of a sample of a layer's calls."""


class Tiny(Solver):
    """One kernel that does next to nothing, so that what is left is the path to it."""

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
    times, batch = [], min(batch, calls)
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
@click.option("--layers", is_flag=True, help="Five layers by where their arrays are.")
def main(device: str | None, calls: int, layers: bool) -> None:
    """Measure."""
    queue = runtime.queue(runtime.find_device(device))
    print(runtime.device_info(queue.device))
    if layers:
        print(of_layers(queue))
        return
    x, w, y = (cla.zeros(queue, shape, np.float32) for shape in ((1, 2, 4, 4), (2, 2, 3, 3), (1, 2, 2, 2)))
    problem = cd.ConvProblem(mb=1, ic=2, ih=4, iw=4, oc=2, kh=3, kw=3)
    from convdispatch.selection.plugins.loader import plugins

    plugins().solvers["overhead.tiny"] = Tiny()
    plugins().plugin_of["overhead.tiny"] = "overhead"
    with cd.policy(solver="overhead.tiny"):
        prepared = dispatch.prepare(problem, queue.context)
        kernel = prepared.plan.launch.kernel
        buffers = (x.base_data, w.base_data, y.base_data)
        tx, tw, ty = (cd.Tensor.from_numpy(array.get(), queue) for array in (x, w, y))
        sizes = kernel.global_size, kernel.local_size
        host = nx, nw, ny = [array.get() for array in (x, w, y)]
        enqueue, after, wait = BARE[:3]
        # Where kernels take the host's pointers, a host array's path ends in a launch on those.
        pointed = host_memory.has_system_svm(queue.device)
        given = [host_memory.HostMemory(array) for array in host] if pointed else buffers
        on_host = BARE[5] if pointed else wait
        last = [kernel.bound(queue, *sizes, *buffers)]

        def after_last() -> None:
            last[0] = kernel.bound(queue, *sizes, *buffers, wait_for=last)

        cases: dict[str, tuple[str, Callable[[], object]]] = {
            enqueue: (enqueue, lambda: kernel.bound(queue, *sizes, *buffers)),
            "plan.enqueue": (enqueue, lambda: prepared.plan.enqueue(queue, *buffers, None)),
            after: (after, after_last),
            "conv(Array, out=)": (after, lambda: cd.conv(x, w, out=y)),
            "conv(Array)": (enqueue, lambda: cd.conv(x, w)),
            "conv(Tensor, out=)": (enqueue, lambda: cd.conv(tx, tw, out=ty)),
            "conv(Tensor)": (enqueue, lambda: cd.conv(tx, tw)),
            wait: (wait, lambda: kernel.bound(queue, *sizes, *buffers).wait()),
            on_host: (on_host, lambda: kernel.bound(queue, *sizes, *given).wait()),
            "conv(NumPy, out=)": (on_host, lambda: cd.conv(nx, nw, out=ny, queue=queue)),
            "conv(NumPy)": (on_host, lambda: cd.conv(nx, nw, queue=queue)),
        }
        finish: Callable[[], object] = queue.finish
        around: dict[str, Callable[[], Any]] = {}
        plain: set[str] = set()  # measured outside the policy, under which calls go by Python
        try:
            import torch
        except ImportError:
            pass
        else:
            torches = px, pw, _ = [torch.from_numpy(array) for array in host]
            cases["conv(torch), on the CPU"] = on_host, lambda: cd.conv(px, pw, queue=queue)
            if runtime.device_info(queue.device).type == "cpu":
                import convdispatch.torch as ct

                def bare() -> None:
                    kernel.bound(queue, *sizes, *given).wait()

                def conv2d() -> Any:
                    with torch.no_grad():
                        return torch.nn.functional.conv2d(px, pw)

                floor, ours = BARE[4], "conv2d under enable(), on the CPU"
                cases |= {floor: (floor, conv2d), ours: (floor, conv2d)}
                around = {floor: lambda: overridden(torch, bare, torches[2]), ours: ct.enable}
            if runtime.device_info(queue.device).vendor == "nvidia" and torch.cuda.is_available():
                cudas = [array.cuda() for array in torches]
                cases |= on_cuda(prepared, torch, cudas)
                finish = torch.cuda.synchronize
                import convdispatch.torch as ct

                def theirs() -> Any:
                    with torch.no_grad():
                        return torch.nn.functional.conv2d(*cudas[:2])

                floor, left = "conv2d, PyTorch's", "conv2d left to PyTorch under enable()"
                cases |= {floor: (floor, theirs), left: (floor, theirs)}
                around |= {left: lambda: ct.enable(min_flops=1e15)}
                plain |= {floor, left}
        for array in (x, w, y):
            array.finish()  # else each call waits for what filled and read them, too, and the bare launch does not

        def sample(name: str) -> float:
            context = contextvars.Context() if name in plain else contextvars.copy_context()
            with around.get(name, contextlib.nullcontext)():
                return context.run(median_us, cases[name][1], finish, calls // ROUNDS)

        medians = in_turns({name: functools.partial(sample, name) for name in cases}, ROUNDS)
    rows = [[name, f"{value:.2f}", f"{value - medians[cases[name][0]]:.2f}"] for name, value in medians.items()]
    print(markdown(["call", "median us", "above bare"], rows))


def of_layers(queue: Any) -> str:
    """A table: microseconds of each layer into device arrays, and the ratios of the other kinds of arrays."""
    import torch

    ways = ("NumPy", "NumPy out=", "new Array", "new Tensor", "torch")
    random, rows = np.random.default_rng(0), []
    for name, (x_shape, w_shape, options) in LAYERS.items():
        x, w = (random.standard_normal(shape, dtype=np.float32) for shape in (x_shape, w_shape))
        on_device, tensors = [cla.to_device(queue, a) for a in (x, w)], [cd.Tensor.from_numpy(a, queue) for a in (x, w)]
        torches, out = [torch.from_numpy(a) for a in (x, w)], cd.conv(*on_device, **options)
        calls = {
            "out=": functools.partial(cd.conv, *on_device, out=out, **options),
            "NumPy": functools.partial(cd.conv, x, w, queue=queue, **options),
            "NumPy out=": functools.partial(cd.conv, x, w, out=out.get(), queue=queue, **options),
            "new Array": functools.partial(cd.conv, *on_device, **options),
            "new Tensor": functools.partial(cd.conv, *tensors, **options),
            "torch": functools.partial(cd.conv, *torches, **options),
        }

        def finished(way: str, calls: dict[str, Callable[[], Any]] = calls) -> None:
            calls[way]()
            queue.finish()

        repeat = max(1, round(SAMPLE_S / min(host_seconds(functools.partial(finished, way), 3) for way in calls)))
        samples = {way: functools.partial(host_seconds, functools.partial(finished, way), repeat) for way in calls}
        medians = in_turns(samples, ROUNDS)
        base = medians["out="]
        cells = [f"{medians[way] / base:.2f} ({(medians[way] - base) * 1e6:+.0f} us)" for way in ways]
        rows.append([name, f"{base * 1e6:.0f}", *cells])
    return markdown(["layer", "out= us", *ways], rows)


@contextlib.contextmanager
def overridden(torch: Any, work: Callable[[], object], answer: Any) -> Iterator[None]:
    """PyTorch's convolution on the CPU is a function in Python that does ``work`` alone: what PyTorch itself takes."""

    def kernel(keys: Any, *arguments: Any) -> Any:
        work()
        return answer

    library = torch.library.Library("aten", "IMPL")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        library.impl("convolution", kernel, "CPU", with_keyset=True)
    try:
        yield
    finally:
        library._destroy()


def on_cuda(prepared: Any, torch: Any, tensors: Sequence[Any]) -> dict[str, tuple[str, Callable[[], object]]]:
    """Calls on PyTorch's CUDA tensors, beside ``cuLaunchKernelEx`` with arguments that are packed."""
    launch = BARE[3]
    stream = library_of(torch.Tensor).stream(tensors[0], 0)
    with stream.current():
        launches = loaded_launches(prepared, stream)
    assert launches is not None
    ((function, arguments, places),) = launches.loaded
    ready, addresses = function.ready(arguments, places), [tensor.data_ptr() for tensor in tensors]
    x, w, y = tensors
    return {
        launch: (launch, lambda: ready(stream.handle, addresses, True)),
        "conv(torch, out=), on CUDA": (launch, lambda: cd.conv(x, w, out=y)),
        "conv(torch), on CUDA": (launch, lambda: cd.conv(x, w)),
        "torch.empty of the result": (launch, lambda: torch.empty((1, 2, 2, 2), dtype=torch.float32, device="cuda")),
    }


if __name__ == "__main__":
    main()
