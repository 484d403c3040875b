"""One way to time, for both sides of a comparison: the device is kept busy while the host queues, operands rotate.

A side says how its stream is plugged, marked and read; what a sample is, how many are taken and what becomes of them
stands here once. A sample runs the work several times between two marks on the device, behind a plug that keeps the
device busy until the host has queued all of it, so that no launch of the host's is in anybody's time. The work takes
sets of operands in turn that together are larger than the device's cache. Sides take turns, and the median of each
side's samples is its time.
"""

from __future__ import annotations

import functools
import itertools
import math
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ["Side", "captured", "graph_side", "host_seconds", "in_turns", "medians", "sets_of", "stream_side"]

CACHE = 100 << 20
"""Bytes that all sets together exceed: twice an H200's second-level cache."""
MOST_SETS = 16
SAMPLES = 6
LEAST, MOST = 3, 50
"""Runs of a sample."""


@dataclass(frozen=True)
class Side:
    """One side's stream and work."""

    batch: Callable[[int], Any]
    """``batch(runs)`` enqueues so many runs, over the sets of operands in turn."""
    plug: Callable[[int], Any]
    """``plug(runs)`` enqueues what keeps the device busy while the host queues so many runs."""
    mark: Callable[[], Any]
    """Enqueues a mark of the device's time."""
    ms: Callable[[Any, Any], float]
    """Waits, and tells the milliseconds between two marks."""

    def sample(self, runs: int) -> float:
        """Milliseconds of a run."""
        self.plug(runs)
        before = self.mark()
        self.batch(runs)
        return self.ms(before, self.mark()) / runs


def stream_side(batch: Callable[[int], Any]) -> Side:
    """The side of ``batch(runs)``, which enqueues so many runs on PyTorch's current stream."""
    import torch

    def plug(runs: int) -> None:
        torch.cuda._sleep(170_000 * runs)  # cycles: some 0.1 ms a run

    def mark() -> Any:
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def ms(before: Any, after: Any) -> float:
        after.synchronize()
        return before.elapsed_time(after)

    return Side(batch, plug, mark, ms)


def graph_side(work: Callable[[int], Any]) -> Side:
    """The side of ``work(number)``, calls on PyTorch's current stream, as a CUDA graph of each whole sample."""
    graphs: dict[int, Callable[[], None]] = {}

    def batch(runs: int) -> None:
        if runs not in graphs:
            numbers = itertools.chain(range(2), range(runs))
            graphs[runs] = captured(lambda: work(next(numbers)), 2, runs)
        graphs[runs]()

    return stream_side(batch)


def captured(run: Callable[[], Any], warm: int = 2, runs: int = 1) -> Callable[[], None]:
    """The replay of a CUDA graph of so many runs, after ``warm`` ones."""
    import torch

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(warm):
            run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(runs):
            run()
    return graph.replay  # type: ignore[no-any-return]


def sets_of(nbytes: int) -> int:
    """Sets of operands of ``nbytes`` each that together exceed the cache, within reason."""
    return max(1, min(MOST_SETS, math.ceil(CACHE / max(1, nbytes))))


def medians(sides: Mapping[str, Side], seconds: float = 0.006, samples: int = SAMPLES) -> dict[str, float]:
    """The median milliseconds of each side; a sample takes some ``seconds``, the sides take turns."""
    runs = {}
    for name, side in sides.items():
        side.batch(1)  # what is made once, a graph say, is in no sample
        runs[name] = int(min(MOST, max(LEAST, seconds * 1e3 / max(side.sample(1), 1e-3))))
        side.batch(runs[name])
    return in_turns({name: functools.partial(side.sample, runs[name]) for name, side in sides.items()}, samples)


def in_turns(sides: Mapping[str, Callable[[], float]], rounds: int) -> dict[str, float]:
    """The median of each side's samples; the sides take turns, each round from another one on."""
    samples: dict[str, list[float]] = {name: [] for name in sides}
    order = list(sides)
    for turn in range(rounds):
        for name in order[turn % len(order) :] + order[: turn % len(order)]:
            samples[name].append(sides[name]())
    return {name: statistics.median(values) for name, values in samples.items()}


def host_seconds(run: Callable[[], Any], calls: int, wait: Callable[[], Any] = lambda: None) -> float:
    """The mean seconds of a call, by the host's clock; ``wait`` ends a sample when the device is idle."""
    begin = time.perf_counter()
    for _ in range(calls):
        run()
    wait()
    return (time.perf_counter() - begin) / calls
