"""Times of sides that take turns, ``torch.compile`` as sides, and the turn of a process among others."""

from __future__ import annotations

import contextlib
import fcntl
import math
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

ROUNDS = 5
SECONDS = 0.4

Sides = dict[str, Callable[[], Any]]


def cause(failure: Exception) -> str:
    """An error in a line."""
    return f"{type(failure).__name__}: {(str(failure).splitlines() or [''])[0][:200]}"


def timed(sides: Sides, device: str, within: Sides | None = None, turn: Path | None = None) -> dict[str, float]:
    """Median milliseconds of each side, in turns; a side that fails is left out.

    ``within`` are contexts in which sides run, as ``enable()``: entered once a turn and not timed, as a script enters
    it once. With ``turn`` all sides are made ready, then the process waits for that file's lock.
    """
    import torch

    def context(name: str) -> Any:
        return (within or {}).get(name, contextlib.nullcontext)()

    def wait() -> None:
        if device.startswith("cuda"):
            torch.cuda.synchronize()

    samples: dict[str, list[float]] = {}
    for name, run in list(sides.items()):
        try:
            with context(name):
                run()
                run()
            samples[name] = []
        except Exception as failure:
            print(f"{name}: {cause(failure)}", file=sys.stderr)
    with _lock(turn):
        for _ in range(ROUNDS):
            for name, found in samples.items():
                least = math.inf
                with context(name):
                    sides[name]()
                    sides[name]()
                    until = time.perf_counter() + SECONDS / ROUNDS
                    while least == math.inf or time.perf_counter() < until:
                        wait()
                        begin = time.perf_counter()
                        sides[name]()
                        wait()
                        least = min(least, time.perf_counter() - begin)
                found.append(least)
    return {name: 1e3 * statistics.median(found) for name, found in samples.items()}


@contextlib.contextmanager
def _lock(path: Path | None) -> Iterator[None]:
    """While it lasts no other process has this file's lock."""
    if path is None:
        yield
        return
    with path.open("ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def compiled(
    models: dict[str, Any], forward: Callable[[Any], Any], enable: Callable[[], Any], error: Callable[[Any], Any]
) -> tuple[Sides, dict[str, Any]]:
    """``torch.compile`` of models, of ``"compile enable"`` under ``enable()``, by inductor with freezing on: the sides
    that run, and for each its error, the seconds of its first call and why its graph breaks; or how it fails."""
    import torch
    import torch._inductor.config as inductor
    from torch._dynamo.utils import counters

    inductor.freezing = True
    sides: Sides = {}
    found: dict[str, Any] = {}
    for name, model in models.items():
        counters.clear()
        model = torch.compile(model)
        begin = time.perf_counter()
        try:
            with enable() if name == "compile enable" else contextlib.nullcontext():
                answer = forward(model)
        except Exception as failure:
            found[name] = {"failed": cause(failure)}
            continue
        breaks = {why.splitlines()[0][:200]: times for why, times in counters["graph_break"].items()}
        found[name] = {"error": error(answer), "first_s": time.perf_counter() - begin, "breaks": breaks}
        sides[name] = lambda model=model: forward(model)  # type: ignore[misc]
    return sides, found


def compile_table(rows: list[dict[str, Any]]) -> str:
    """Rows of ``--compile`` as Markdown: what fails in inductor, times, and ratios in which ``torch.compile`` is 1."""
    sides = {"plain": "PyTorch", "compile": "torch.compile", "fused": "fused"}
    ratios = {
        "fused": "fused, torch.compile is 1",
        "enable": "enable(), torch.compile is 1",
        "compile enable": "torch.compile under enable(), torch.compile is 1",
        "compile fused": "torch.compile of the fused model, torch.compile is 1",
    }
    heads = ["library", "model", *(f"{each}, ms" for each in sides.values()), *ratios.values()]
    lines = [f"| {' | '.join([*heads, 'error of torch.compile; breaks'])} |", "|" + " --- |" * (len(heads) + 1)]
    found: dict[str, list[float]] = {side: [] for side in ratios}
    for row in rows:
        ms, about = row.get("ms", {}), row.get("compiled", {}).get("compile", {})
        cells = [row["library"], row["model"], *(f"{ms[side]:.1f}" if side in ms else "" for side in sides)]
        for side, each in found.items():
            if side in ms and "compile" in ms:
                each.append(ms["compile"] / ms[side])
            cells.append(f"{each[-1]:.2f}" if side in ms and "compile" in ms else "")
        said = "" if about.get("error") is None else f"{about['error']:.0e}; {sum(about['breaks'].values())}"
        cells.append((row.get("failed") or about.get("failed") or said).replace("|", "/"))
        lines.append(f"| {' | '.join(cells)} |")
    mean = [
        f"{math.exp(sum(map(math.log, each)) / len(each)):.2f}, least {min(each):.2f}" if each else ""
        for each in found.values()
    ]
    count = sum("compile" in row.get("ms", {}) for row in rows)
    return "\n".join([*lines, f"| geometric mean | of {count} | | | | {' | '.join(mean)} | |"])
