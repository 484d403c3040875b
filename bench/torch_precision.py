"""Rows of ``torch_models.py`` in 16 bits and TF32: ours, in a CUDA graph, beside ``torch.compile``."""

from __future__ import annotations

import contextlib
import os
from collections import defaultdict
from collections.abc import Callable
from typing import Any

from torch_rows import AHEAD, captured, compare, difference, images, left, net, say, settled, switches

KERNELS = "TORCH_ROWS_KERNELS"
"""The variable under which rows also tell their kernels: a number of the longest, or ``all`` in their order."""


def kernels(row: str, sides: dict[str, Callable[[], Any]]) -> None:
    """What each side runs on the GPU, by PyTorch's profiler: microseconds, times, name."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    most = os.environ.get(KERNELS)
    if not most or os.environ.get(AHEAD):
        return
    for name, run in sides.items():
        run()
        torch.cuda.synchronize()
        with profile(activities=[ProfilerActivity.CUDA]) as found:
            run()
            torch.cuda.synchronize()
        events = sorted((each for each in found.events() if each.device_time), key=lambda each: each.time_range.start)
        say(row=row, side=name, kernels=len(events), us=round(sum(each.device_time for each in events)))
        if most == "all" and name.startswith("ours"):
            for each in events:
                print(f"  {each.device_time:8.1f} {each.name[:110]}", flush=True)
            continue
        total: dict[str, list[float]] = defaultdict(list)
        for each in events:
            total[each.name].append(each.device_time)
        for key, times in sorted(total.items(), key=lambda item: -sum(item[1]))[: int(most) if most != "all" else 40]:
            print(f"  {sum(times):8.1f} {len(times):4d} {key[:110]}", flush=True)


def infer(row: str, name: str, batch: int, precision: str, modes: tuple[str, ...] = ("reduce-overhead",)) -> None:
    """Inference of a net, channels last: ``convert(fuse=True)`` in a CUDA graph beside PyTorch compiled.

    ``precision`` is ``"float16"``, ``"bfloat16"`` or ``"tf32"``. Errors are against PyTorch's own in float32.
    """
    import torch

    import convdispatch.torch as ct

    switches(False)
    model, x = settled(name, batch, "cuda", True)
    with torch.no_grad():
        exact = model(x)
    switches(precision == "tf32")
    if precision != "tf32":
        kind = getattr(torch, precision)
        model, x = model.to(kind), x.to(kind)
    folded = ct.convert(model, fuse=True)
    graph, mine = captured(folded, x)
    sides: dict[str, Callable[[], Any]] = {"ours, fused": graph.replay}
    graph.replay()
    torch.cuda.synchronize()
    errors = {"ours": difference(mine, exact)}
    for mode in modes:
        torch._dynamo.reset()
        compiled = torch.compile(model, mode=mode)

        def run(compiled: Any = compiled) -> Any:
            with torch.inference_mode():
                return compiled(x)

        for _ in range(3):
            got = run()
        errors[mode] = difference(got, exact)
        sides[f"torch, {mode}"] = run
    compare(row, sides, True, errors=errors, **left())
    kernels(row, sides)


def train(row: str, name: str, precision: str, batch: int = 64) -> None:
    """Training steps with SGD under autocast, channels last: PyTorch's compiled beside ours, compiled too and not."""
    import torch

    import convdispatch.torch as ct

    switches(False)
    kind = getattr(torch, precision)
    x, labels = images(batch, "cuda", True), torch.randint(0, 1000, (batch,), device="cuda")

    def stepper(made: Callable[[Any], Any], enabled: bool = False) -> Callable[[], Any]:
        model = made(net(name, "cuda", True, True))
        optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9)

        def step() -> Any:
            optimizer.zero_grad(set_to_none=True)
            with ct.enable() if enabled else contextlib.nullcontext():
                with torch.autocast("cuda", dtype=kind):
                    loss = torch.nn.functional.cross_entropy(model(x), labels)
                loss.backward()
            optimizer.step()
            return loss

        return step

    sides = {
        "ours, compiled": stepper(lambda model: torch.compile(ct.convert(model))),
        "ours": stepper(lambda model: model, enabled=True),
        "torch, compiled": stepper(torch.compile),
        "torch": stepper(lambda model: model),
    }
    losses = {name: float(step()) for name, step in sides.items()}
    compare(row, sides, True, 0.6, first_losses=losses, **left())
    kernels(row, sides)
