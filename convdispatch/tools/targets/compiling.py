"""Every solver's kernels for drawn problems, compiled for targets: a row for each solver and target.

A text is compiled once: results are cached on disk, so that a run that was interrupted continues where it was.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import statistics
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ALL_COMPLETED, FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import asdict, dataclass, field
from pathlib import Path

import platformdirs

from ...api.errors import InvalidProblem
from ...api.fault_text import words
from ...api.problem import DIRECTIONS, ConvProblem
from ...api.solver import Solver
from ...device.cache.artifact_store import key_of
from ...device.programs.binary_cache import read_file, write_file
from ...device.programs.kernels import rendering
from ...measurement import shapes
from ...measurement.conformance.levels import cases
from ...selection.solver_query import query
from ...selection.text_table import Table, columns
from .compilers import Compiled, Kernel, compiler, excess, identity
from .described import described_context, target_device

_FORM = b"convdispatch compiled for a target 2\n"
_VARIATIONS = [
    {"direction": direction, "dtype": dtype, "layout": layout}
    for direction in DIRECTIONS
    for dtype in ("float32", "float16", "bfloat16")
    for layout in ("nchw", "nhwc")
]


@dataclass
class Row:
    """What a solver's kernels use on a target."""

    target: str
    solver: str
    problems: int = 0
    refused: str | None = None
    """The reason of the first refusal."""
    kernels: list[Kernel] = field(default_factory=list)
    errors: dict[str, str] = field(default_factory=dict)
    """By problem: what the compiler or the planning said, or the limit that a kernel exceeds."""


def drawn() -> list[ConvProblem]:
    """The shape tables' problems, each in one of the directions, dtypes and layouts, and the kit's cases, in turns, in
    an order that a digest of their texts decides."""
    tables = {}
    for name in shapes.names():
        for entry in shapes.load(name):
            change = _VARIATIONS[_digest(entry.problem) % len(_VARIATIONS)]
            plain = {"bias": False, "residual": False, "activation": None}
            try:
                tables[entry.problem.replace(**change, **(plain if change["direction"] == "bwd_weights" else {}))] = (
                    None
                )
            except InvalidProblem:
                continue
    kit = dict.fromkeys(case.problem for case in cases())
    turns = itertools.zip_longest(sorted(tables, key=_digest), sorted(kit, key=_digest))
    return list(dict.fromkeys(problem for pair in turns for problem in pair if problem is not None))


def _digest(problem: ConvProblem) -> int:
    return int.from_bytes(hashlib.sha256(str(problem).encode()).digest()[:8], "big")


def compile_all(
    targets: Sequence[str],
    solvers: Sequence[Solver],
    problems: Sequence[ConvProblem],
    most: int,
    step: Callable[[str, int], None] = lambda words, advance: None,
) -> Iterator[Row]:
    """A row for each solver and target as it ends, of the first ``most`` problems that the solver takes on the target.

    Two texts are compiled at a time. Raises InvalidArgument for a target that this machine cannot compile for.
    """
    run, pool = {target: compiler(target) for target in targets}, ThreadPoolExecutor(2)
    try:
        for target, solver in itertools.product(targets, solvers):
            row, texts, waiting = Row(target, solver.name), set[str](), dict[Future[Compiled], ConvProblem]()
            for problem, text in _texts(row, solver, problems, most, step):
                if text not in texts:
                    texts.add(text)
                    waiting[pool.submit(_compiled, run[target], target, text)] = problem
                if len(waiting) > 8:
                    _collect(row, waiting, FIRST_COMPLETED)
            _collect(row, waiting, ALL_COMPLETED)
            yield row
    finally:
        pool.shutdown(wait=False, cancel_futures=True)  # What runs must not hold up the table of an interrupted run.


def _texts(
    row: Row, solver: Solver, problems: Sequence[ConvProblem], most_problems: int, step: Callable[[str, int], None]
) -> Iterator[tuple[ConvProblem, str]]:
    """The texts of the problems that the solver takes, with its first configuration."""
    info = target_device(row.target)
    for problem in problems:
        if row.problems == most_problems:
            break
        answers = query(solver, problem, info)
        if not answers.accepts:
            row.refused = row.refused or answers.refused or answers.fault
            continue
        row.problems += 1
        step(f"{row.target} {row.solver}", 1)
        try:
            with rendering() as texts:
                config = answers.default
                solver.plan(described_context(info), answers.shown(config), config)
        except Exception as error:
            row.errors[str(problem)] = f"planning: {words(error)}"
        for text in texts:
            yield problem, text if isinstance(text, str) else text.decode()
    step("", most_problems - row.problems)


def _collect(row: Row, waiting: dict[Future[Compiled], ConvProblem], until: str) -> None:
    ended, _ = wait(waiting, return_when=until)
    info = target_device(row.target)
    for future in ended:
        problem, compiled = str(waiting.pop(future)), future.result()
        row.kernels += compiled.kernels
        beyond = [excess(row.target, one, info.max_work_group_size, info.local_mem_size) for one in compiled.kernels]
        for sentence in filter(None, [compiled.error, *beyond]):
            row.errors.setdefault(problem, sentence)


def _compiled(run: Callable[[str, Path], Compiled], target: str, text: str) -> Compiled:
    """The compiler's result for a text, from the cache where it was compiled before."""
    folder = Path(platformdirs.user_cache_dir("convdispatch")) / "targets"
    path = folder / f"{key_of(target, identity(target), text)[:40]}.json"
    cached = read_file(path, _FORM)
    if cached is not None:
        values = json.loads(cached)
        return Compiled(values["error"], [Kernel(**kernel) for kernel in values["kernels"]])
    with tempfile.TemporaryDirectory(prefix="convdispatch-target-") as scratch:
        try:
            compiled = run(text, Path(scratch))
        except subprocess.TimeoutExpired as late:  # On a machine that is less busy it may end in time.
            return Compiled(f"{Path(late.cmd[0]).name} did not end in {late.timeout:.0f} s")
    write_file(path, _FORM, json.dumps(asdict(compiled)).encode())
    return compiled


def table(rows: Sequence[Row]) -> Table:
    """The rows that have problems: counts, and what their kernels use, the most and the median."""
    shown = Table(
        *columns("name", "target", "solver"),
        *columns("number", "problems", "kernels", "errors", "registers", "most", "with scratch", "most bytes"),
        *columns("number", "local KB", "occupancy", "least"),
    )
    for row in rows:
        kernels = row.kernels
        if row.problems:
            used = [kernel.registers for kernel in kernels] or [0]
            scratch = [kernel.scratch for kernel in kernels if kernel.scratch]
            filled = [kernel.occupancy for kernel in kernels] or [0.0]
            numbers = [row.problems, len(kernels), len(row.errors), round(statistics.median(used)), max(used)]
            numbers += [len(scratch), max(scratch, default=0)]
            local = max((kernel.local for kernel in kernels), default=0) / 1024
            share = (f"{local:.1f}", f"{statistics.median(filled):.0%}", f"{min(filled):.0%}")
            shown.add_row(row.target, row.solver, *map(str, numbers), *share)
    return shown


def markdown(shown: Table) -> str:
    """A table as Markdown."""
    heads = [column.title for column in shown.columns]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in [heads, ["---"] * len(heads), *shown.rows])
