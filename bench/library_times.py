"""Times of sides that take turns, and the turn of a process among others."""

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
