"""Nets of timm by PyTorch eager, under ``enable()``, by our back end and by inductor: each side alone in a process.

``python -m bench compiled_nets [NAME ...] [--draw N --seed S] [--sides eager enable backend inductor] [--batch 1]
[--size 224] [--rounds 3] [--seconds 1.5] [--rows FILE]``

Sides come in turns, process by process, ``--rounds`` times; a side's time is the median of its processes' medians.
Weights are drawn by seed, the input is a picture of random numbers. ``--draw`` takes models of timm's list by seed.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from bench import again

SIDES = ("eager", "enable", "backend", "inductor")
MAX_PARAMETERS = 60e6
"""Models with more are not drawn: two cores and a time limit."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--draw", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--sides", nargs="+", default=list(SIDES))
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=1.5)
    parser.add_argument("--engine", help="the back end's engine, instead of its own choice")
    parser.add_argument("--rows", type=Path)
    parser.add_argument("--one", nargs=2, metavar=("NAME", "SIDE"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        print(json.dumps(measured(*given.one, given)))
        return
    names = given.names + drawn(given.draw, given.seed)
    ratios: dict[str, list[float]] = {side: [] for side in given.sides}
    for name in names:
        rows: dict[str, list[dict[str, Any]]] = {side: [] for side in given.sides}
        for _ in range(given.rounds):
            for side in given.sides:
                rows[side].append(alone(name, side))
        report(name, rows, ratios, given)


def alone(name: str, side: str) -> dict[str, Any]:
    """One side in a process of its own; "error" where it failed."""
    command = [*again("compiled_nets"), *sys.argv[1:], "--one", name, side]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=900)
    try:
        return json.loads(done.stdout.splitlines()[-1])
    except (IndexError, ValueError):
        return {"error": (done.stderr.strip().splitlines() or ["nothing was printed"])[-1][:200]}


def report(name: str, rows: dict[str, list[dict[str, Any]]], ratios: dict[str, list[float]], given: Any) -> None:
    """A line for a model: each side's milliseconds, and how the back end and ``enable`` stand to their peers."""
    ms = {
        s: statistics.median(r["ms"] for r in each if "ms" in r)
        for s, each in rows.items()
        if any("ms" in r for r in each)
    }
    said = [f"{side} {ms[side]:.2f}" if side in ms else f"{side}: {rows[side][0].get('error')}" for side in rows]
    for side, peer in (("backend", "inductor"), ("backend", "eager"), ("enable", "eager")):
        if side in ms and peer in ms:
            said.append(f"{peer}/{side} {ms[peer] / ms[side]:.2f}")
            ratios.setdefault(f"{peer}/{side}", []).append(ms[peer] / ms[side])
    form = next((r.get("form") for r in rows.get("backend", []) if r.get("form")), "")
    print(f"{name}: {', '.join(said)} {form}", flush=True)
    means = {key: math.exp(statistics.fmean(map(math.log, each))) for key, each in ratios.items() if each}
    print("   so far:", {key: (round(mean, 3), round(min(ratios[key]), 2)) for key, mean in means.items()}, flush=True)
    if given.rows:
        with given.rows.open("a") as file:
            file.write(json.dumps({"name": name, "batch": given.batch, "rows": rows}) + "\n")


def drawn(count: int, seed: int) -> list[str]:
    """Models of timm's list, one of a family, by seed."""
    if not count:
        return []
    timm = library()
    names = timm.list_models()
    random.Random(seed).shuffle(names)
    found: dict[str, str] = {}
    for name in names:
        family = timm.models._registry._model_to_module.get(name, name)
        if family in found or any(
            word in name for word in ("giant", "huge", "large", "_xl", "enormous", "so400m", "gigantic")
        ):
            continue
        try:
            import torch

            with torch.device("meta"):
                size = sum(each.numel() for each in timm.create_model(name).parameters())
        except Exception:  # what some models' makers raise on the meta device
            continue
        if size <= MAX_PARAMETERS:
            found[family] = name
        if len(found) == count:
            break
    return list(found.values())


def library() -> Any:
    """timm, also where torchvision's operators do not load beside this PyTorch."""
    import torch

    register = torch.library.register_fake

    def tolerant(*arguments: Any, **named: Any) -> Any:
        def enter(function: Any) -> Any:
            try:
                return register(*arguments, **named)(function)
            except Exception:
                return function

        return enter

    torch.library.register_fake = tolerant
    import timm

    torch.library.register_fake = register
    return timm


def measured(name: str, side: str, given: Any) -> dict[str, Any]:
    """Median milliseconds of a call, and the first call's seconds."""
    import torch

    timm = library()
    torch.manual_seed(0)
    model = timm.create_model(name, num_classes=10).eval().requires_grad_(False)
    size = model.default_cfg.get("input_size", (3, given.size, given.size))
    fixed = model.default_cfg.get("fixed_input_size", False)
    x = torch.randn(given.batch, 3, *(size[1:] if fixed else (given.size, given.size)))
    begin = time.perf_counter()
    run, backend = side_of(side, model, given)
    with torch.inference_mode():
        y = run(x)
        first = time.perf_counter() - begin
        until = time.perf_counter() + max(2.0, given.seconds)
        while time.perf_counter() < until:
            run(x)
        times, end = [], time.perf_counter() + given.seconds
        while time.perf_counter() < end or len(times) < 5:
            begin = time.perf_counter()
            run(x)
            times.append(time.perf_counter() - begin)
        row = {"ms": statistics.median(times) * 1e3, "least": min(times) * 1e3, "first": first}
        if side != "eager":
            plain = model(x) if side != "enable" else None
            if isinstance(plain, torch.Tensor):
                row["error"] = ((y - plain).norm() / plain.norm()).item()
                row["difference"] = row.pop("error")
        if backend is not None:
            row["form"] = "; ".join(form for graph in backend.graphs for form in graph.descriptions().values())
    return row


def side_of(side: str, model: Any, given: Any) -> tuple[Any, Any]:
    """What computes the model on a side, and the back end if it is ours."""
    import torch

    if side == "inductor":
        torch._inductor.config.freezing = True
        return torch.compile(model), None
    if side == "enable":
        import convdispatch.torch

        convdispatch.torch.enable()
        return model, None
    if side == "backend":
        from convdispatch.torch.compile.backend import Backend

        backend = Backend(options={"engine": given.engine} if given.engine else None)
        return torch.compile(model, backend=backend), backend
    return model, None


if __name__ == "__main__":
    os.environ.setdefault("PYTHONWARNINGS", "ignore")
    main()
