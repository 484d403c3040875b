"""Whole nets beside PyTorch in one run: inference and training steps, float32 without TF32.

    python bench/nets.py infer resnet50 --mb 1 --mb 16 --mb 64 --find 500
    python bench/nets.py train alexnet vgg16 googlenet resnet50 --mb 16 --find 500 --within 540

``--find`` measures every convolution of the net for so many milliseconds first, into records of this run alone, or
into ``--records``, where a later run finds them. ``--within`` bounds the whole run: what was not measured by then is
chosen without, and nets not begun are left out. Both sides run in turns; a sample is some runs in a row, waited for at
their end, and medians are compared. Every phase is a line on standard error with the seconds since the start.
"""

from __future__ import annotations

import functools
import json
import os
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import click
import numpy as np
import pyopencl as cl
import torch
from torch_nets import to_torch

from convdispatch import inference
from convdispatch.device import runtime
from convdispatch.inference.lower import lower
from convdispatch.inference.passes.fusion import fuse
from convdispatch.inference.passes.layout import relayout
from convdispatch.inference.trace import trace
from convdispatch.measurement.find import find
from convdispatch.models import catalogue
from convdispatch.nn import SGD, Tape, capture
from convdispatch.nn.functional import cross_entropy
from convdispatch.selection import dispatch
from convdispatch.tensor import Tensor

START = time.perf_counter()
SHARE_FOR_FINDING = 0.7
"""Of a net's share of the time that is left: the rest is for the net itself."""


def say(text: str) -> None:
    """One line of progress."""
    print(f"{time.perf_counter() - START:6.1f} s  {text}", file=sys.stderr, flush=True)


def interleaved(works: dict[str, tuple[Callable[[], None], Callable[[], None]]], seconds: float) -> dict[str, float]:
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


def search(problems: set, queue: cl.CommandQueue, budget_ms: float, seconds: float) -> None:
    """Measure and record, for about so many seconds at most."""
    start = reported = time.perf_counter()
    for done, problem in enumerate(sorted(problems, key=lambda problem: -problem.flops)):
        now = time.perf_counter()
        if now - start > seconds:
            say(f"find: time is up, {len(problems) - done} of {len(problems)} problems are left to the choice")
            return
        if now - reported > 10 or not done:
            reported = now
            say(f"find: {done} of {len(problems)} problems")
        try:
            find(problem, device=queue.device, budget_ms=budget_ms)
        except Exception as error:
            say(f"find: {problem}: {str(error)[:200]}")
    say(f"found {len(problems)} problems in {time.perf_counter() - start:.0f} s")


def left(within: float | None) -> float:
    """Seconds until the limit."""
    return float("inf") if within is None else within - (time.perf_counter() - START)


def records(folder: str | None) -> None:
    """Where measured choices go."""
    os.environ["CONVDISPATCH_DB"] = folder or tempfile.mkdtemp(prefix="nets-")


def write(name: str, rows: list[dict]) -> None:
    """What is known so far: a run that is cut short leaves it."""
    if os.environ.get("OUT"):
        Path(os.environ["OUT"], name).write_text(json.dumps(rows, indent=1))


def torch_side(net, training: bool) -> tuple[torch.nn.Module, str]:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.backends.cudnn.benchmark = True
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
    module = to_torch(net).to(device)
    return (module.train() if training else module.eval()), device


def wait_torch(device: str) -> Callable[[], None]:
    return torch.cuda.synchronize if device == "cuda" else lambda: None


def enqueue_ms(work: Callable[[], object], queue: cl.CommandQueue) -> float:
    """Least milliseconds until everything was enqueued: what the host takes where the device does not hold it up."""
    best = float("inf")
    for _ in range(10):
        queue.finish()
        start = time.perf_counter()
        work()
        best = min(best, (time.perf_counter() - start) * 1e3)
    queue.finish()
    return best


def launch_cost(built: inference.InferenceNet, queue: cl.CommandQueue) -> float:
    """Microseconds of the host for each of the program's commands."""
    return enqueue_ms(built.run, queue) / built.commands * 1e3


def launches(built: inference.InferenceNet) -> str:
    """How many launches operations and solvers make."""
    count: Counter[str] = Counter()
    for command in built.steps:
        layer = built.layers[command]
        count[layer.solver or layer.name] += 1
    return ", ".join(f"{name} {n}" for name, n in count.most_common())


@click.group()
def main() -> None:
    """Compare inference or training."""


@main.command()
@click.argument("nets", nargs=-1, required=True)
@click.option("--mb", "batches", type=int, multiple=True, default=(1,))
@click.option("--find", "budget", type=float, default=0.0, help="Milliseconds a convolution.")
@click.option("--seconds", default=1.0)
@click.option("--layout", "layouts", multiple=True, default=("nchw", "nhwc"))
@click.option("--device", default=None)
@click.option("--within", type=float, default=None, help="Most seconds of it all.")
@click.option("--records", "folder", default=None, help="Keep what is measured there, and use what is.")
def infer(nets, batches, budget, seconds, layouts, device, within, folder) -> None:
    """Images a second of the inference form and of PyTorch's eager modules."""
    records(folder)
    found = runtime.find_device(device)
    queue = cl.CommandQueue(runtime.context(found))
    if not torch.cuda.is_available():
        torch.set_num_threads(os.cpu_count())
    rows: list[dict] = []
    wanted = len(nets) * len(batches)
    for name in nets:
        net = catalogue.create(name, queue=queue)
        net.eval()
        module, place = torch_side(net, False)
        for mb in batches:
            if left(within) < 0:
                say(f"{name} mb{mb}: left out, time is up")
                continue
            say(f"{name} mb{mb}: inference form")
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
                search(problems, queue, budget, SHARE_FOR_FINDING * left(within) / max(1, wanted - len(rows)))
                dispatch.forget()
            say(f"{name} mb{mb}: building and choosing a layout")
            built = inference.build(net, shape, queue=queue, layout=layouts[0] if len(layouts) == 1 else None)
            say(f"{name} mb{mb}: beside torch")
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
                times = interleaved(works, seconds)
            peer = min(times["torch"], times["torch last"])
            print(
                f"{name} mb{mb}: ours {times['ours']:.3f} ms ({mb / times['ours'] * 1e3:,.0f} images/s, "
                f"{built.layout}, {built.queues} queues, {built.commands} commands, {built.nbytes >> 20} of "
                f"{built.unshared_nbytes >> 20} MiB), torch {times['torch']:.3f}, channels last "
                f"{times['torch last']:.3f}, ratio {peer / times['ours']:.2f}, difference {error:.1e}; {built.tried}; "
                f"{launch_cost(built, queue):.2f} µs of the host a launch; launches {launches(built)}",
                flush=True,
            )
            rows.append({"net": name, "mb": mb, "ms": times, "layout": built.layout, "queues": built.queues,
                         "solvers": [layer.solver for layer in built.layers if layer.solver]})  # fmt: skip
            write("infer.json", rows)


@main.command()
@click.argument("nets", nargs=-1, required=True)
@click.option("--mb", "batches", type=int, multiple=True, default=(16,))
@click.option("--find", "budget", type=float, default=0.0, help="Milliseconds a convolution.")
@click.option("--seconds", default=1.0)
@click.option("--layout", default="nchw")
@click.option("--device", default=None)
@click.option("--within", type=float, default=None, help="Most seconds of it all.")
@click.option("--records", "folder", default=None, help="Keep what is measured there, and use what is.")
def train(nets, batches, budget, seconds, layout, device, within, folder) -> None:
    """A training step (forward, backward, SGD with momentum) on one batch."""
    records(folder)
    found = runtime.find_device(device)
    queue = cl.CommandQueue(runtime.context(found))
    rows: list[dict] = []
    wanted = len(nets) * len(batches)
    for name in nets:
        net = catalogue.create(name, layout=layout, queue=queue)
        size, channels = net.SIZE, net.CHANNELS
        module, place = torch_side(catalogue.create(name, queue=queue), True)
        ours = SGD(net.parameters(), lr=1e-3, momentum=0.9)
        theirs = torch.optim.SGD(module.parameters(), lr=1e-3, momentum=0.9)
        for mb in batches:
            if left(within) < 0:
                say(f"{name} mb{mb}: left out, time is up")
                continue
            say(f"{name} mb{mb}: training step")
            random = np.random.default_rng(0)
            x = random.standard_normal((mb, channels, size, size), dtype=np.float32)
            labels = random.integers(0, 10, mb)
            given = x if layout == "nchw" else np.ascontiguousarray(x.transpose(0, 2, 3, 1))
            x_ours, l_ours = Tensor.from_numpy(given, queue), Tensor.from_numpy(labels.astype(np.int32), queue)
            x_torch, l_torch = torch.from_numpy(x).to(place), torch.from_numpy(labels).to(place)

            def gradients(x, labels, net=net):
                with Tape() as tape:
                    loss = cross_entropy(net(x), labels)
                tape.backward(loss)
                return loss

            captured = capture(gradients)

            def step(x=x_ours, labels=l_ours, captured=captured, ours=ours) -> None:
                captured(x, labels)
                ours.step()

            def torch_step(x=x_torch, labels=l_torch, module=module, theirs=theirs) -> None:
                theirs.zero_grad(set_to_none=True)
                torch.nn.functional.cross_entropy(module(x), labels).backward()
                theirs.step()

            if budget:
                noted: set = set()
                prepare = dispatch.prepare

                def note(problem, *rest, noted=noted, prepare=prepare, **options):
                    noted.add(problem)
                    return prepare(problem, *rest, **options)

                dispatch.prepare = note
                step()
                dispatch.prepare = prepare
                queue.finish()
                search(noted, queue, budget, SHARE_FOR_FINDING * left(within) / max(1, wanted - len(rows)))
                dispatch.forget()
                captured.forget()
            for _ in range(2):  # as it is, then recorded
                step()
            queue.finish()
            say(f"{name} mb{mb}: beside torch")
            held = runtime.memory_statistics(found).held_bytes
            times = interleaved({"ours": (step, queue.finish), "torch": (torch_step, wait_torch(place))}, seconds)
            host = enqueue_ms(step, queue)
            grown = runtime.memory_statistics(found).held_bytes - held
            print(
                f"{name} mb{mb} train: ours {times['ours']:.2f} ms, torch {times['torch']:.2f}, "
                f"ratio {times['torch'] / times['ours']:.2f}; {host:.2f} ms of the host for "
                f"{captured.commands} commands; "
                f"memory grew by {grown >> 20} MiB",
                flush=True,
            )
            rows.append({"net": name, "mb": mb, "ms": times, "host_ms": host})
            write("train.json", rows)


if __name__ == "__main__":
    main()
