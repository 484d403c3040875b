"""Nets of libraries by PyTorch eager, under ``enable()``, by our back end and by inductor: a process each.

``python -m bench compiled_nets [NAME ...] [--libraries N] [--draw N] [--seed S] [--sides eager enable backend inductor]
[--batch 1] [--size 224] [--rounds 5] [--seconds 0.6] [--alone] [--between MB] [--minutes M] [--rows FILE]
[--device cuda --dtype float16 --mode reduce-overhead]``

A name is one of timm's, or LIBRARY/NAME of ``library_models``; ``--libraries`` takes models of that list by seed, and
``--draw`` models of timm's list that are not in it, by seed, one of a family. Each side has a process of its own, as
its users run it. The processes of a model are made ready one after another and then measured in turns, ``--rounds``
bursts of ``--seconds`` each, while the others sleep: a ratio is the median over rounds of two bursts that followed each
other, so that a machine that is slower for a minute slows both sides. ``--alone`` gives a burst real-time priority, so
that other work on the machine has no core meanwhile. A burst begins with a fifth of its time that is not
counted, in which caches and threads come back. ``--between``: each burst is followed by two in which something runs
before each call and is not timed: eager operators that write so many MB in PyTorch's threads, and NumPy's, which write
as many in one thread, so that only the caches differ; what each leaves of a side's speed is told. Weights are drawn by
seed, the input is a picture of random numbers.
``--rows`` keeps a JSON line for each model: a model that has one is not run again, so that a run goes on where it
ended. With ``--minutes`` no model is begun after them. A line is printed after each model, the table at the end.
Inductor has freezing on.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import math
import os
import random
import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bench.library_models import LIBRARIES
from bench.results import append_row, markdown, read_rows
from bench.workers import Served

SIDES = ("eager", "enable", "backend", "inductor")
RATIOS = (("backend", "inductor"), ("backend", "eager"), ("enable", "eager"))
"""A side and its peer, whose time over the side's is told."""
MAX_PARAMETERS = 60e6
"""Models with more are not drawn: two cores and a time limit."""
TOO_LARGE = "giant", "huge", "large", "_xl", "enormous", "so400m", "gigantic"
"""Parts of the names of models that are not drawn."""
BETWEEN = ("eager", "one thread's")
"""What runs between the calls of further bursts: PyTorch's operators, and NumPy's, which spoil the caches alone."""
GPU_CALLS = 10
"""Calls on a GPU between two waits for it."""
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
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=0.6)
    parser.add_argument("--alone", action="store_true", help="bursts have real-time priority")
    parser.add_argument("--between", type=float, help="MB that run between calls in further bursts")
    parser.add_argument("--minutes", type=float, default=math.inf)
    parser.add_argument("--engine", help="the back end's engine, instead of its own choice")
    parser.add_argument("--device", default="cpu", help="cuda: all sides there, channels last")
    parser.add_argument("--dtype", default="float16", help="weights and pictures on a GPU")
    parser.add_argument("--mode", help="torch.compile's, of both that compile: reduce-overhead captures CUDA graphs")
    parser.add_argument("--rows", type=Path)
    given = parser.parse_args()
    end = time.monotonic() + 60 * given.minutes
    found = {row["name"]: row["rows"] for row in read_rows(given.rows)}
    for name in dict.fromkeys([*given.names, *listed(given.libraries, given.seed), *drawn(given.draw, given.seed)]):
        if name in found or time.monotonic() > end:
            continue
        found[name] = in_turns(name, given)
        print(line(name, found[name]), flush=True)
        append_row(given.rows, {"name": name, "batch": given.batch, "rows": found[name]})
    print(table(found))


def in_turns(name: str, given: Any) -> dict[str, dict[str, Any]]:
    """By side, what its process measured. ``enable`` begins first: its kernels are compiled while others get ready."""
    rows: dict[str, dict[str, Any]] = {}
    processes = {}
    for side in sorted(given.sides, key=lambda side: side != "enable"):
        processes[side] = Served(serve, (name, side, given), MAX_PROCESS_S)
        rows[side] = {"bursts": [], **processes[side].send(None)}
    for request in [*["burst"] * given.rounds, "end"]:
        for side in given.sides:
            if "failed" not in rows[side]:  # a side that failed has no more bursts
                said = processes[side].send(request)
                for kind, ms in said.pop("between", {}).items():
                    rows[side].setdefault(kind, []).append(ms)
                rows[side] |= said
                rows[side]["bursts"] += [said["ms"]] if "ms" in said else []
    for process in processes.values():
        process.close()
    return {side: rows[side] for side in given.sides}


def milliseconds(rows: dict[str, dict[str, Any]]) -> dict[str, float]:
    """By side, the median of its bursts; no entry for a side that failed."""
    return {side: statistics.median(row["bursts"]) for side, row in rows.items() if row.get("bursts")}


def ratios_of(rows: dict[str, dict[str, Any]]) -> dict[str, float]:
    """The peers' times over our sides', medians over rounds."""
    ms = milliseconds(rows)
    return {
        f"{peer}/{side}": statistics.median(
            theirs / ours for ours, theirs in zip(rows[side]["bursts"], rows[peer]["bursts"], strict=False)
        )
        for side, peer in RATIOS
        if side in ms and peer in ms
    }


def line(name: str, rows: dict[str, dict[str, Any]]) -> str:
    """A model: each side's milliseconds, how the back end and ``enable`` stand to their peers, and what runs."""
    ms = milliseconds(rows)
    told = [f"{side} {ms[side]:.2f}" if side in ms else f"{side}: {rows[side].get('failed')}" for side in rows]
    told += [f"{key} {ratio:.2f}" for key, ratio in ratios_of(rows).items()]
    for side, row in rows.items():
        for kind in (kind for kind in BETWEEN if kind in row):
            keeps = statistics.median(alone / ms for alone, ms in zip(row["bursts"], row[kind], strict=True))
            told.append(f"{side} keeps {keeps:.2f} after {kind} operators")
    form = rows.get("backend", {}).get("form", "")
    return f"{name}: {', '.join(told)} {form}"


def table(found: dict[str, dict[str, dict[str, Any]]]) -> str:
    """All models in Markdown, with the geometric means and the least of the ratios."""
    keys, lines = [f"{peer}/{side}" for side, peer in RATIOS], []
    values: dict[str, list[float]] = {key: [] for key in keys}
    for name, rows in found.items():
        ms, ratios = milliseconds(rows), ratios_of(rows)
        for key, ratio in ratios.items():
            values[key].append(ratio)
        cells = [f"{ms[side]:.1f}" if side in ms else "-" for side in SIDES]
        lines.append([name, *cells, *(f"{ratios[key]:.2f}" if key in ratios else "-" for key in keys)])
    for what, of in (("geometric mean", statistics.geometric_mean), ("least", min)):
        cells = [f"{of(values[key]):.2f}" if values[key] else "-" for key in keys]
        lines.append([f"{what} of {len(found)}", *[""] * len(SIDES), *cells])
    return markdown(["model", *(f"{side}, ms" for side in SIDES), *keys], lines)


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


def serve(name: str, side: str, given: Any) -> Iterator[dict[str, Any]]:
    """Makes a side of a model ready; then answers each "burst" with its milliseconds, and "end" with what ran.

    Yields the first call's seconds; for a burst the median and the least time of a call; at the end the relative
    difference from PyTorch's results and the form.
    """
    import torch

    from bench.library_models import tensors_of

    os.environ.setdefault("PYTHONWARNINGS", "ignore")
    model, args, kwargs = model_of(name, given)
    on_gpu = given.device != "cpu"
    if on_gpu:
        model = model.to(given.device, getattr(torch, given.dtype)).to(memory_format=torch.channels_last)
        args, kwargs = torch.utils._pytree.tree_map(lambda x: on_device(x, given), (args, kwargs))
    calls = GPU_CALLS if on_gpu else 1
    begin = time.perf_counter()
    run, backend = side_of(side, model, given)

    def burst(seconds: float, between: Any = lambda: None) -> list[float]:
        times, end = [], time.perf_counter() + seconds
        while time.perf_counter() < end or len(times) < 3:
            between()
            begin = time.perf_counter()
            for _ in range(calls):
                run(*args, **kwargs)
            if on_gpu:
                torch.cuda.synchronize()
            times.append((time.perf_counter() - begin) / calls)
        return times

    with torch.inference_mode():
        y = torch.utils._pytree.tree_map_only(torch.Tensor, torch.clone, run(*args, **kwargs))  # of a graph's memory
        first = time.perf_counter() - begin
        burst(max(2.0, given.seconds))
        request = yield {"first": first}
        while request != "end":
            if given.alone:
                schedule(os.SCHED_FIFO, 10)
            burst(given.seconds / 5)
            times = burst(given.seconds)
            said = {"ms": statistics.median(times) * 1e3, "least": min(times) * 1e3}
            if given.between:
                kinds = zip(BETWEEN, operators(given.between), strict=True)
                said["between"] = {kind: statistics.median(burst(given.seconds, run)) * 1e3 for kind, run in kinds}
            if given.alone:
                schedule(os.SCHED_OTHER, 0)
            request = yield said
        row: dict[str, Any] = {}
        if side in ("backend", "inductor"):
            pairs = zip(tensors_of(y), tensors_of(model(*args, **kwargs)), strict=True)
            row["difference"] = max(((a - b).norm() / b.norm()).item() for a, b in pairs)
        if backend is not None:
            row["form"] = "; ".join(form for graph in backend.graphs for form in graph.descriptions().values())
        yield row


def operators(megabytes: float) -> tuple[Any, Any]:
    """What runs between calls, as ``BETWEEN`` names it; each writes so many MB and reads as many."""
    import numpy as np
    import torch

    values = torch.ones(2, int(megabytes * 2**17))

    def eager() -> None:
        torch.add(values[0], 1.0, out=values[1])
        torch.mul(values[1], 0.5, out=values[0])

    def one_thread() -> None:
        array = values.numpy()
        np.add(array[0], 1.0, out=array[1])
        np.multiply(array[1], 0.5, out=array[0])

    return eager, one_thread


def schedule(policy: int, priority: int) -> None:
    """Set the scheduling of each thread that this process has now."""
    for thread in Path("/proc/self/task").glob("*"):
        with contextlib.suppress(ProcessLookupError):
            os.sched_setscheduler(int(thread.name), policy, os.sched_param(priority))


def on_device(x: Any, given: Any) -> Any:
    """An input on the GPU: floating ones of the dtype, pictures channels last."""
    import torch

    if not isinstance(x, torch.Tensor):
        return x
    x = x.to(given.device, getattr(torch, given.dtype) if x.is_floating_point() else None)
    return x.to(memory_format=torch.channels_last) if x.ndim == 4 else x


def side_of(side: str, model: Any, given: Any) -> tuple[Any, Any]:
    """What computes the model on a side, and the back end if it is ours."""
    import torch

    if side == "inductor":
        torch._inductor.config.freezing = True
        return torch.compile(model, mode=given.mode), None
    if side == "enable":
        import convdispatch.torch

        convdispatch.torch.enable()
        return model, None
    if side == "backend":
        from convdispatch.torch.compile.backend import Backend

        backend = Backend(given.mode, {"engine": given.engine} if given.engine else None)
        return torch.compile(model, backend=backend), backend
    return model, None


if __name__ == "__main__":
    main()
