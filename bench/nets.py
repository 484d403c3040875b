"""Whole nets beside PyTorch in one run: inference and training steps, float32 without TF32.

    python bench/nets.py infer resnet50 --mb 1 --mb 16 --mb 64 --find 500
    python bench/nets.py train alexnet vgg16 googlenet resnet50 --mb 16 --find 500

``--find`` measures every convolution of the net for so many milliseconds first, into records of this run alone. Both
sides run in turns; a sample is some runs in a row, waited for at their end, and medians are compared.
"""

from __future__ import annotations

import functools
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import click
import numpy as np
import pyopencl as cl
import torch
from torch_nets import to_torch

from convdispatch import dispatch, inference, runtime
from convdispatch.api.find import find
from convdispatch.inference.fuse import fuse
from convdispatch.inference.layout import relayout
from convdispatch.inference.lower import lower
from convdispatch.inference.trace import trace
from convdispatch.models import catalogue
from convdispatch.nn import SGD, Tape
from convdispatch.nn.functional import cross_entropy
from convdispatch.tensor import Tensor

CLASSES = 1000


def race(works: dict[str, tuple[Callable[[], None], Callable[[], None]]], seconds: float) -> dict[str, float]:
    """Median milliseconds of each ``(work, wait)``, in turns."""
    repeat, samples = {}, {name: [] for name in works}
    for name, (work, wait) in works.items():
        for _ in range(3):
            work()
        wait()
        start = time.perf_counter()
        work()
        wait()
        repeat[name] = max(1, round(seconds / 10 / (time.perf_counter() - start)))
    for _ in range(7):
        for name, (work, wait) in works.items():
            start = time.perf_counter()
            for _ in range(repeat[name]):
                work()
            wait()
            samples[name].append((time.perf_counter() - start) / repeat[name] * 1e3)
    return {name: statistics.median(values) for name, values in samples.items()}


def search(problems: set, queue: cl.CommandQueue, budget_ms: float) -> None:
    """Measure and record."""
    start = time.perf_counter()
    for problem in problems:
        try:
            find(problem, device=queue.device, budget_ms=budget_ms)
        except Exception as error:
            print("find", problem, str(error)[:200])
    print(f"found {len(problems)} problems in {time.perf_counter() - start:.0f} s", flush=True)


def torch_side(net, training: bool) -> tuple[torch.nn.Module, str]:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.backends.cudnn.benchmark = True
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
    module = to_torch(net).to(device)
    return (module.train() if training else module.eval()), device


def wait_torch(device: str) -> Callable[[], None]:
    return torch.cuda.synchronize if device == "cuda" else lambda: None


@click.group()
def main() -> None:
    """Compare inference or training."""
    os.environ["CONVDISPATCH_DB"] = tempfile.mkdtemp(prefix="nets-")


@main.command()
@click.argument("nets", nargs=-1, required=True)
@click.option("--mb", "batches", type=int, multiple=True, default=(1,))
@click.option("--find", "budget", type=float, default=0.0, help="Milliseconds a convolution.")
@click.option("--seconds", default=1.0)
@click.option("--layout", "layouts", multiple=True, default=("nchw", "nhwc"))
@click.option("--device", default=None)
def infer(nets, batches, budget, seconds, layouts, device) -> None:
    """Images a second of the inference form and of PyTorch's eager modules."""
    found = runtime.find_device(device)
    queue = cl.CommandQueue(runtime.context(found))
    if not torch.cuda.is_available():
        torch.set_num_threads(os.cpu_count())
    rows = []
    for name in nets:
        net = catalogue.create(name, queue=queue)
        net.eval()
        module, place = torch_side(net, False)
        for mb in batches:
            shape = (mb, net.CHANNELS, net.SIZE, net.SIZE)
            x = np.random.default_rng(0).standard_normal(shape, dtype=np.float32)
            if budget:
                graph = fuse(trace(net, [shape], np.float32, queue))
                problems = {
                    node.problem
                    for layout in layouts
                    for node in lower(relayout(graph, layout), queue).nodes
                    if node.problem is not None
                }
                search(problems, queue, budget)
                dispatch.forget()
            built = inference.build(net, shape, queue=queue, layout=layouts[0] if len(layouts) == 1 else None)
            given = torch.from_numpy(x).to(place)
            with torch.inference_mode():
                expected = module(given).cpu().numpy()
                got = built(x)
                error = float(np.abs(got - expected).max() / np.abs(expected).max())
                last, wait = given.to(memory_format=torch.channels_last), wait_torch(place)
                works = {
                    "ours": (built.run, queue.finish),
                    "torch": (functools.partial(module, given), wait),
                    "torch last": (functools.partial(module, last), wait),
                }
                times = race(works, seconds)
            peer = min(times["torch"], times["torch last"])
            print(
                f"{name} mb{mb}: ours {times['ours']:.3f} ms ({mb / times['ours'] * 1e3:,.0f} images/s, "
                f"{built.layout}, {built.queues} queues, {built.commands} commands, {built.nbytes >> 20} of "
                f"{built.unshared_nbytes >> 20} MiB), torch {times['torch']:.3f}, channels last "
                f"{times['torch last']:.3f}, ratio {peer / times['ours']:.2f}, difference {error:.1e}; {built.tried}",
                flush=True,
            )
            rows.append({"net": name, "mb": mb, "ms": times, "layout": built.layout, "queues": built.queues,
                         "solvers": [layer.solver for layer in built.layers if layer.solver]})  # fmt: skip
    if os.environ.get("OUT"):
        Path(os.environ["OUT"], "infer.json").write_text(json.dumps(rows, indent=1))


@main.command()
@click.argument("nets", nargs=-1, required=True)
@click.option("--mb", "batches", type=int, multiple=True, default=(16,))
@click.option("--find", "budget", type=float, default=0.0, help="Milliseconds a convolution.")
@click.option("--seconds", default=1.0)
@click.option("--layout", default="nchw")
@click.option("--device", default=None)
def train(nets, batches, budget, seconds, layout, device) -> None:
    """A training step (forward, backward, SGD with momentum) on one batch."""
    found = runtime.find_device(device)
    queue = cl.CommandQueue(runtime.context(found))
    rows = []
    for name in nets:
        net = catalogue.create(name, layout=layout, queue=queue)
        size, channels = net.SIZE, net.CHANNELS
        module, place = torch_side(catalogue.create(name, queue=queue), True)
        ours = SGD(net.parameters(), lr=1e-3, momentum=0.9)
        theirs = torch.optim.SGD(module.parameters(), lr=1e-3, momentum=0.9)
        for mb in batches:
            random = np.random.default_rng(0)
            x = random.standard_normal((mb, channels, size, size), dtype=np.float32)
            labels = random.integers(0, 10, mb)
            given = x if layout == "nchw" else np.ascontiguousarray(x.transpose(0, 2, 3, 1))
            x_ours, l_ours = Tensor.from_numpy(given, queue), Tensor.from_numpy(labels.astype(np.int32), queue)
            x_torch, l_torch = torch.from_numpy(x).to(place), torch.from_numpy(labels).to(place)

            def step(x=x_ours, labels=l_ours, net=net, ours=ours) -> None:
                with Tape() as tape:
                    loss = cross_entropy(net(x), labels)
                tape.backward(loss)
                ours.step()

            def torch_step(x=x_torch, labels=l_torch, module=module, theirs=theirs) -> None:
                theirs.zero_grad(set_to_none=True)
                torch.nn.functional.cross_entropy(module(x), labels).backward()
                theirs.step()

            if budget:
                asked: set = set()
                prepare = dispatch.prepare

                def note(problem, *rest, asked=asked, prepare=prepare, **options):
                    asked.add(problem)
                    return prepare(problem, *rest, **options)

                dispatch.prepare = note
                step()
                dispatch.prepare = prepare
                queue.finish()
                search(asked, queue, budget)
                dispatch.forget()
            step()
            queue.finish()
            held = runtime.memory_statistics(found).held_bytes
            times = race({"ours": (step, queue.finish), "torch": (torch_step, wait_torch(place))}, seconds)
            grown = runtime.memory_statistics(found).held_bytes - held
            print(
                f"{name} mb{mb} train: ours {times['ours']:.2f} ms, torch {times['torch']:.2f}, "
                f"ratio {times['torch'] / times['ours']:.2f}; memory grew by {grown >> 20} MiB",
                flush=True,
            )
            rows.append({"net": name, "mb": mb, "ms": times})
    if os.environ.get("OUT"):
        Path(os.environ["OUT"], "train.json").write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
