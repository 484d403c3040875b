"""Errors against float64 beside cuDNN's, on the same inputs: what each math mode costs in accuracy.

    python bench/nvidia_errors.py [--family NAME]... [--jobs N]

Every solver's first configuration of each format, and every engine that cuDNN has for float32 without tensor cores,
whether its heuristics name it or not, computes each layer on data of each family (``families.py``). Whole results are
compared, plane by plane; the figure is the root mean square of the planes' errors.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import click
import numpy as np
import pyopencl as cl
from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).resolve().parent))
from farm import Lost, farm

from convdispatch.api import ConvProblem
from convdispatch.api.problem import DIRECTIONS
from convdispatch.measurement.search.families import draw, plane_errors
from convdispatch.selection.plugins.loader import plugins

LAYERS = [
    "mb16ic3ih224iw224oc64kh7kw7sh2sw2ph3pw3",
    "mb16ic64ih56iw56oc64kh3kw3ph1pw1",
    "mb16ic256ih28iw28oc256kh3kw3ph1pw1",
    "mb16ic512ih14iw14oc512kh3kw3ph1pw1",
    "mb16ic512ih7iw7oc512kh3kw3ph1pw1",
    "mb16ic64ih27iw27oc192kh5kw5ph2pw2",
    "mb16ic128ih28iw28oc128kh3kw3sh2sw2ph1pw1",
    "mb16ic64ih56iw56oc256kh1kw1",
    "mb16ic1024ih14iw14oc256kh1kw1",
    "mb16ic2048ih7iw7oc512kh1kw1",
]
COLUMNS = ("nvidia ieee", "nvidia float32", "portable ieee", "portable float32", "cudnn", "cudnn winograd")
PORTABLE = ("winograd.", "fft.", "implicitgemm.")
_WORKER: dict = {}


def _begin(names: tuple[str, ...]) -> None:
    from nvidia_values import Bench

    _WORKER.update(bench=Bench("float32", 60_000_000), families=names)


def _first_of_each_format(solver, problem: ConvProblem, info):
    """Configurations, the first of each format: the one that costs choose leads."""
    seen = set()
    for config in solver.configs(problem, info):
        if config.get("format") not in seen:
            seen.add(config.get("format"))
            yield config


def _plans(problem: ConvProblem):
    """(column, name, plan) of every solver and engine."""
    from convdispatch_cudnn.graph import candidates, engines, transforms_tiles
    from convdispatch_cudnn.plan import making

    bench = _WORKER["bench"]
    for math in ("ieee", "float32"):
        request = problem.replace(math=math)
        for name, solver in plugins().solvers.items():
            owner = "nvidia" if name.startswith("nvidia.") else "portable" if name.startswith(PORTABLE) else None
            if owner and not solver.rejects(request, bench.info):
                for config in _first_of_each_format(solver, request, bench.info):
                    shown = " ".join((name, config.get("format", ""))).strip()
                    yield f"{owner} {math}", shown, solver.plan(bench.context, request, config)
    cudnn = plugins().solvers["cudnn.convolution"]
    if cudnn.rejects(problem, bench.info):
        return
    with making(bench.device) as handle:
        offered = candidates(problem, handle)
        named = {candidate.engine for candidate in offered}
        offered += [candidate for candidate in engines(problem, handle) if candidate.engine not in named]
    for candidate in offered:
        try:
            plan = cudnn.plan(bench.context, problem, candidate.config)
        except Exception:  # an engine that the heuristics name and that makes no plan
            continue
        column = "cudnn winograd" if transforms_tiles(problem, candidate) else "cudnn"
        yield column, f"engine {candidate.engine}", plan


def _errors(problem: ConvProblem) -> dict[str, dict[str, list[tuple[float, float, str]]]]:
    """By family and column: root mean square and largest of the planes' errors, and what made them."""
    bench = _WORKER["bench"]
    bench.load(problem)
    made, exact = list(_plans(problem)), bench.exact.plan(problem)
    found: dict[str, dict] = {}
    for family in _WORKER["families"]:
        columns = found[family] = {column: [] for column in COLUMNS}
        for name, array in draw(family, problem).items():
            cl.enqueue_copy(bench.queue, bench.memory[name], array)
        wide = [bench.exact.expected(problem, exact, bench.memory, square) for square in (False, True)]
        expected, squares = (_read(bench, buffer, np.float64) for buffer in wide)
        for column, name, plan in made:
            cl.enqueue_fill_buffer(bench.queue, bench.out, np.uint8(0xFF), 0, expected.size * 4)
            bench.enqueue(plan).wait()
            got = _read(bench, bench.out, np.float32)
            planes = plane_errors(problem, got, expected, np.sqrt(squares))
            columns[column].append((float(np.sqrt((planes**2).mean())), float(planes.max()), name))
    return found


def _read(bench, buffer, dtype) -> np.ndarray:
    out = np.empty(bench.problem.out_shape, dtype)
    cl.enqueue_copy(bench.queue, out, buffer)
    return out


def _cell(errors: list) -> str:
    return f"{min(errors)[0]:.1e} {max(errors)[0]:.1e} ({len(errors)})" if errors else ""


@click.command()
@click.option("--family", "names", multiple=True, default=("normal", "scaled"), show_default=True)
@click.option("--jobs", default=10, show_default=True)
@click.option("--budget", default=120.0, show_default=True, help="Seconds after which no result is awaited.")
def main(names: tuple[str, ...], jobs: int, budget: float) -> None:
    """Print the least and the largest error of each column by family, layer and direction."""
    problems = [ConvProblem.parse(f"{direction}_f32_{text}") for direction in DIRECTIONS[::-1] for text in LAYERS]
    console, rows = Console(width=230), {}
    until = time.monotonic() + budget
    for done in farm(jobs, _begin, (names,), _named, problems, until=until, task_s=budget):
        if isinstance(done, Lost):
            console.print(f"lost {done.task}: {done.why}")
        else:
            rows[done[0]] = done[1]
    if os.environ.get("OUT"):
        Path(os.environ["OUT"], "errors.json").write_text(json.dumps(rows))
    for family in names:
        table = Table(title=f"{family}: least and largest of the solvers or engines (how many)")
        for heading in ("problem", *COLUMNS, "nvidia's largest, ieee", "float32"):
            table.add_column(heading, no_wrap=True)
        for problem in map(str, problems):
            if problem in rows:
                row = rows[problem][family]
                largest = [max(row[column], default=("", "", ""))[2].removeprefix("nvidia.") for column in COLUMNS[:2]]
                table.add_row(problem, *(_cell(row[column]) for column in COLUMNS), *largest)
        console.print(table)


def _named(problem: ConvProblem) -> tuple[str, dict]:
    return str(problem), _errors(problem)


if __name__ == "__main__":
    main()
