"""Layers of 18 families that nobody tuned for, without records: what is chosen beside torch, and beside its rivals.

    python bench/untuned.py prepare --count 100                      # compile, and compare the results with torch's
    python bench/untuned.py torch --count 100 --seconds 100          # again and again until it says "done"; then
    python bench/untuned.py report --count 100
    python bench/untuned.py candidates --count 100 --seconds 100     # the same of all solvers that predict a time

``--changing`` takes weights that change at every call, at batch 4; else they are constant, at batch 1. The layers of
``untuned.txt`` fall into two halves without a layer in common: ``--half fit``, from which costs and rules may be drawn,
and ``--half judge``. ``--count`` takes so many of a half, spread over the families; 0 all. Each run goes on where the
last one ended, in the file that ``--into`` names.

A call is ``conv(..., out=)`` on NumPy arrays in NCHW, waited for; torch's is eager, in its better layout, on as many
threads as the device has cores. Times are by ``fair.medians``: sides in turns, each unseen until the threads of the one
before it sleep; nothing is timed while the machine gives one core alone.
"""

from __future__ import annotations

import collections
import functools
import hashlib
import json
import math
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
import numpy as np
from fair import Side, medians

import convdispatch as cd
from convdispatch.api import ConvProblem
from convdispatch.api.policy import policy
from convdispatch.api.problem import DIRECTIONS
from convdispatch.device import runtime
from convdispatch.measurement.shapes import parse
from convdispatch.selection.choice.ranking import contestants, rank
from convdispatch.selection.solver_query import query
from convdispatch.tools.benchmark.measuring.torch_peer import Peer

HERE = Path(__file__).resolve().parent
UNSEEN_S = 0.03
NEAR = 2.5
"""Rivals that predict so many times the least predicted time or less are timed."""


def half_of(name: str) -> str:
    """Which half a layer is in, for good."""
    return ("fit", "judge")[hashlib.sha256(name.encode()).digest()[0] & 1]


def chosen_layers(half: str, count: int) -> list[tuple[str, ConvProblem]]:
    """So many layers of a half, taken in turns from the families, in an order that is always alike."""
    families: dict[str, list[tuple[str, ConvProblem]]] = collections.defaultdict(list)
    for entry in parse((HERE / "untuned.txt").read_text(encoding="utf-8"), "untuned.txt"):
        if half in ("both", half_of(entry.name)):
            families[entry.name.split(".")[0]].append((entry.name, entry.problem))
    for layers in families.values():
        layers.sort(key=lambda layer: hashlib.sha256(layer[0].encode()).digest()[1:])
    turns = max(map(len, families.values()))
    found = [layers[turn] for turn in range(turns) for layers in families.values() if turn < len(layers)]
    return found[: count or None]


def problems(half: str, count: int, changing: bool, only: str) -> Iterator[tuple[str, ConvProblem]]:
    """Name and problem of each layer in each direction."""
    for name, layer in chosen_layers(half, count):
        if any(part in name for part in only.split(",")):
            for direction in DIRECTIONS:
                held = not changing and direction != "bwd_weights"
                yield name, layer.replace(direction=direction, constant_weights=held, mb=4 if changing else layer.mb)


def operands(problem: ConvProblem) -> dict[str, np.ndarray]:
    """Standard normal x, w and y but what is written."""
    random = np.random.default_rng(0)
    shapes = {"x": problem.x_shape, "w": problem.w_shape, "y": problem.y_shape}
    return {n: random.standard_normal(s, dtype=np.float32) for n, s in shapes.items() if n != problem.written}


@functools.cache
def _product() -> tuple[Callable[[], Any], Callable[[], Any]]:
    """A product of 0.3 GFLOP by the thread that calls, and by the device."""
    problem = ConvProblem.parse("mb1ic512ih24oc512kh1")
    host, out = operands(problem), np.empty(problem.out_shape, np.float32)
    alone = runtime.serial_queue()
    return (lambda: cd.conv(**host, out=out, queue=alone)), (lambda: cd.conv(**host, out=out))


def wait_for_cores(seconds: float = 20.0) -> None:
    """Until several cores take less than 0.7 of one's time: for seconds at a time a virtual machine may have one."""
    end = time.monotonic() + seconds
    if runtime.serial_queue() is None or runtime.device_info(runtime.default_device()).compute_units < 2:
        return
    while time.monotonic() < end:
        one, all_ = (min(_timed(once) for _ in range(9)) for once in _product())
        if all_ < 0.7 * one:
            return
        time.sleep(0.2)
    print("all cores take as long as one", file=sys.stderr)


def _timed(once: Callable[[], Any]) -> float:
    begin = time.perf_counter()
    once()
    return time.perf_counter() - begin


def call(problem: ConvProblem, host: dict[str, np.ndarray], solver: str | None = None) -> tuple[Callable, np.ndarray]:
    """A function that computes the problem once and waits, and the array that it writes."""
    axes = problem.axes
    options: dict[str, Any] = {
        "stride": tuple(getattr(problem, "s" + a) for a in axes),
        "padding": tuple(getattr(problem, "p" + a) for a in axes),
        "dilation": tuple(getattr(problem, "d" + a) for a in axes),
        "groups": problem.g,
        "out": np.empty(problem.out_shape, np.float32),
    }
    x, y = host.get("x"), host.get("y")
    w = cd.constant(host["w"]) if problem.constant_weights else host.get("w")
    if problem.direction == "fwd":
        once = lambda: cd.conv(x, w, **options)  # noqa: E731
    elif problem.direction == "bwd_data":
        once = lambda: cd.conv_backward_data(y, w, problem.x_shape, **options)  # noqa: E731
    else:
        once = lambda: cd.conv_backward_weights(x, y, problem.w_shape, **options)  # noqa: E731
    if solver is None:
        return once, options["out"]

    def pinned() -> None:
        with policy(solver=solver):
            once()

    return pinned, options["out"]


def side(batch: Callable[[int], Any]) -> Side:
    """A side of calls that are waited for."""

    def unseen(runs: int) -> None:
        end = time.perf_counter() + UNSEEN_S
        while time.perf_counter() < end:
            batch(1)

    return Side(batch, unseen, time.perf_counter, lambda before, after: 1e3 * (after - before))


def repeated(once: Callable[[], Any]) -> Callable[[int], None]:
    def batch(runs: int) -> None:
        for _ in range(runs):
            once()

    return batch


def rivals(problem: ConvProblem) -> dict[str, float]:
    """Solvers whose prediction is within NEAR of the least one, and what is chosen: predicted seconds."""
    info = runtime.device_info(runtime.default_device())
    chosen = rank(problem, info)[0]
    costs = {}
    for name, solver in contestants(problem, info).items():
        answers = query(solver, problem, info)
        if "+" not in name and not answers.refused:
            cost = answers.cost(answers.within(None)[0])
            if cost is not None:
                costs[name] = cost
    least = min(costs.values(), default=math.inf)
    return {n: c for n, c in costs.items() if c <= NEAR * least or n == chosen.solver.name}


class Journal:
    """Rows that outlive a run: one JSON object a line, by its key."""

    def __init__(self, path: Path) -> None:
        self.path = path
        lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        self.rows = {row["key"]: row for row in map(json.loads, lines)}

    def add(self, key: str, **row: Any) -> None:
        self.rows[key] = {"key": key, **row}
        with self.path.open("a", encoding="utf-8") as out:
            out.write(json.dumps(self.rows[key]) + "\n")


def mean(ratios: list[float]) -> float:
    """Geometric mean."""
    return math.exp(statistics.fmean(map(math.log, ratios))) if ratios else math.nan


def prepare(name: str, problem: ConvProblem, every: bool, peer: Peer) -> dict[str, Any]:
    """Compile, and compare with torch: the largest relative difference by norm."""
    host, worst = operands(problem), 0.0
    expected = peer.variants(problem, host, 1)[0].result()
    for solver in [None, *(rivals(problem) if every else ())]:
        once, out = call(problem, host, solver)
        once()
        worst = max(worst, float(np.linalg.norm(out - expected) / max(1e-30, np.linalg.norm(expected))))
    return {"difference": worst}


def beside_torch(name: str, problem: ConvProblem, every: bool, peer: Peer) -> dict[str, Any]:
    """Milliseconds of ours and of torch's layouts."""
    host = operands(problem)
    wait_for_cores()
    once, _ = call(problem, host)
    sides = {"ours": side(repeated(once))}
    sides |= {f"torch {v.name}": side(v.run) for v in peer.variants(problem, host, 1)}
    ran = rank(problem, runtime.device_info(runtime.default_device()))[0]
    return {"ms": medians(sides), "solver": ran.solver.name}


def beside_rivals(name: str, problem: ConvProblem, every: bool, peer: Peer) -> dict[str, Any]:
    """Milliseconds of every solver that is near, each with its first configuration."""
    host, predicted = operands(problem), rivals(problem)
    wait_for_cores()
    sides = {solver: side(repeated(call(problem, host, solver)[0])) for solver in predicted}
    ran = rank(problem, runtime.device_info(runtime.default_device()))[0]
    return {"ms": medians(sides), "predicted": {n: 1e3 * c for n, c in predicted.items()}, "solver": ran.solver.name}


def say_torch(rows: list[dict[str, Any]]) -> None:
    """Ratios by direction and family, and the layers behind torch."""
    by_direction: dict[str, list[float]] = collections.defaultdict(list)
    by_family: dict[tuple[str, str], list[float]] = collections.defaultdict(list)
    behind = []
    for row in rows:
        ratio = min(ms for side, ms in row["ms"].items() if side != "ours") / row["ms"]["ours"]
        direction = ConvProblem.parse(row["problem"]).direction
        by_direction[direction].append(ratio)
        by_family[row["name"].split(".")[0], direction].append(ratio)
        if ratio < 0.9:
            behind.append((ratio, row))
    for direction, ratios in by_direction.items():
        low = sum(ratio < 0.9 for ratio in ratios) / len(ratios)
        print(f"{direction:12} {len(ratios)} layers, {mean(ratios):.3f} of torch's speed, below 0.9: {100 * low:.1f} %")
    everything = [ratio for ratios in by_direction.values() for ratio in ratios]
    low = sum(ratio < 0.9 for ratio in everything) / max(1, len(everything))
    print(f"{'all':12} {len(everything)} problems, {mean(everything):.3f}, below 0.9: {100 * low:.1f} %")
    for family in dict.fromkeys(family for family, _ in by_family):
        print(f"{family:14}", *(f"{mean(by_family[family, d]):6.2f}" for d in DIRECTIONS))
    for ratio, row in sorted(behind, key=lambda pair: pair[0]):
        print(f"{ratio:.2f} {row['name']:16} {row['problem']} {row['solver']} {row['ms']['ours']:.4f} ms")


def say_rivals(rows: list[dict[str, Any]]) -> None:
    """Regret: the chosen solver's time over the least of all that were timed."""
    regrets: dict[str, list[tuple[float, dict[str, Any]]]] = collections.defaultdict(list)
    for row in rows:
        chosen = row["ms"][row["solver"]]
        regrets[ConvProblem.parse(row["problem"]).direction].append((chosen / min(row["ms"].values()), row))
    for direction, pairs in regrets.items():
        print(f"{direction:12} {len(pairs)} problems, regret {mean([r for r, _ in pairs]):.3f}")
    pairs = [pair for some in regrets.values() for pair in some]
    print(f"all {len(pairs)}: {mean([r for r, _ in pairs]):.3f}")
    for regret, row in sorted(pairs, key=lambda pair: -pair[0])[:40]:
        best = min(row["ms"], key=row["ms"].get)
        print(f"{regret:.2f} {row['name']:16} {row['problem']} {row['solver']}, best {best} {row['ms'][best]:.4f} ms")


WORK = {"prepare": prepare, "torch": beside_torch, "candidates": beside_rivals}


@click.command(help=__doc__)
@click.argument("what", type=click.Choice([*WORK, "report"]))
@click.option("--half", type=click.Choice(["fit", "judge", "both"]), default="judge", show_default=True)
@click.option("--count", default=0, help="layers of the half; 0: all")
@click.option("--changing", is_flag=True, help="weights that change at every call, batch 4")
@click.option("--only", default="", help="layers whose name contains one of these words, parted by commas")
@click.option("--every", is_flag=True, help="prepare what candidates needs")
@click.option("--seconds", default=math.inf, help="begin nothing after so long")
@click.option("--into", type=click.Path(path_type=Path), default=Path("untuned"), help="the files' common beginning")
def main(what: str, half: str, count: int, changing: bool, only: str, every: bool, seconds: float, into: Path) -> None:
    end, kind = time.monotonic() + seconds, "changing" if changing else "constant"
    journals = {step: Journal(Path(f"{into}-{step}-{kind}.jsonl")) for step in WORK}
    wanted = list(problems(half, count, changing, only))
    if what == "report":
        done = {step: [j.rows[str(p)] for _, p in wanted if str(p) in j.rows] for step, j in journals.items()}
        compared = [row["difference"] for row in done["prepare"]]
        print(f"{len(compared)} of {len(wanted)} compared, largest difference {max(compared, default=math.nan):.1e}")
        say_torch(done["torch"])
        say_rivals(done["candidates"])
        return
    peer, journal = Peer(runtime.device_info(runtime.default_device())), journals[what]
    for name, problem in wanted:
        if str(problem) in journal.rows:
            continue
        if time.monotonic() > end:
            left = sum(str(each) not in journal.rows for _, each in wanted)
            sys.exit(f"{left} of {len(wanted)} are left")
        try:
            journal.add(str(problem), name=name, problem=str(problem), **WORK[what](name, problem, every, peer))
        except Exception as error:
            print(f"{name} {problem}: {type(error).__name__}: {error}", file=sys.stderr)
    print("done")


if __name__ == "__main__":
    main()
