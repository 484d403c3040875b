"""Errors of every solver on every family of data (``convdispatch/measurement/search/families.py``), plane by plane.

    python -m bench accuracy                              # the default device, small layers on a CPU
    python -m bench accuracy --device nvidia --math ieee --jobs 12 --markdown FILE

Five geometries (3x3, 1x1, 5x5, stride 2, 7x7 of three channels) in three directions; every solver that accepts one, its
first configuration of each number format. A figure is the error of the worst plane: the norm of its differences from
float64 over the norm of what is expected or enters; in a plane that should hold an infinity or NaN, others may become
one (tiles spread them, and so does padding that meets a filter's). Rows that break the contract (``family_limit``) are
listed.
"""

from __future__ import annotations

import json
import os
import time
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import click
import numpy as np

from bench import results
from bench.workers import Lost, farm
from convdispatch.api import ConvProblem
from convdispatch.api.problem import DIRECTIONS
from convdispatch.device import runtime
from convdispatch.measurement import reference
from convdispatch.measurement.conformance.checks import Examination
from convdispatch.measurement.search.families import FAMILIES, draw, entering, families, family_limit, plane_errors
from convdispatch.selection.plugins.loader import plugins

GEOMETRIES = {
    "3x3": "mb{n}ic{c}ih{s}iw{s}oc{c}kh3kw3ph1pw1",
    "1x1": "mb{n}ic{c}ih{s}iw{s}oc{c}kh1kw1",
    "5x5": "mb{n}ic{q}ih{s}iw{s}oc{h}kh5kw5ph2pw2",
    "stride 2": "mb{n}ic{h}ih{s}iw{s}oc{h}kh3kw3sh2sw2ph1pw1",
    "7x7": "mb{n}ic3ih{d}iw{d}oc64kh7kw7sh2sw2ph3pw3",
}
SIZES = {
    "small": {"n": 4, "c": 64, "h": 48, "q": 32, "s": 14, "d": 40},
    "large": {"n": 4, "c": 256, "h": 128, "q": 64, "s": 28, "d": 112},
}
_WORKER: dict[str, Any] = {}


def _begin(device: str | None, only: str) -> None:
    import pyopencl as cl

    found = runtime.find_device(device)
    queue = cl.CommandQueue(runtime.context(found))
    _WORKER.update(info=runtime.device_info(found), queue=queue, only=only.split(","))


def _plans(problem: ConvProblem) -> list[tuple[str, Any]]:
    """(what made it, what runs its plan) of every solver, its first configuration of each format."""
    made = []
    for name, solver in plugins().solvers.items():
        if not any(fnmatch(name, glob) for glob in _WORKER["only"]) or solver.rejects(problem, _WORKER["info"]):
            continue
        seen = set()
        for config in solver.configs(problem, _WORKER["info"]):
            if config.get("format") in seen:
                continue
            seen.add(config.get("format"))
            shown = " ".join((name, config.get("format", ""))).strip()
            made.append((shown, Examination(solver, problem, config, None, _WORKER["queue"])))
    return made


def _measure(task: tuple[str, list[ConvProblem]]) -> list[dict]:
    """Errors of all plans on all families, for problems that differ in their math alone."""
    geometry, problems = task
    rows, made = [], []
    for problem in problems:
        for shown, plan in _plans(problem):
            rows.append({"geometry": geometry, "direction": problem.direction, "math": problem.math, "solver": shown,
                         "problem": str(problem), "errors": {}})  # fmt: skip
            made.append((problem, plan))
    for family in families(problems[0].direction):
        operands = draw(family, problems[0])
        with np.errstate(all="ignore"):
            expected, entered = reference.compute(problems[0], **operands), entering(problems[0], operands)
        for row, (problem, plan) in zip(rows, made, strict=True):
            found = plane_errors(problem, plan.compute(operands), expected, entered, spread=True)
            row["errors"][family] = float(found.max())
    return rows


def broken(row: dict) -> dict[str, float]:
    """The families on which a row errs by more than its normal data allows."""
    problem, normal = ConvProblem.parse(row["problem"]), row["errors"]["normal"]
    return {family: error for family, error in row["errors"].items()
            if not error <= family_limit(problem, family, normal)}  # fmt: skip


def table(rows: list[dict]) -> str:
    """Markdown: a line a math, solver and format, in each family its worst of all geometries and directions."""
    lines = []
    for math, solver in dict.fromkeys((row["math"], row["solver"]) for row in rows):
        part = [row["errors"] for row in rows if (row["math"], row["solver"]) == (math, solver)]
        worst = [max((each[family] for each in part if family in each), default=None) for family in FAMILIES]
        cells = ["" if each is None else f"{each:.1e}" for each in worst]
        lines.append([math, f"`{solver}`", len(part), *cells])
    return results.markdown(["math", "solver", "problems", *FAMILIES], lines)


@click.command()
@click.option("--device", default=None, help="As CONVDISPATCH_DEVICE.")
@click.option("--math", "maths", multiple=True, default=("float32", "ieee"), show_default=True)
@click.option("--size", type=click.Choice(list(SIZES)), default=None, help="Layers; default: small on a CPU.")
@click.option("--solver", "only", default="*", show_default=True, help="Globs, comma between.")
@click.option("--jobs", default=1, show_default=True)
@click.option("--budget", default=600.0, show_default=True, help="Seconds after which no result is awaited.")
@click.option("--markdown", default=None, help="Where the table goes, besides the terminal.")
def main(device: str | None, maths, size: str | None, only: str, jobs: int, budget: float, markdown: str) -> None:
    """Print the table of worst planes, and every row that breaks the contract."""
    begun = time.monotonic()
    size = size or ("small" if runtime.device_info(runtime.find_device(device)).type == "cpu" else "large")
    tasks = [
        (
            name,
            [ConvProblem.parse(f"{direction}_f32_{text.format(**SIZES[size])}").replace(math=math) for math in maths],
        )
        for name, text in GEOMETRIES.items()
        for direction in DIRECTIONS
    ]
    rows: list[dict] = []
    for done in farm(jobs, _begin, (device, only), _measure, tasks, until=begun + budget, task_s=budget):
        if isinstance(done, Lost):
            print(f"LOST {done.task}: {done.why}", flush=True)
        else:
            rows += done
    rows.sort(key=lambda row: (list(maths).index(row["math"]), row["solver"]))
    if os.environ.get("OUT"):
        Path(os.environ["OUT"], "accuracy.json").write_text(json.dumps(rows))
    print(table(rows))
    if markdown:
        Path(markdown).write_text(table(rows) + "\n")
    wrong = [row for row in rows if broken(row)]
    for row in wrong:
        found = ", ".join(f"{family} {error:.1e}" for family, error in broken(row).items())
        print(f"BROKEN {row['problem']} {row['solver']}: normal {row['errors']['normal']:.1e}, {found}")
    print(f"{len(rows)} rows, {len(wrong)} break the contract; {time.monotonic() - begun:.0f} s")


if __name__ == "__main__":
    main()
