"""The nvidia plugin on one Hopper GPU: whole nets beside PyTorch with cuDNN.

    python -m bench gpu_layers compare --net vgg_a --tries 4 --math float32     # beside cuDNN, TF32 off
    python -m bench gpu_layers compare --dtype float16 --layout nhwc

``compare`` builds the most promising configurations of every solver on all cores, times them on the device alone, and
keeps the fastest of each layer; "first" is the one that the costs choose without a search. Drawn elements of results
are compared with float64's.
"""

from __future__ import annotations

import contextlib
import faulthandler
import fcntl
import itertools
import json
import math
import os
import statistics
import time
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path

import click

from bench.gpu_device import Bench, torch_ms
from bench.workers import Lost, farm
from convdispatch.api import ConvProblem
from convdispatch.api.problem import DIRECTIONS
from convdispatch.measurement import shapes
from convdispatch.selection.plugins.loader import plugins

NETS = ("convnet", "alexnet", "overfeat", "vgg_a", "googlenet", "resnet50")
SHORT = {"fwd": "f", "bwd_data": "bd", "bwd_weights": "bw"}


@click.group()
def main() -> None:
    """Compare."""


_WORKER: dict = {}
_TRIED = ("nvidia.tma", "nvidia.wgmma", "nvidia.winograd")
"""Solvers of which several configurations are tried."""


def _begin(dtype: str, options: dict) -> None:
    """A worker process: its own context and buffers."""
    faulthandler.enable()
    _WORKER["lock"] = Path("/tmp/nvidia_h200.lock").open("w")  # noqa: SIM115 as long as the process
    _WORKER["log"] = Path("/tmp", f"worker{os.getpid()}.log").open("w")  # noqa: SIM115
    _WORKER["bench"], _WORKER["options"] = Bench(dtype), options
    globs = options["solver"].split(",")
    found = plugins().solvers.items()
    _WORKER["solvers"] = [each for name, each in found if any(fnmatch(name, glob) for glob in globs)]


def _measure(given: tuple[tuple[str, str, ConvProblem], bool]) -> dict:
    """Build and check anywhere, time while no other process does."""
    (net, layer, problem), check = given
    bench, options = _WORKER["bench"], _WORKER["options"]
    row = {"net": net, "layer": layer, "direction": problem.direction, "problem": str(problem), "timed": [],
           "gflop": problem.flops / 1e9, "notes": []}  # fmt: skip
    offers = []
    for each in _WORKER["solvers"]:
        why = each.rejects(problem, bench.info)
        if why:
            row["notes"].append(f"{each.name}: {why}")
            continue
        most = options["tries"] if each.name in _TRIED else min(1, options["tries"])
        for config in itertools.islice(each.configs(problem, bench.info), most):
            offers.append((each.cost(problem, bench.info, config) or 1e30, each, dict(config)))
    offers.sort(key=lambda offer: offer[0])
    tried, plans = [], []
    for offer in offers:
        cost, each, config = offer
        if cost < options["near"] * offers[0][0]:
            try:
                plans.append(each.plan(bench.context, problem, config))
                tried.append(offer)
            except Exception as error:
                row["notes"].append(f"{each.name} {config}: {str(error)[:300]}")
    bench.load(problem)
    # Twice, the device let go between: other processes' beginnings disturb what is timed for a while.
    with _alone():
        first = _times(tried, plans)
    with _alone():
        both = zip(first, _times(tried, plans), strict=True)
        row["timed"] = [
            (min(ms), each.name, cost, config) for ms, (cost, each, config) in zip(both, tried, strict=True)
        ]
        if plans:
            best = min(range(len(plans)), key=lambda number: row["timed"][number][0])
            row["ms"], row["solver"], row["cost"], row["config"] = row["timed"][best]
    if plans and check and options["check"]:
        row["error"] = bench.error(plans[best], problem)
    return row


@contextlib.contextmanager
def _alone() -> Iterator[None]:
    """While no other process of this run measures."""
    fcntl.flock(_WORKER["lock"], fcntl.LOCK_EX)
    try:
        yield
    finally:
        fcntl.flock(_WORKER["lock"], fcntl.LOCK_UN)


def _times(offers: list[tuple], plans: list) -> list[float]:
    """Milliseconds of each plan."""
    bench, times = _WORKER["bench"], []
    for (_, each, config), plan in zip(offers, plans, strict=True):
        print(f"{bench.problem} {each.name} {json.dumps(config)}", file=_WORKER["log"], flush=True)
        times.append(bench.time(plan, _WORKER["options"]["seconds"]))
    return times


def _torch(problem: ConvProblem) -> tuple[str, float]:
    return str(problem), torch_ms(problem)


def _begin_torch() -> None:
    """The peer's process: loads PyTorch and its libraries before anything is timed."""
    torch_ms(ConvProblem(mb=1, ic=8, ih=8, iw=8, oc=8, kh=3, kw=3))


@main.command()
@click.option("--net", "nets", multiple=True, default=NETS, help="Shape tables.")
@click.option("--direction", "directions", multiple=True, default=DIRECTIONS)
@click.option("--layer", "layers", multiple=True, help="Only layers of these names.")
@click.option("--solver", default="nvidia.*,winograd.*,fft.*,implicitgemm.*", show_default=True, help="Globs.")
@click.option("--tries", default=2, show_default=True, help="Configurations of each solver in _TRIED; others: one.")
@click.option("--near", default=2.0, show_default=True, help="Tried if predicted within so many times of the least.")
@click.option("--math", "mode", default="float32", show_default=True)
@click.option("--dtype", default="float32", show_default=True)
@click.option("--layout", default="nchw", show_default=True)
@click.option("--seconds", default=0.006, show_default=True, help="A timing batch.")
@click.option("--torch/--no-torch", "peer", default=True)
@click.option("--check/--no-check", default=True)
@click.option("--check-every", default=1, show_default=True, help="Check one layer in so many.")
@click.option("--budget", default=200.0, show_default=True, help="Seconds after which no further result is awaited.")
@click.option("--jobs", default=5, show_default=True, help="Processes that build and check.")
@click.option("--label", default="compare", show_default=True, help="Name of the JSON file in $OUT.")
def compare(nets, directions, layers, mode, dtype, layout, budget, jobs, label, **options) -> None:
    """Every layer of the nets beside cuDNN."""
    begun, rows = time.perf_counter(), []
    work = [
        (net, entry.name, entry.problem.replace(direction=direction, math=mode, dtype=dtype, layout=layout))
        for net, direction in itertools.product(nets, directions)
        for entry in shapes.load(net)
        if not layers or entry.name in layers
    ]
    checked, peer, until = options.pop("check_every"), options.pop("peer"), time.monotonic() + budget
    tasks = [(task, number % checked == 0) for number, task in enumerate(work)]
    # First ours, then the peer, in the same run: two that wait for the device at once starve each other.
    for row in farm(jobs, _begin, (dtype, options), _measure, tasks, until=until, task_s=45.0):
        if isinstance(row, Lost):
            print(f"LOST {row.task and row.task[0]}: {row.why}", flush=True)
            continue
        for note in row["notes"]:
            print(f"note {row['problem']}: {note}", flush=True)
        if row["timed"]:
            rows.append(row)
    print(f"ours: {time.perf_counter() - begun:.0f} s", flush=True)
    if peer:
        mine = {row["problem"]: ConvProblem.parse(row["problem"]) for row in rows}
        known = dict(zip(mine, itertools.repeat(float("nan"))))
        for found in farm(1, _begin_torch, (), _torch, list(mine.values()), until=until):
            if isinstance(found, Lost):
                print(f"LOST torch {found.task}: {found.why}", flush=True)
            else:
                known[found[0]] = found[1]
        for row in rows:
            row["torch"] = known[row["problem"]]
    order = {(*task[:2], task[2].direction): number for number, task in enumerate(work)}
    rows.sort(key=lambda row: order[row["net"], row["layer"], row["direction"]])
    for row in rows:
        ms, theirs = row["ms"], row.setdefault("torch", float("nan"))
        print(f"{row['net']:9} {row['layer']:8} {SHORT[row['direction']]:2} {ms:8.3f} ms"
              f" {row['gflop'] / ms:6.1f} TF  torch {theirs:8.3f} ratio {theirs / ms:5.2f} err"
              f" {row.get('error', float('nan')):.1e} first {row['timed'][0][0]:8.3f} {row['solver']}"
              f" {json.dumps(row['config'])}", flush=True)  # fmt: skip
    if os.environ.get("OUT"):
        Path(os.environ["OUT"], label + ".json").write_text(json.dumps({"rows": rows}))
    took = time.perf_counter() - begun
    ratios = [row["torch"] / row["timed"][0][0] for row in rows if row["torch"] == row["torch"]]
    mean = statistics.geometric_mean(ratios) if ratios else math.nan
    print(f"\n{label}: {len(ratios)} layers, geometric mean of the peer's time over the first choice's {mean:.2f}")
    print(f"{label}: net  dir  ours ms (first)  torch ms  ratio (first's)  worst; {took:.0f} s")
    for net, direction in itertools.product(nets, directions):
        part = [row for row in rows if (row["net"], row["direction"]) == (net, direction)]
        if part:
            mine, theirs = (sum(row[key] for row in part) for key in ("ms", "torch"))
            first = sum(row["timed"][0][0] for row in part)
            worst = sorted(part, key=lambda row: row["torch"] / row["ms"])[:4]
            print(f"{net:9} {SHORT[direction]:3} {mine:8.3f} ({first:8.3f}) {theirs:10.3f} {theirs / mine:6.2f}"
                  f" ({theirs / first:.2f})"
                  f" errors to {max(row.get('error', 0) for row in part):.1e}  "
                  + ", ".join(f"{row['layer']} {row['torch'] / row['ms']:.2f}" for row in worst))  # fmt: skip


if __name__ == "__main__":
    main()
