"""Chooses the usual tiles for drawn layers, and writes ``usual.py`` of the nvidia plugin.

    python tests/support/usual_tiles.py

The next tile of a kind is the one that lowers the predicted time of the drawn layers most, where a layer takes the best
tile chosen so far that is within ``ACCEPTED`` of its own best one, and otherwise ``UNSERVED`` of its time.
"""

from __future__ import annotations

import collections
import itertools
import math
import multiprocessing
import re
import textwrap
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import paths  # noqa: F401 (bench is found then)
from convdispatch_nvidia import usual
from convdispatch_nvidia.packed import choice as packed
from convdispatch_nvidia.packed.solver import TensorCores
from convdispatch_nvidia.tma import choice as tma
from convdispatch_nvidia.tma.solver import Tma

from bench.drawn import drawn
from convdispatch.api import ConvProblem
from convdispatch.api.matrix import FORMATS, formats
from convdispatch.api.problem import DIRECTIONS
from convdispatch.device.matrix_tiles.configured import ACCEPTED
from convdispatch.tools.targets.described import DESCRIBED

UNSERVED = 1.3
"""Time, relative to its best tile's, of a layer that no usual tile serves; larger numbers favour rare layers."""
SEED = 7
H200 = DESCRIBED["h200"]
FORMS = {
    "float16": {"dtype": "float16"},
    "tf32": {"dtype": "float32", "math": "tf32"},
    "float32": {"dtype": "float32"},
}
KERNELS = {"wgmma": (800, 64), "mma": (400, 16), "tma": (250, 24)}
"""Layers that are drawn for a kernel, and the most tiles of a kind."""


def layers(count: int, **form: str) -> Iterator[ConvProblem]:
    """Drawn layers in three directions; of kernels other than 1x1 and 3x3 one in four."""
    for number, drawn_layer in enumerate(itertools.islice(drawn("gpu", "half", SEED), count)):
        kernel = {getattr(drawn_layer, "k" + axis) for axis in drawn_layer.axes}
        if (drawn_layer.g == 1 and kernel in ({1}, {3})) or number % 4 == 0:
            for direction in DIRECTIONS:
                if direction != "bwd_data" or drawn_layer.ic > 4:
                    yield drawn_layer.replace(direction=direction, **form)


def rated(kernel: str, problem: ConvProblem) -> tuple[str, Mapping[str, float]]:
    """The problem's kind, and the least predicted seconds of each tile's name."""
    units, names = H200.compute_units, {}
    if kernel in ("wgmma", "mma"):
        name = formats(problem)[0]
        bases, kinds, numbers, costs = packed.rated(problem, kernel, name, units)
        tiles = zip(kinds.tolist(), numbers.tolist(), costs.tolist(), strict=True)
        named = ((packed.name_of(bases[base], row, problem), cost) for base, row, cost in tiles)
        kind = f"{kernel} {FORMATS[name].name} {problem.layout}"
    else:
        shared, rows, seconds = tma.rated(problem, units)
        named = zip(map(tma.name_of, map(tma.tile_of, shared, rows)), seconds.tolist(), strict=True)
        kind = f"tma {problem.direction} {problem.itemsize}"
    for name, cost in named:
        names.setdefault(name, cost)
    return kind, names


def choose(rows: list[Mapping[str, float]], most: int) -> list[str]:
    """Names of usual tiles, the most usual one first."""
    names = sorted({name for row in rows for name in row if name})
    places, unserved = {name: place for place, name in enumerate(names)}, math.log(UNSERVED)
    logs = np.full((len(rows), len(names)), unserved)
    for number, row in enumerate(rows):
        best = min(row.values())
        for name, cost in row.items():
            if name and cost <= ACCEPTED * best:
                logs[number, places[name]] = math.log(cost / best)
    served, chosen = np.full((len(rows), 1), unserved), []
    while len(chosen) < most:
        gains = np.maximum(served - logs, 0).sum(axis=0)
        place = int(gains.argmax())
        if gains[place] <= 0:
            break
        chosen.append(names[place])
        served = np.minimum(served, logs[:, place : place + 1])
    return chosen


def kinds(kernel: str, form: Mapping[str, Any]) -> dict[str, str]:
    """The usual tiles of each kind of a kernel's problems of a form."""
    solvers: dict[str, Any] = {"tma": Tma}
    limits = solvers.get(kernel, lambda: TensorCores(kernel))().limits
    count, most = KERNELS[kernel]
    rows = collections.defaultdict(list)
    for problem in layers(count, **form):
        if limits(problem, H200) is None:
            kind, names = rated(kernel, problem)
            if names:
                rows[kind].append(names)
    return {kind: " ".join(choose(of_kind, most)) for kind, of_kind in rows.items()}


def main() -> None:
    layouts = {"tma": ("nhwc",)}
    work = [
        (kernel, {**form, "layout": layout})
        for kernel in KERNELS
        for name, form in FORMS.items()
        for layout in layouts.get(kernel, ("nchw", "nhwc"))
        if (kernel, name) != ("tma", "float32")
    ]
    with multiprocessing.Pool(8) as pool:
        found: dict[str, str] = {}
        for each in pool.starmap(kinds, work, chunksize=1):
            found |= each
    write(usual, found)


def write(module: Any, found: Mapping[str, str]) -> None:
    """Write the names of each kind into a module."""
    lines = ["USUAL: dict[str, str] = {\n"]
    for kind, names in sorted(found.items()):
        lines += [f'    "{kind}": """\n', textwrap.fill(names, 116, initial_indent=" " * 8, subsequent_indent=" " * 8)]
        lines.append('\n    """,\n')
    path = Path(module.__file__)
    text = path.read_text(encoding="utf-8")
    path.write_text(re.sub(r"USUAL: .*?^\}|USUAL: .*?\{\}", "".join(lines) + "}", text, flags=re.S | re.M), "utf-8")


if __name__ == "__main__":
    main()
