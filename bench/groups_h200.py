"""Depthwise, grouped and strided layers on one NVIDIA GPU: every candidate of ours, beside PyTorch with cuDNN.

    python bench/groups_h200.py --set fit --set strided --budget 180      # tables to stdout, groups.json to $OUT

Each layer runs in three directions. Candidates are the first configurations of the kernels named by ``--solver`` and
the first one of every other solver that takes the layer; each is compared with the portable solver in float64 and timed
by the device's clock. The share is of a copy's bandwidth, each tensor moved once.
"""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import json
import math
import os
import sys
import time
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path

import click

sys.path.insert(0, str(Path(__file__).resolve().parent))
from farm import Lost, farm
from gpu import torch_ms
from nvidia_values import Bench

from convdispatch.api import ConvProblem
from convdispatch.api.problem import DIRECTIONS
from convdispatch.selection.plugins.loader import plugins

_COPY = 4.25e12
_OTHERS = ("nvidia.*", "implicitgemm.*")
_PLACES = (0, 1, 2, 3, 5, 8, 12, 18)
_W = {}
# name: forms (dtype_layout), layers. ``fit`` is what costs were fitted to, ``judge`` what they are judged by.
SETS = {
    "fit": (("f16_nhwc",), """
        g32mb64ic32ih112oc32kh3ph1 g96mb16ic96ih112oc96kh3sh2ph1 g192mb64ic192ih28oc192kh3ph1
        g384mb16ic384ih14oc384kh3ph1 g576mb64ic576ih14oc576kh3sh2ph1 g960mb64ic960ih7oc960kh3ph1
        g960mb1ic960ih7oc960kh3ph1 g192mb1ic192ih56oc192kh3ph1 g240mb32ic240ih28oc240kh5ph2
        g672mb64ic672ih14oc672kh5sh2ph2 g1152mb16ic1152ih7oc1152kh5ph2 g120mb1ic120ih28oc120kh5ph2
        g128mb16ic128ih56oc128kh7ph3 g192mb64ic192ih28oc192kh7ph3 g512mb64ic512ih14oc512kh7ph3
        g1024mb16ic1024ih7oc1024kh7ph3
    """),
    "groups": (("f16_nhwc",), """
        g32mb16ic256ih56oc256kh3ph1 g32mb64ic512ih28oc512kh3ph1 g32mb32ic1024ih14oc1024kh3ph1
        g32mb16ic128ih56oc128kh3ph1
        g32mb1ic256ih28oc256kh3ph1 g32mb16ic256ih56oc256kh3sh2ph1 g4mb32ic96ih56oc96kh3ph1 g7mb16ic168ih28oc168kh3ph1
        g3mb64ic240ih28oc240kh1
    """),
    "strided": (("f16_nhwc",), """
        mb8ic64ih160oc128kh3sh2ph1 mb16ic48ih80oc96kh3sh2ph1 mb16ic128ih40oc256kh3sh2ph1 mb4ic32ih256oc64kh3sh2ph1
        mb16ic16ih208oc32kh3sh2ph1
    """),
    "first": (("f16",), """
        g32mb64ic32ih112oc32kh3ph1 g192mb64ic192ih28oc192kh3ph1 g960mb64ic960ih7oc960kh3ph1 g240mb32ic240ih28oc240kh5ph2
        g128mb16ic128ih56oc128kh7ph3 g512mb64ic512ih14oc512kh7ph3 g576mb64ic576ih14oc576kh3sh2ph1
    """),
    "single": (("f32", "f32_nhwc"), """
        g128mb16ic128ih56oc128kh7ph3 g192mb64ic192ih28oc192kh7ph3 g512mb64ic512ih14oc512kh7ph3
        g192mb64ic192ih28oc192kh3ph1
        g960mb64ic960ih7oc960kh3ph1
    """),
    "patches": (("f32", "f16_nhwc"), "mb32ic3ih224oc384kh16sh16 mb64ic3ih224oc128kh4sh4"),
    "judge": (("f16_nhwc",), """
        g144mb32ic144ih56oc144kh3ph1 g384mb64ic384ih14oc384kh3ph1 g144mb64ic144ih56oc144kh3sh2ph1
        g480mb16ic480ih14oc480kh5ph2 g240mb64ic240ih28oc240kh5sh2ph2 g96mb32ic96ih56oc96kh7ph3
        g384mb32ic384ih14oc384kh7ph3
        g768mb64ic768ih7oc768kh7ph3 g1280mb1ic1280ih7oc1280kh3ph1 g672mb16ic672ih14oc672kh3ph1
        g32mb32ic128ih56oc128kh3ph1 g32mb32ic256ih28oc256kh3ph1 g64mb16ic256ih56oc256kh3ph1 g10mb32ic240ih28oc240kh3ph1
        mb16ic32ih320oc64kh3sh2ph1 mb8ic64ih112oc128kh3sh2ph1
    """),
    "judge_bf16": (("bf16_nhwc",), """
        g144mb32ic144ih56oc144kh3ph1 g240mb64ic240ih28oc240kh5sh2ph2 g96mb32ic96ih56oc96kh7ph3
        g32mb32ic128ih56oc128kh3ph1
    """),
    "judge_nchw": (("f16",), """
        g144mb32ic144ih56oc144kh3ph1 g384mb64ic384ih14oc384kh3ph1 g240mb64ic240ih28oc240kh5sh2ph2
        g96mb32ic96ih56oc96kh7ph3 g768mb64ic768ih7oc768kh7ph3
    """),
    "judge_single": (("f32",), """
        g96mb32ic96ih56oc96kh7ph3 g384mb32ic384ih14oc384kh7ph3 g768mb64ic768ih7oc768kh7ph3 g144mb32ic144ih56oc144kh3ph1
        mb64ic3ih224oc768kh16sh16 mb32ic3ih224oc96kh4sh4
    """),
}  # fmt: skip


def _begin(dtype: str, options: dict) -> None:
    _W["lock"] = Path("/tmp/groups_h200.lock").open("w")  # noqa: SIM115 as long as the process
    _W["bench"], _W["options"] = {}, options


@contextlib.contextmanager
def _alone() -> Iterator[None]:
    fcntl.flock(_W["lock"], fcntl.LOCK_EX)
    try:
        yield
    finally:
        fcntl.flock(_W["lock"], fcntl.LOCK_UN)


def _offers(problem: ConvProblem, bench: Bench) -> Iterator[tuple]:
    options, ours = _W["options"], _W["options"]["solver"]
    for name, solver in plugins().solvers.items():
        mine = any(fnmatch(name, glob) for glob in ours)
        if not mine and not any(fnmatch(name, glob) for glob in _OTHERS):
            continue
        if solver.rejects(problem, bench.info):
            continue
        configs = list(itertools.islice(solver.configs(problem, bench.info), 32 if mine else 1))
        for place in _PLACES[: options["tries"]] if mine else (0,):
            if place < len(configs):
                yield solver.cost(problem, bench.info, configs[place]) or 1e30, name, place, dict(configs[place])


def _measure(problem: ConvProblem) -> dict:
    """Build and check anywhere, time while no other process does."""
    if problem.dtype not in _W["bench"]:
        _W["bench"][problem.dtype] = Bench(problem.dtype, 120_000_000)
    bench = _W["bench"][problem.dtype]
    row: dict = {"problem": str(problem), "timed": [], "notes": []}
    bench.load(problem)
    exact = bench.exact.plan(problem)
    offers = sorted(_offers(problem, bench), key=lambda offer: offer[0])
    ours, least = _W["options"]["solver"], offers[0][0]
    for cost, name, place, config in offers:
        if not any(fnmatch(name, glob) for glob in ours) and cost > 8 * least:
            continue
        try:
            begun = time.perf_counter()
            plan = plugins().solvers[name].plan(bench.context, problem, config)
            built = time.perf_counter() - begun
            with _alone():
                error = bench.error(plan, problem, exact)
                ms = bench.time(plan, _W["options"]["seconds"])
            with _alone():  # twice: other processes' beginnings disturb
                ms = min(ms, bench.time(plan, _W["options"]["seconds"]))
                each = bench.launches(plan) if hasattr(plan, "_steps") and len(plan._steps) > 1 else []
            row["timed"].append((ms, name, place, cost, config, error, built, each))
        except Exception as failure:
            row["notes"].append(f"{name} {config}: {str(failure)[:400]} {str(getattr(failure, 'log', ''))[:600]}")
    return row


def _torch(problem: ConvProblem) -> tuple[str, float]:
    return str(problem), torch_ms(problem, 0.003)


def _begin_torch() -> None:
    torch_ms(ConvProblem(mb=1, ic=8, ih=8, iw=8, oc=8, kh=3, kw=3))


@click.command()
@click.option("--set", "sets", multiple=True, default=["judge"], help=f"Of {', '.join(SETS)}.")
@click.option("--solver", multiple=True, default=["implicitgemm.tiled_depthwise*", "nvidia.grouped"])
@click.option("--tries", default=8, show_default=True, help="Configurations of those solvers; others: one.")
@click.option("--seconds", default=0.002, show_default=True, help="A timing batch.")
@click.option("--budget", default=180.0, show_default=True, help="Seconds after which no further result is awaited.")
@click.option("--jobs", default=14, show_default=True)
@click.option("--every", default=1, show_default=True, help="One problem in so many.")
@click.option("--peer/--no-peer", default=True)
def main(sets, budget, jobs, every, peer, **options) -> None:
    """Times the sets' layers."""
    begun = time.monotonic()
    work = [
        (each, ConvProblem.parse(f"{direction}_{form}_{text}"))
        for each in sets
        for form, text, direction in itertools.product(SETS[each][0], SETS[each][1].split(), DIRECTIONS)
    ][::every]
    rows, names = {}, {str(problem): each for each, problem in work}
    problems = [problem for _, problem in work]
    for row in farm(jobs, _begin, ("", options), _measure, problems, until=begun + budget * 0.62, task_s=60.0):
        if isinstance(row, Lost):
            print(f"LOST {row.task}: {row.why}", flush=True)
            continue
        for note in row["notes"]:
            print(f"note {row['problem']}: {note}", flush=True)
        if row["timed"]:
            rows[row["problem"]] = row
    print(f"ours: {time.monotonic() - begun:.0f} s", flush=True)
    if peer:
        for found in farm(1, _begin_torch, (), _torch, problems, until=begun + budget):
            if isinstance(found, Lost):
                print(f"LOST torch {found.task}: {found.why}", flush=True)
            elif found[0] in rows:
                rows[found[0]]["torch"] = found[1]
    for problem in problems:
        row = rows.get(str(problem))
        if row is None:
            continue
        first, best = row["timed"][0], min(row["timed"])
        theirs, most = row.get("torch", math.nan), problem.bytes / _COPY * 1e5
        wrong = [
            each for each in row["timed"] if not each[5] < {"float16": 1e-3, "bfloat16": 8e-3}.get(problem.dtype, 1e-5)
        ]
        row["ratio"], row["set"] = theirs / first[0], names[str(problem)]
        print(
            f"{problem!s:58} first {first[0] * 1e3:8.1f} us ({first[3] * 1e6:7.1f}) best {best[0] * 1e3:8.1f}"
            f" torch {theirs * 1e3:8.1f} ratio {theirs / first[0]:5.2f} {theirs / best[0]:5.2f}"
            f" copy {most / first[0]:3.0f} {most / best[0]:3.0f} % err {first[5]:.0e} {first[1]} {json.dumps(first[4])}"
            f" | {best[1]} {json.dumps(best[4])} {best[7]}{' WRONG ' + str(wrong[:2]) if wrong else ''}",
            flush=True,
        )
    if os.environ.get("OUT"):
        Path(os.environ["OUT"], "groups.json").write_text(json.dumps(list(rows.values())))
    for each, direction in itertools.product(sets, DIRECTIONS):
        part = [
            row
            for row in rows.values()
            if row["set"] == each and row["problem"].startswith(direction + "_") and row["ratio"] == row["ratio"]
        ]
        if part:
            mean = math.exp(sum(math.log(row["ratio"]) for row in part) / len(part))
            below = sum(row["ratio"] < 1 for row in part)
            print(f"{each:12} {direction:11} {len(part):3} layers, ratio of the first {mean:.2f}, below 1 {below},"
                  f" least {min(row['ratio'] for row in part):.2f}")  # fmt: skip
    print(f"{time.monotonic() - begun:.0f} s")


if __name__ == "__main__":
    main()
