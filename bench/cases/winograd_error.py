"""Errors of minimal filtering by tile size and channels, beside the direct sum's: docs/results/accuracy.md.

    python -m bench winograd_error --solver 'winograd.f?x?' --channels 16,64,256,1024

Standard normal data, the norm of the difference from the float64 reference over the reference's norm; what ``rejects``
says of errors is passed over, for this is where it comes from. "plain" is one running float32 sum of the direct length.
"""

from __future__ import annotations

import fnmatch
import math
import re

import click
import numpy as np

from bench.results import markdown
from convdispatch.api import ConvDispatchError, ConvProblem, Solver
from convdispatch.device import runtime
from convdispatch.measurement import reference
from convdispatch.measurement.conformance.checks import Examination
from convdispatch.measurement.search.trialdata import random_operands
from convdispatch.selection.plugins.loader import plugins


def error_of(solver: Solver, problem: ConvProblem) -> float:
    """One run's relative error with the default configuration."""
    queue, operands = runtime.queue(), random_operands(problem, 0)
    config = next(iter(solver.configs(problem, runtime.device_info(queue.device))))
    got = Examination(solver, problem, config, None, queue).compute(operands)
    return reference.relative_error(got, reference.compute(problem, **operands))


def plain_error(length: int) -> float:
    """Of one running float32 sum of products, over 64 of them."""
    a, b = np.random.default_rng(length).standard_normal((2, 64, length), np.float32)
    got = np.cumsum(a * b, axis=1, dtype=np.float32)[:, -1]
    return reference.relative_error(got, (a.astype(np.float64) * b).sum(axis=1))


def shape(direction: str, m: int, r: int, axes: int, sum_of: int) -> ConvProblem:
    """A problem whose transformed elements sum so many products: over channels, or over tiles of dy."""
    size = 3 * m + r - 1
    kernel = f"kh{r}" if axes == 2 else f"kh1kw{r}"
    if direction == "bwd_weights":
        tiles = max(1, round(math.sqrt(sum_of) if axes == 2 else sum_of))
        side = tiles * m + r - 1
        return ConvProblem.parse(f"bwd_weights_mb1ic16ih{side if axes == 2 else 1}iw{side}oc32{kernel}")
    channels, other = ("oc", "ic") if direction == "bwd_data" else ("ic", "oc")
    return ConvProblem.parse(f"{direction}_mb1{channels}{sum_of}ih{size}iw{size}{other}32{kernel}")


@click.command(help=__doc__)
@click.option("--solver", "glob", default="winograd.f?x?", show_default=True)
@click.option("--channels", default="16,64,256,1024", show_default=True, help="products that an element sums")
@click.option("--directions", default="fwd,bwd_weights", show_default=True)
def main(glob: str, channels: str, directions: str) -> None:
    counts = [int(text) for text in channels.split(",")]
    names = [name for name in plugins().solvers if fnmatch.fnmatch(name, glob) and re.search(r"f\d+x\d+$", name)]
    for direction in directions.split(","):
        for axes in (2, 1):
            print(f"\n{direction}, kernel along {axes} {'axes' if axes == 2 else 'axis'}\n")
            lines = []
            lengths: dict[int, list[str]] = {}
            for name in names:
                m, r = map(int, re.findall(r"f(\d+)x(\d+)$", name)[0])
                rates, cells = [], []
                for count in counts:
                    problem = shape(direction, m, r, axes, count)
                    try:
                        error = error_of(plugins().solvers[name], problem)
                    except ConvDispatchError as problem_of_it:
                        cells.append(str(problem_of_it)[:20])
                        continue
                    cells.append(f"{error:.1e}")
                    rates.append(error / math.sqrt(count))
                rate = f"{max(rates[1:] or rates):.1e}" if rates else ""
                lines.append([name, *cells, rate])
                taps = r**axes if direction != "bwd_weights" else m**axes
                lengths.setdefault(taps, [f"{plain_error(count * taps):.1e}" for count in counts])
            lines += [[f"plain, {taps} times as many", *cells, ""] for taps, cells in lengths.items()]
            print(markdown(["solver", *counts, "over the root"], lines), flush=True)


if __name__ == "__main__":
    main()
