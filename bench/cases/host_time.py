"""What calls cost the host, ours beside PyTorch's: single calls by stage, whole nets with tiny images, captured steps.

    python -m bench host_time stages            # a convolution's microseconds by stage, by every way that is here
    python -m bench host_time nets              # nets whose device waits for the host: inference, training, autocast
    python -m bench host_time steps             # training steps as they are, eager
    python -m bench host_time captured          # training steps in CUDA graphs: times, gradients' bits, what is left
    python -m bench host_time memory            # peak memory of a training step

All but ``stages`` need a CUDA device. Each time is a median of rounds in turns; a section prints one JSON line a row.
``CONVDISPATCH_NATIVE=0`` gives the figures of the way by Python alone.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
from collections.abc import Callable, Mapping
from typing import Any

import click
import torch

import convdispatch.torch as ct
from bench.timer import captured, host_seconds, in_turns
from convdispatch import policy
from convdispatch.calls.framework import tiers
from convdispatch.torch.dispatch import native

F = torch.nn.functional
Run = Callable[[], Any]


def say(**values: Any) -> None:
    """One row."""
    print(json.dumps(values), flush=True)


def wait() -> None:
    """Until the device is idle."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def milliseconds(sides: Mapping[str, Run], rounds: int, calls: int = 10) -> dict[str, float]:
    """Medians of the sides' times, taken in turns, of which "ours" are under ``enable()``."""

    def sample(name: str, run: Run) -> float:
        with ct.enable() if name == "ours" else contextlib.nullcontext():
            for _ in range(3):
                run()
            wait()
            return 1e3 * host_seconds(run, calls, wait)

    return in_turns({name: functools.partial(sample, name, run) for name, run in sides.items()}, rounds)


def ready(run: Run, times: int = 3) -> None:
    """All kernels there, nothing compiled beside the measurement."""
    with policy(tier="full"):
        run()
    for _ in range(times):
        run()
    tiers.drain()
    wait()


def net(name: str, form: str, images: int, size: int) -> tuple[Any, Run]:
    """(model, a call or a training step of it)."""
    import torchvision

    torch.manual_seed(0)
    model = getattr(torchvision.models, name)().cuda()
    x = torch.randn(images, 3, size, size, device="cuda")
    y = torch.randint(0, 1000, (images,), device="cuda")
    if form == "infer fp16":
        model, x = model.half(), x.half()
    if "32" not in form:
        model, x = model.to(memory_format=torch.channels_last), x.to(memory_format=torch.channels_last)
    if form.startswith("infer"):
        model.eval().requires_grad_(False)

        def call() -> None:
            with torch.inference_mode():
                model(x)

        return model, call
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4, momentum=0.9, fused=True)

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cuda", dtype=torch.bfloat16, enabled="amp" in form):
            loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()

    return model.train(), step


@click.group()
def main() -> None:
    """Measure."""
    torch.backends.cudnn.benchmark = False


def of_nets(names: str, forms: str, rounds: int, called: str = "") -> Callable[[Callable[..., None]], Any]:
    """A subcommand that is called with each net and form."""

    def command(measure: Callable[..., None]) -> Any:
        def run(names: str, forms: str, **options: Any) -> None:
            for name, form in itertools.product(names.split(","), forms.split(",")):
                measure(name, form, **options)
                torch.cuda.empty_cache()

        run.__doc__ = measure.__doc__
        for option, default in (("--rounds", rounds), ("--forms", forms), ("--names", names)):
            run = click.option(option, default=default, show_default=True)(run)
        return main.command(name=called or measure.__name__)(run)

    return command


def eager(name: str, form: str, rounds: int, images: int, size: int) -> None:
    """PyTorch's times beside ours, in turns."""
    model, run = net(name, form, images, size)
    run()
    with ct.enable():
        ready(run)
    ms = milliseconds({"torch": run, "ours": run}, rounds)
    layers = sum(isinstance(each, torch.nn.Conv2d) for each in model.modules())
    more = {"us_a_layer": 1e3 * (ms["ours"] - ms["torch"]) / layers, "native": native.runs("CUDA")}
    times = {"torch_ms": ms["torch"], "ours_ms": ms["ours"], "ratio": ms["torch"] / ms["ours"]}
    say(net=name, form=form, **times, **more, left=ct.counters()["left"])


@of_nets("resnet18,resnet50", "infer fp32,infer fp16,train fp32,train amp", 7)
def nets(name: str, form: str, rounds: int) -> None:
    """Nets with images so small that the device waits for the host."""
    eager(name, form, rounds, 2, 64)


@of_nets("resnet18", "train tf32,train amp", 5)
def steps(name: str, form: str, rounds: int) -> None:
    """Training steps at batch 32 and 224 by 224, eager: TF32 and autocast, PyTorch's algorithms measured first."""
    torch.backends.cudnn.benchmark = True
    set_tf32(True)
    net(name, form, 32, 224)[1]()
    torch.backends.cudnn.benchmark = False  # what it found stays
    eager(name, form, rounds, 32, 224)


def set_tf32(on: bool) -> None:
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = on


def gradients(model: Any, step: Run) -> list[torch.Tensor]:
    """Copies of a step's gradients; parameters and buffers are as before it."""
    state = [*model.parameters(), *model.buffers()]
    before = [each.detach().clone() for each in state]
    step()
    found = [each.grad.detach().clone() for each in model.parameters()]
    with torch.no_grad():
        for each, value in zip(state, before, strict=True):
            each.copy_(value)
    return found


@of_nets("resnet18,resnet50", "amp,fp32,tf32", 5, "captured")
def captured_steps(name: str, form: str, rounds: int) -> None:
    """Training steps at batch 32 in CUDA graphs, beside PyTorch's own."""
    torch.backends.cudnn.benchmark = True
    set_tf32(form == "tf32")
    theirs = captured(net(name, f"train {form}", 32, 224)[1], 4)
    torch.backends.cudnn.benchmark = False
    model, step = net(name, f"train {form}", 32, 224)
    with ct.enable():
        ready(step)
        before = ct.counters()
        replay = captured(step, 4)
        after = ct.counters()
        ms = milliseconds({"torch": theirs, "replay": replay}, rounds)
        pairs = list(zip(gradients(model, replay), gradients(model, step), strict=True))
    unlike = sum(not torch.equal(*pair) for pair in pairs)
    say(net=name, form=form, torch_ms=ms["torch"], ours_ms=ms["replay"], ratio=ms["torch"] / ms["replay"],
        gradients=f"{unlike} of {len(pairs)} differ" if unlike else "equal",
        **{count: after[count] - before[count] for count in ("left", "ours")})  # fmt: skip


@of_nets("resnet50,vgg16", "fp32,amp", 1)
def memory(name: str, form: str, rounds: int) -> None:
    """Peak memory of a training step of 64 images, the most of so many rounds, by PyTorch's own count."""
    peaks = {}
    for side in ("torch", "ours"):
        torch.cuda.empty_cache()
        _, step = net(name, f"train {form}", 64, 224)
        with ct.enable() if side == "ours" else contextlib.nullcontext():
            ready(step, 1) if side == "ours" else step()
            torch.cuda.reset_peak_memory_stats()
            for _ in range(rounds):
                step()
            wait()
            peaks[side] = torch.cuda.max_memory_allocated() / 2**30
        del step
    say(net=name, form=form, torch_gib=peaks["torch"], ours_gib=peaks["ours"], ratio=peaks["ours"] / peaks["torch"])


@main.command()
@click.option("--dtype", default="float16")
def stages(dtype: str) -> None:
    """One warm convolution, 64 to 64 channels, 3 by 3, 14 by 14, batch 1: microseconds by stage."""
    cuda = torch.cuda.is_available()
    where, kind = ("cuda", getattr(torch, dtype)) if cuda else ("cpu", torch.float32)
    x, w, grad = (torch.randn(s, device=where).to(kind) for s in ((1, 64, 14, 14), (64, 64, 3, 3), (1, 64, 14, 14)))
    geometry = [1, 1], [1, 1], [1, 1], False, [0, 0], 1, [True, True, False]
    runs: dict[str, Run] = {
        "forward": lambda: F.conv2d(x, w, None, padding=1),
        "backward": lambda: torch.ops.aten.convolution_backward(grad, x, w, None, *geometry),
    }

    def us(side: str) -> dict[str, float]:
        return {f"{side}: {name}": 1e3 * ms for name, ms in milliseconds(runs, 9, 200).items()}

    with torch.no_grad():
        empty = {"torch.empty of the result": lambda: torch.empty_like(grad)}
        rows = {name: 1e3 * ms for name, ms in milliseconds(empty, 9, 200).items()} | us("PyTorch")
        with ct.enable():
            for run in runs.values():
                ready(run)
            before = ct.counters()["solvers"]
            rows |= us("enable()")
            after = ct.counters()["solvers"]
            native.pause(True)
            rows |= us("enable() by Python")
            native.pause(False)
    for stage, value in rows.items():
        say(stage=stage, us=value)
    solvers = {name: count - before.get(name, 0) for name, count in after.items() if count > before.get(name, 0)}
    say(native=native.runs("CUDA" if cuda else "CPU"), solvers=solvers)


if __name__ == "__main__":
    main()
