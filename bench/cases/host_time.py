"""What calls cost the host, ours beside PyTorch's: single calls by stage, whole nets with tiny images, captured steps.

    python -m bench host_time stages            # a convolution's microseconds by stage, by every way that is here
    python -m bench host_time nets              # nets whose device waits for the host: inference, training, autocast
    python -m bench host_time captured          # training steps in CUDA graphs: times, gradients' bits, what is left
    python -m bench host_time memory            # peak memory of a training step
    python -m bench host_time steps             # training steps as they are, eager

All but ``stages`` need a CUDA device. Each time is a median of rounds in turns; a section prints one JSON line a row.
``CONVDISPATCH_NATIVE=0`` gives the figures of the way by Python alone.
"""

from __future__ import annotations

import contextlib
import functools
import json
from collections.abc import Callable
from typing import Any

import click
import torch

import convdispatch.torch as ct
from bench.timer import host_seconds
from bench.timer import in_turns as turns
from convdispatch import policy
from convdispatch.calls.framework import tiers
from convdispatch.torch.dispatch import native

F = torch.nn.functional
FORMS = ("infer fp32", "infer fp16", "train fp32", "train amp")


def say(**values: Any) -> None:
    """One row."""
    print(json.dumps(values), flush=True)


def wait() -> None:
    """Until the device is idle."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def milliseconds(sides: dict[str, Callable[[], Any]], rounds: int, calls: int) -> dict[str, float]:
    """Medians of the sides' times, taken in turns."""

    def sample(side: Callable[[], Any]) -> float:
        side()
        wait()
        return 1e3 * host_seconds(side, calls, wait)

    return turns({name: functools.partial(sample, side) for name, side in sides.items()}, rounds)


def ready(run: Callable[[], Any], times: int = 3) -> None:
    """All kernels there, nothing compiled beside the measurement."""
    with policy(tier="full"):
        run()
    for _ in range(times):
        run()
    tiers.drain()
    wait()


def under(on: bool) -> Any:
    """Under ``enable()``, or not."""
    return ct.enable() if on else contextlib.nullcontext()


def in_turns(run: Callable[[], Any], rounds: int, calls: int) -> tuple[float, float]:
    """(PyTorch's, ours) milliseconds of a call, in turns."""
    run()
    with under(True):
        ready(run)

    def sample(on: bool) -> float:
        with under(on):
            for _ in range(3):
                run()
            return milliseconds({"": run}, 1, calls)[""]

    found = turns({side: functools.partial(sample, side == "ours") for side in ("PyTorch", "ours")}, rounds)
    return found["PyTorch"], found["ours"]


# --- nets -----------------------------------------------------------------------------------------------------------


def net(name: str, form: str, images: int, size: int) -> tuple[Any, Callable[[], Any]]:
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

        def call() -> Any:
            with torch.inference_mode():
                return model(x)

        return model, call
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4, momentum=0.9, fused=True)

    def step() -> Any:
        optimizer.zero_grad(set_to_none=True)
        cast = torch.autocast("cuda", dtype=torch.bfloat16) if "amp" in form else contextlib.nullcontext()
        with cast:
            loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss

    return model.train(), step


def convolutions(model: Any) -> int:
    """How many there are."""
    return sum(isinstance(each, torch.nn.Conv2d) for each in model.modules())


@click.group()
def main() -> None:
    """Measure."""
    torch.backends.cudnn.benchmark = False


@main.command()
@click.option("--names", default="resnet18,resnet50")
@click.option("--rounds", default=7)
def nets(names: str, rounds: int) -> None:
    """Nets with images so small that the device waits for the host."""
    for name in names.split(","):
        for form in FORMS:
            model, run = net(name, form, 2, 64)
            theirs, mine = in_turns(run, rounds, 10)
            more = 1e3 * (mine - theirs) / convolutions(model)
            say(net=name, form=form, torch_ms=theirs, ours_ms=mine, ratio=theirs / mine, us_a_layer=more,
                native=native.runs("CUDA"), left=ct.counters()["left"])  # fmt: skip


@main.command()
@click.option("--names", default="resnet18")
@click.option("--forms", default="train tf32,train amp")
@click.option("--rounds", default=5)
def steps(names: str, forms: str, rounds: int) -> None:
    """Training steps at batch 32 and 224 by 224, eager: TF32 and autocast."""
    for name in names.split(","):
        for form in forms.split(","):
            torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = True
            torch.backends.cudnn.benchmark = True
            _, run = net(name, form.replace("tf32", "fp32"), 32, 224)
            for _ in range(4):
                run()
            theirs = milliseconds({"": run}, rounds, 10)[""]
            torch.backends.cudnn.benchmark = False
            with ct.enable():
                ready(run, 4)
                mine = milliseconds({"": run}, rounds, 10)[""]
            torch.backends.cudnn.benchmark = True
            again = milliseconds({"": run}, rounds, 10)[""]
            torch.backends.cudnn.benchmark = False
            theirs = min(theirs, again)
            say(net=name, form=form, torch_ms=theirs, ours_ms=mine, ratio=theirs / mine, left=ct.counters()["left"])


# --- captured steps -------------------------------------------------------------------------------------------------


def captured(model: Any, step: Callable[[], Any], warm: int = 4) -> Callable[[], None]:
    """The whole step in a CUDA graph."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(warm):
            step()
    torch.cuda.current_stream().wait_stream(side)
    wait()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph.replay


def state_of(model: Any) -> list[torch.Tensor]:
    """Copies of parameters and buffers."""
    return [each.detach().clone() for each in (*model.parameters(), *model.buffers())]


def restore(model: Any, state: list[torch.Tensor]) -> None:
    """Put copies back."""
    with torch.no_grad():
        for each, value in zip((*model.parameters(), *model.buffers()), state, strict=True):
            each.copy_(value)


def gradients(model: Any) -> list[torch.Tensor]:
    """Copies of them."""
    return [each.grad.detach().clone() for each in model.parameters()]


def same_bits(model: Any, eager: Callable[[], Any], replay: Callable[[], Any]) -> str:
    """Whether a replay's gradients are the eager step's, from the same state."""
    state = state_of(model)
    replay()
    found = gradients(model)
    restore(model, state)
    eager()
    wanted = gradients(model)
    unlike = sum(not torch.equal(a, b) for a, b in zip(found, wanted, strict=True))
    return "equal" if not unlike else f"{unlike} of {len(found)} differ"


@main.command(name="captured")
@click.option("--names", default="resnet18,resnet50")
@click.option("--forms", default="amp,fp32,tf32")
@click.option("--rounds", default=5)
def captured_steps(names: str, forms: str, rounds: int) -> None:
    """Training steps at batch 32 in CUDA graphs, beside PyTorch's own."""
    for name in names.split(","):
        for form in forms.split(","):
            torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = form == "tf32"
            torch.backends.cudnn.benchmark = True
            model, step = net(name, f"train {form.replace('tf32', 'fp32')}", 32, 224)
            theirs = captured(model, step)
            torch.backends.cudnn.benchmark = False
            other, mine = net(name, f"train {form.replace('tf32', 'fp32')}", 32, 224)
            with ct.enable():
                ready(mine)
                before = ct.counters()
                replay = captured(other, mine)
                after = ct.counters()
                times = milliseconds({"torch": theirs, "ours": replay}, rounds, 10)
                bits = same_bits(other, mine, replay)
            say(net=name, form=form, torch_ms=times["torch"], ours_ms=times["ours"], gradients=bits,
                ratio=times["torch"] / times["ours"], left=after["left"] - before["left"],
                ours=after["ours"] - before["ours"])  # fmt: skip
            del theirs, replay, step, mine, model, other
            torch.cuda.empty_cache()


# --- memory ---------------------------------------------------------------------------------------------------------


@main.command()
@click.option("--names", default="resnet50,vgg16")
@click.option("--images", default=64)
def memory(names: str, images: int) -> None:
    """Peak memory of a training step, by PyTorch's own count and by the driver's."""
    for name in names.split(","):
        for form in ("fp32", "amp"):
            peaks = {}
            for side in (False, True):
                torch.cuda.empty_cache()
                model, step = net(name, f"train {form}", images, 224)
                with under(side):
                    ready(step, 1) if side else step()
                    torch.cuda.reset_peak_memory_stats()
                    step()
                    wait()
                    peaks[side] = torch.cuda.max_memory_allocated()
                del model, step
            say(net=name, form=form, torch_gib=peaks[False] / 2**30, ours_gib=peaks[True] / 2**30,
                ratio=peaks[True] / peaks[False])  # fmt: skip


# --- stages ---------------------------------------------------------------------------------------------------------


@main.command()
@click.option("--dtype", default="float16")
def stages(dtype: str) -> None:
    """One warm convolution, 64 to 64 channels, 3 by 3, 14 by 14, batch 1: microseconds by stage."""
    cuda = torch.cuda.is_available()
    where, kind = ("cuda", getattr(torch, dtype)) if cuda else ("cpu", torch.float32)
    x, w, grad = (torch.randn(s, device=where).to(kind) for s in ((1, 64, 14, 14), (64, 64, 3, 3), (1, 64, 14, 14)))
    mask = [True, True, False]

    def forward() -> Any:
        return F.conv2d(x, w, None, padding=1)

    def backward() -> Any:
        return torch.ops.aten.convolution_backward(grad, x, w, None, [1, 1], [1, 1], [1, 1], False, [0, 0], 1, mask)

    def us(run: Callable[[], Any]) -> float:
        return 1e3 * milliseconds({"": run}, 9, 200)[""]

    with torch.no_grad():
        rows = {"torch.empty of the result": us(lambda: torch.empty_like(grad)),
                "PyTorch: forward": us(forward), "PyTorch: backward": us(backward)}  # fmt: skip
        with ct.enable():
            ready(forward)
            ready(backward)
            before = ct.counters()["solvers"]
            rows |= {"enable(): forward": us(forward), "enable(): backward": us(backward)}
            after = ct.counters()["solvers"]
            native.pause(True)
            rows |= {"enable() by Python: forward": us(forward), "enable() by Python: backward": us(backward)}
            native.pause(False)
    for stage, value in rows.items():
        say(stage=stage, us=value)
    solvers = {name: count - before.get(name, 0) for name, count in after.items() if count > before.get(name, 0)}
    say(native=native.runs("CUDA" if cuda else "CPU"), solvers=solvers)


if __name__ == "__main__":
    main()
