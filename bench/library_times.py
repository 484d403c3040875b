"""Times of sides that take turns, the turn of a process among others, and what models' rows are made of."""

from __future__ import annotations

import contextlib
import fcntl
import json
import math
import statistics
import subprocess
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


def row_of_child(command: list[str], seconds: float) -> dict[str, Any]:
    """The JSON object that a child prints last, or ``failed`` and why."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=seconds)
    except subprocess.TimeoutExpired:
        return {"failed": f"over {seconds:.0f} s"}
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    last = [line for line in done.stderr.splitlines() if line.strip()] or [f"ended with {done.returncode}"]
    return json.loads(lines[-1]) if lines else {"failed": last[-1][:300]}  # type: ignore[no-any-return]


def counted() -> dict[str, Any]:
    """What became of the calls."""
    import convdispatch.torch as ct

    counters = ct.counters()
    return {key: counters[key] for key in ("ours", "left", "reasons")}


def gradients(loss: Any, model: Any) -> list[Any]:
    """The gradients of a loss by a model's parameters, of those that it depends on."""
    import torch

    weights = [p for p in model.parameters() if p.requires_grad]
    return [g for g in torch.autograd.grad(loss, weights, allow_unused=True) if g is not None]


def mean_cell(ratios: list[float]) -> str:
    """The geometric mean and the least of ratios, as a table's cell."""
    return f"{statistics.geometric_mean(ratios):.2f}, least {min(ratios):.2f}" if ratios else ""


def error_cell(row: dict[str, Any], *keys: str) -> str:
    """A row's errors as a table's cell."""
    return "; ".join("-" if row.get(key) is None else f"{row[key]:.0e}" for key in keys)
