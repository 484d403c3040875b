"""Nets of libraries by PyTorch eager, under ``enable()``, by our back end and by inductor: a process each.

``python -m bench compiled_nets [NAME ...] [--libraries N] [--draw N] [--seed S] [--sides eager enable backend inductor]
[--batch 1] [--size 224] [--rounds 3] [--seconds 1.5] [--minutes M] [--rows FILE]``

A name is one of timm's, or LIBRARY/NAME of ``library_models``; ``--libraries`` takes models of that list by seed, and
``--draw`` models of timm's list that are not in it, by seed, one of a family. Sides come in turns, process by process,
``--rounds`` times; a side's time is the median of its processes' medians. Weights are drawn by seed, the input is a
picture of random numbers. ``--rows`` keeps a JSON line for each model: a model that has one is not run again, so that a
run goes on where it ended. With ``--minutes`` no model is begun after them. A line is printed after each model, the
table at the end. Inductor has freezing on.
"""

from __future__ import annotations

import argparse
import importlib.util
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
from bench.library_models import LIBRARIES

SIDES = ("eager", "enable", "backend", "inductor")
RATIOS = (("backend", "inductor"), ("backend", "eager"), ("enable", "eager"))
"""A side and its peer, whose time over the side's is told."""
MAX_PARAMETERS = 60e6
"""Models with more are not drawn: two cores and a time limit."""
TOO_LARGE = "giant", "huge", "large", "_xl", "enormous", "so400m", "gigantic"
"""Parts of the names of models that are not drawn."""
MAX_PROCESS_S = 900
"""Seconds after which a side is given up."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--libraries", type=int, default=0)
    parser.add_argument("--draw", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--sides", nargs="+", default=list(SIDES))
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=1.5)
    parser.add_argument("--minutes", type=float, default=math.inf)
    parser.add_argument("--engine", help="the back end's engine, instead of its own choice")
    parser.add_argument("--rows", type=Path)
    parser.add_argument("--one", nargs=2, metavar=("NAME", "SIDE"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        print(json.dumps(measured(*given.one, given)))
        return
    end = time.monotonic() + 60 * given.minutes
    lines = given.rows.read_text().splitlines() if given.rows and given.rows.exists() else []
    found = {row["name"]: row["rows"] for row in map(json.loads, lines)}
    for name in dict.fromkeys([*given.names, *listed(given.libraries, given.seed), *drawn(given.draw, given.seed)]):
        if name in found or time.monotonic() > end:
            continue
        found[name] = in_turns(name, given)
        print(line(name, found[name]), flush=True)
        if given.rows:
            with given.rows.open("a") as file:
                file.write(json.dumps({"name": name, "batch": given.batch, "rows": found[name]}) + "\n")
    print(table(found))


def in_turns(name: str, given: Any) -> dict[str, list[dict[str, Any]]]:
    """By side, what its processes measured."""
    rows: dict[str, list[dict[str, Any]]] = {side: [] for side in given.sides}
    for _ in range(given.rounds):
        for side in given.sides:
            rows[side].append(alone(name, side))
    return rows


def alone(name: str, side: str) -> dict[str, Any]:
    """One side in a process of its own; "error" where it failed."""
    command = [*again("compiled_nets"), *sys.argv[1:], "--one", name, side]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=MAX_PROCESS_S)
    except subprocess.TimeoutExpired:
        return {"error": f"not over after {MAX_PROCESS_S} s"}
    try:
        return json.loads(done.stdout.splitlines()[-1])  # type: ignore[no-any-return]
    except (IndexError, ValueError):
        return {"error": (done.stderr.strip().splitlines() or ["nothing was printed"])[-1][:200]}


def milliseconds(rows: dict[str, list[dict[str, Any]]]) -> dict[str, float]:
    """By side, the median of its processes; no entry for a side that failed."""
    times = {side: [row["ms"] for row in each if "ms" in row] for side, each in rows.items()}
    return {side: statistics.median(each) for side, each in times.items() if each}


def ratios_of(rows: dict[str, list[dict[str, Any]]]) -> dict[str, float]:
    """The peers' times over our sides'."""
    ms = milliseconds(rows)
    return {f"{peer}/{side}": ms[peer] / ms[side] for side, peer in RATIOS if side in ms and peer in ms}


def line(name: str, rows: dict[str, list[dict[str, Any]]]) -> str:
    """A model: each side's milliseconds, how the back end and ``enable`` stand to their peers, and what runs."""
    ms = milliseconds(rows)
    told = [f"{side} {ms[side]:.2f}" if side in ms else f"{side}: {rows[side][0].get('error')}" for side in rows]
    told += [f"{key} {ratio:.2f}" for key, ratio in ratios_of(rows).items()]
    form = next((row["form"] for row in rows.get("backend", []) if row.get("form")), "")
    return f"{name}: {', '.join(told)} {form}"


def table(found: dict[str, dict[str, list[dict[str, Any]]]]) -> str:
    """All models in Markdown, with the geometric means and the least of the ratios."""
    keys = [f"{peer}/{side}" for side, peer in RATIOS]
    text = ["| model | " + " | ".join([*(f"{side}, ms" for side in SIDES), *keys]) + " |", "|---" * 8 + "|"]
    values: dict[str, list[float]] = {key: [] for key in keys}
    for name, rows in found.items():
        ms, ratios = milliseconds(rows), ratios_of(rows)
        for key, ratio in ratios.items():
            values[key].append(ratio)
        cells = [f"{ms[side]:.1f}" if side in ms else "-" for side in SIDES]
        cells += [f"{ratios[key]:.2f}" if key in ratios else "-" for key in keys]
        text.append(f"| {name} | " + " | ".join(cells) + " |")
    for what, of in (("geometric mean", lambda each: math.exp(statistics.fmean(map(math.log, each)))), ("least", min)):
        cells = [f"{of(values[key]):.2f}" if values[key] else "-" for key in keys]
        text.append(f"| {what} of {len(found)} | | | | | " + " | ".join(cells) + " |")
    return "\n".join(text)


def listed(count: int, seed: int) -> list[str]:
    """Models of ``library_models`` whose libraries are installed, by seed."""
    names = [
        f"{library}/{name}"
        for library, models in LIBRARIES.items()
        if library != "keras" and importlib.util.find_spec(library) is not None
        for name in models
    ]
    random.Random(seed).shuffle(names)
    return names[:count]


def drawn(count: int, seed: int) -> list[str]:
    """Models of timm's list that ``library_models`` has not, one of a family, by seed."""
    if not count:
        return []
    timm = library()
    names = timm.list_models()
    random.Random(seed).shuffle(names)
    found: dict[str, str] = {}
    for name in names:
        family = timm.models._registry._model_to_module.get(name, name)
        if family in found or name in LIBRARIES["timm"] or any(word in name for word in TOO_LARGE):
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


def model_of(name: str, given: Any) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    """A model with random weights, and what it is called with."""
    import torch

    timm = library()
    torch.manual_seed(0)
    of, _, model_name = name.partition("/")
    if model_name:
        net, args, kwargs = LIBRARIES[of][model_name]()
        return net.eval().requires_grad_(False), args, kwargs
    model = timm.create_model(name, num_classes=10).eval().requires_grad_(False)
    size = model.default_cfg.get("input_size", (3, given.size, given.size))
    fixed = model.default_cfg.get("fixed_input_size", False)
    return model, (torch.randn(given.batch, 3, *(size[1:] if fixed else (given.size, given.size))),), {}


def measured(name: str, side: str, given: Any) -> dict[str, Any]:
    """Median milliseconds of a call, the first call's seconds, and the relative difference from PyTorch's results."""
    import torch

    from bench.library_models import tensors_of

    model, args, kwargs = model_of(name, given)
    begin = time.perf_counter()
    run, backend = side_of(side, model, given)
    with torch.inference_mode():
        y = run(*args, **kwargs)
        first = time.perf_counter() - begin
        until = time.perf_counter() + max(2.0, given.seconds)
        while time.perf_counter() < until:
            run(*args, **kwargs)
        times, end = [], time.perf_counter() + given.seconds
        while time.perf_counter() < end or len(times) < 5:
            begin = time.perf_counter()
            run(*args, **kwargs)
            times.append(time.perf_counter() - begin)
        row: dict[str, Any] = {"ms": statistics.median(times) * 1e3, "least": min(times) * 1e3, "first": first}
        if side in ("backend", "inductor"):
            pairs = zip(tensors_of(y), tensors_of(model(*args, **kwargs)), strict=True)
            row["difference"] = max(((a - b).norm() / b.norm()).item() for a, b in pairs)
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
