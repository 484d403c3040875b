"""Rows of ``torch_models.py``: nets inferred, trained, in a CUDA graph, and the host's time, ours beside PyTorch."""

from __future__ import annotations

import contextlib
import copy
import json
import os
import statistics
import time
from collections.abc import Callable
from typing import Any

ROUNDS = 5
AHEAD = "TORCH_ROWS_AHEAD"
"""The variable under which rows run once and measure nothing."""


def say(**values: Any) -> None:
    """One result, at once."""
    print(json.dumps(values), flush=True)


# --- measuring ------------------------------------------------------------------------------------------------------


def timed(run: Callable[[], Any], cuda: bool, seconds: float) -> float:
    """Milliseconds a call, over about ``seconds``; on CUDA by events around the calls."""
    import torch

    if not cuda:
        run()
        begin, count = time.perf_counter(), 0
        while not count or time.perf_counter() - begin < seconds:
            run()
            count += 1
        return 1e3 * (time.perf_counter() - begin) / count
    run()
    torch.cuda.synchronize()
    begin = time.perf_counter()
    run()
    torch.cuda.synchronize()
    count = max(3, min(200, int(seconds / max(time.perf_counter() - begin, 1e-5))))
    first, last = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    first.record()
    for _ in range(count):
        run()
    last.record()
    last.synchronize()
    return first.elapsed_time(last) / count


def compare(row: str, sides: dict[str, Callable[[], Any]], cuda: bool, seconds: float = 0.4, **more: Any) -> None:
    """Time the sides in turns; medians, spreads, and the first side's median over each other's."""
    if os.environ.get(AHEAD):
        for run in sides.values():
            run()
        return
    times: dict[str, list[float]] = {name: [] for name in sides}
    for name, run in sides.items():
        begin = time.perf_counter()
        for _ in range(3):
            run()
        if cuda:
            import torch

            torch.cuda.synchronize()
        say(row=row, side=name, warm_up_s=round(time.perf_counter() - begin, 1))
    for _ in range(ROUNDS):
        for name, run in sides.items():
            times[name].append(timed(run, cuda, seconds))
    middle = {name: statistics.median(values) for name, values in times.items()}
    ours = [name for name in middle if name.startswith("ours")]
    result: dict[str, Any] = {"row": row}
    for name, values in times.items():
        result[name] = f"{middle[name]:.3f} ms ({min(values):.3f} to {max(values):.3f})"
    for mine in ours:
        for name in middle:
            if name not in ours:
                result[f"{mine} / {name}"] = f"{middle[name] / middle[mine]:.2f} times the speed"
    say(**result, **more)


def difference(got: Any, expected: Any) -> str:
    """Relative difference of two results, by norm."""
    got, expected = got.detach().double(), expected.detach().double()
    return f"{float((got - expected).norm() / expected.norm()):.1e}"


def left() -> dict[str, Any]:
    """What became of the calls."""
    import convdispatch.torch as ct

    counted = ct.counters()
    return {"routed": counted["ours"], "left": counted["left"], "reasons": counted["reasons"]}


def net(name: str, device: str, training: bool, last: bool) -> Any:
    """A net of the zoo with seeded weights."""
    import torch
    import torch_zoo

    torch.manual_seed(0)
    made = getattr(torch_zoo, name)().to(device).train(training)
    for module in made.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    return made.to(memory_format=torch.channels_last) if last else made


def images(count: int, device: str, last: bool) -> Any:
    """Noise of ImageNet's size."""
    import torch

    x = torch.randn(count, 3, 224, 224, device=device)
    return x.contiguous(memory_format=torch.channels_last) if last else x


def settled(name: str, batch: int, device: str, last: bool) -> tuple[Any, Any]:
    """A net for inference and its input, with a batch's statistics, so that the input reaches the logits."""
    import torch

    model, x = net(name, device, True, last), images(max(batch, 8), device, last)
    for module in model.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            module.momentum = 1.0
    with torch.no_grad():
        model(x)
    return model.eval(), x[:batch].clone(memory_format=torch.channels_last if last else torch.contiguous_format)


def switches(tf32: bool) -> None:
    """PyTorch's own switches, as its users set them."""
    import torch

    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = tf32
    torch.backends.cudnn.benchmark = False


# --- rows -----------------------------------------------------------------------------------------------------------


def infer(row: str, name: str, batch: int, device: str = "cuda", tf32: bool = False, last: bool = True) -> None:
    """Inference, eager, on both sides; PyTorch with its own search too, and, without TF32, compiled."""
    import torch

    import convdispatch.torch as ct

    cuda = device == "cuda"
    switches(tf32)
    model, x = net(name, device, False, last), images(batch, device, last)

    def eager() -> Any:
        with torch.inference_mode():
            return model(x)

    def ours() -> Any:
        with ct.enable(), torch.inference_mode():
            return model(x)

    def searched() -> Any:
        torch.backends.cudnn.benchmark = True
        try:
            return eager()
        finally:
            torch.backends.cudnn.benchmark = False

    error = difference(ours(), eager())
    sides = {"ours": ours, "torch": eager} | ({"torch, benchmark": searched} if cuda else {})
    compare(row, sides, cuda, 0.4 if cuda else 1.0, difference=error, channels_last=last, **left())
    if cuda and not tf32:
        compiled = torch.compile(model)

        def fused() -> Any:
            with torch.inference_mode():
                return compiled(x)

        def ours_compiled() -> Any:
            with ct.enable(), torch.inference_mode():
                return again(x)

        again = torch.compile(ct.convert(net(name, device, False, last)))
        compare(
            f"{row}, compiled",
            {"ours": ours, "ours, compiled": ours_compiled, "torch, compiled": fused},
            cuda,
            **left(),
        )


def fused(row: str, name: str, batch: int) -> None:
    """Inference on the CPU, ``convert(fuse=True)`` beside PyTorch, which first runs alone, then both in turns."""
    import torch

    import convdispatch.torch as ct

    model, x = settled(name, batch, "cpu", False)

    def eager() -> Any:
        with torch.inference_mode():
            return model(x)

    theirs = eager()
    alone = "" if os.environ.get(AHEAD) else f"{timed(eager, False, 2.0):.3f} ms"
    made = ct.convert(model, fuse=True)

    def ours() -> Any:
        with torch.inference_mode():
            return made(x)

    mine = ours()
    with torch.inference_mode():
        exact = copy.deepcopy(model).double()(x.double())
    errors = {"error": difference(mine, exact), "torch's error": difference(theirs, exact)}
    more = {"torch before": alone, **errors, "forms": ct.fusion(made).forms}
    compare(row, {"ours, fused": ours, "torch": eager}, False, 1.0, **more, **left())


def captured(model: Any, x: Any, enabled: bool = False) -> tuple[Any, Any]:
    """(CUDA graph of a model's inference, the tensor that its replay writes); the graph reads the model's weights."""
    import torch

    import convdispatch.torch as ct

    torch.cuda.synchronize()
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    taken = torch.cuda.CUDAGraph()
    with ct.enable() if enabled else contextlib.nullcontext(), torch.inference_mode():
        with torch.cuda.stream(side):
            for _ in range(3):
                model(x)
        torch.cuda.current_stream().wait_stream(side)
        with torch.cuda.graph(taken):
            y = model(x)
    return taken, y


def graph(row: str) -> None:
    """ResNet-50, batch 1, in a CUDA graph: as it is, and by ``convert(fuse=True)``."""
    import torch

    import convdispatch.torch as ct

    switches(False)
    model = net("resnet50", "cuda", False, True)
    x = images(1, "cuda", True)
    folded = ct.convert(model, fuse=True)
    theirs, expected = captured(model, x)
    ours, got = captured(model, x, True)
    fused, mine = captured(folded, x)
    for each in (theirs, ours, fused):
        each.replay()
    torch.cuda.synchronize()
    errors = {"difference": difference(got, expected), "fused": difference(mine, expected)}
    sides = {"ours": ours.replay, "ours, fused": fused.replay, "torch": theirs.replay}
    compare(row, sides, True, **errors, **left())
    for name, made in (
        ("torch, reduce-overhead", model),
        ("ours, reduce-overhead", ct.convert(net("resnet50", "cuda", False, True))),
        ("ours, fused, reduce-overhead", folded),
    ):
        compiled = torch.compile(made, mode="reduce-overhead")

        def run(compiled: Any = compiled) -> Any:
            with torch.inference_mode():
                return compiled(x)

        compare(f"{row}, {name}", {name: run}, True)
    say(row=row, **left())


def train(row: str, name: str, batch: int = 64, tf32: bool = False, last: bool = False) -> None:
    """Training steps with SGD."""
    import torch

    import convdispatch.torch as ct

    switches(tf32)
    x, labels = images(batch, "cuda", last), torch.randint(0, 1000, (batch,), device="cuda")

    def stepper() -> Callable[[], Any]:
        model = net(name, "cuda", True, last)
        optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9)

        def step() -> Any:
            optimizer.zero_grad(set_to_none=True)
            loss = torch.nn.functional.cross_entropy(model(x), labels)
            loss.backward()
            optimizer.step()
            return loss

        return step

    plain, routed = stepper(), stepper()

    def ours() -> Any:
        with ct.enable():
            return routed()

    first, again = ours(), plain()
    error = difference(first, again)
    compare(row, {"ours": ours, "torch": plain}, True, 1.0, first_loss=error, channels_last=last, **left())


def overhead(row: str) -> None:
    """Host time of a call of a small layer: what the calls cost before the GPU is waited for."""
    import torch

    import convdispatch.torch as ct

    switches(False)
    layer = torch.nn.Conv2d(64, 64, 3, padding=1).cuda()
    frozen = torch.nn.Conv2d(64, 64, 3, padding=1).cuda().requires_grad_(False)
    x = torch.randn(1, 64, 8, 8, device="cuda")

    def host(run: Callable[[], Any]) -> float:
        best = []
        for _ in range(20):
            torch.cuda.synchronize()
            begin = time.perf_counter()
            for _ in range(100):
                run()
            best.append(1e4 * (time.perf_counter() - begin))
        return statistics.median(best)

    for what, module in (("weights that learn", layer), ("frozen weights", frozen)):

        def run(module: Any = module) -> Any:
            with torch.no_grad():
                return module(x)

        run()
        theirs = host(run)
        with ct.enable():
            run()
            run()
            ours = host(run)
        again = host(run)
        say(
            row=row,
            what=what,
            ours_us=round(ours, 1),
            torch_us=[round(theirs, 1), round(again, 1)],
            above_us=round(ours - theirs, 1),
        )
    say(row=row, **left())
