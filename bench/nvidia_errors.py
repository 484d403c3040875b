"""Errors against float64 beside cuDNN's, on the same inputs: what each math mode costs in accuracy.

    python bench/nvidia_errors.py [--samples N] [--jobs N]

Every solver's first configuration, and every engine that cuDNN has for float32 without tensor cores, whether its
heuristics name it or not, computes each layer; the figure is the largest difference over sampled elements, over the
largest expected value.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).resolve().parent))
from farm import Lost, farm

from convdispatch.api import ConvProblem
from convdispatch.api.problem import DIRECTIONS
from convdispatch.loader import plugins

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
OURS = ("nvidia.", "winograd.", "fft.", "implicitgemm.")
_WORKER: dict = {}


def _begin(samples: int) -> None:
    from gpu import Ours

    _WORKER.update(bench=Ours(), samples=samples)


def _errors(problem: ConvProblem) -> dict[str, list[tuple[float, str]]]:
    """By column: errors and what made them."""
    from convdispatch_cudnn.graph import candidates, engines, transforms_tiles
    from convdispatch_cudnn.plan import making

    bench, samples = _WORKER["bench"], _WORKER["samples"]
    bench.load(problem)
    found: dict[str, list[tuple[float, str]]] = {"ieee": [], "float32": [], "cudnn": [], "cudnn winograd": []}

    def measure(column: str, name: str, plan) -> None:
        found[column].append((bench.error(plan, problem, samples), name))

    for math in ("ieee", "float32"):
        asked = problem.replace(math=math)
        for name, solver in plugins().solvers.items():
            if name.startswith(OURS) and not solver.rejects(asked, bench.info):
                config = next(iter(solver.configs(asked, bench.info)))
                measure(math, name, solver.plan(bench.context, asked, config))
    cudnn = plugins().solvers["cudnn.convolution"]
    with making(bench.device) as handle:
        offered = candidates(problem, handle)
        named = {candidate.engine for candidate in offered}
        offered += [candidate for candidate in engines(problem, handle) if candidate.engine not in named]
    for candidate in offered:
        try:
            plan = cudnn.plan(bench.context, problem, candidate.config)
        except Exception:  # an engine that the heuristics name and that makes no plan
            continue
        measure(
            "cudnn winograd" if transforms_tiles(problem, candidate) else "cudnn", f"engine {candidate.engine}", plan
        )
    return found


@click.command()
@click.option("--samples", default=256, show_default=True)
@click.option("--jobs", default=10, show_default=True)
@click.option("--budget", default=120.0, show_default=True, help="Seconds after which no result is awaited.")
def main(samples: int, jobs: int, budget: float) -> None:
    """Print the least and the largest error of each column by layer and direction."""
    problems = [ConvProblem.parse(f"{direction}_f32_{text}") for text in LAYERS for direction in DIRECTIONS]
    console, rows = Console(width=200), {}
    for done in farm(jobs, _begin, (samples,), _named, problems, until=time.monotonic() + budget):
        if isinstance(done, Lost):
            console.print(f"lost {done.task}: {done.why}")
        else:
            rows[done[0]] = done[1]
    columns = ("ieee", "float32", "cudnn", "cudnn winograd")
    table = Table(title="largest difference over largest value, least and largest of the solvers or engines")
    for heading in ("problem", *columns, "largest of ours, float32"):
        table.add_column(heading, no_wrap=True)
    for problem in map(str, problems):
        if problem in rows:
            row = rows[problem]
            cells = [f"{min(row[c])[0]:.1e} {max(row[c])[0]:.1e} ({len(row[c])})" if row[c] else "" for c in columns]
            table.add_row(problem, *cells, max(row["float32"])[1])
    console.print(table)


def _named(problem: ConvProblem) -> tuple[str, dict]:
    return str(problem), _errors(problem)


if __name__ == "__main__":
    main()
