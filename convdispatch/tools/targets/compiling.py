"""Every solver's kernels for drawn problems, compiled for targets: a row for each solver and target.

All problems are planned first. Then the rows' texts are compiled in turns, in an order that a digest decides, so that
a run that ends early has compiled as many texts of each row: first one text of each structure, by which texts that are
equal but for their numbers have the same one, then the others. A text is compiled once: results are cached on disk, so
that a run that was interrupted continues where it was.
"""

from __future__ import annotations

import hashlib
import itertools
import random
import re
import statistics
import tempfile
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ALL_COMPLETED, FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import NamedTuple

from ...api.errors import InvalidProblem
from ...api.fault_text import words
from ...api.problem import DIRECTIONS, ConvProblem
from ...api.solver import Solver
from ...device.cache.keys import key_of
from ...device.cache.store import TARGETS
from ...device.programs.kernels import for_device, rendering
from ...measurement import shapes
from ...measurement.conformance.levels import cases
from ...selection.solver_query import SolverAnswers, query
from ...selection.text_table import Table, columns
from .compilers import Compiled, Kernel, compiler, excess, identity
from .described import described_context, target_device

_NUMBER = re.compile(rb"-?(?<![\w.])\d[\w.]*(?:(?<=[ep])[-+]\d+f?)?")
MAX_VARIANTS = 40
"""Variants of a problem that a solver takes, of which fewer were drawn than are wanted."""
_VARIATIONS = [
    {"direction": direction, "dtype": dtype, "layout": layout}
    for direction in DIRECTIONS
    for dtype in ("float32", "float16", "bfloat16")
    for layout in ("nchw", "nhwc")
]


@dataclass
class Row:
    """What a solver's kernels use on a target.

    ``texts`` counts the distinct texts of the problems' kernels, ``compiled`` those that were compiled or failed to,
    ``structures`` the texts that differ in more than their numbers, ``reached`` the structures of which a text was
    compiled. ``refused`` is the reason of the first refusal; ``errors`` say by problem what the compiler or the
    planning said, or the limit that a kernel exceeds; ``worst`` is the kernel with most scratch memory, without any
    the one of least occupancy, after its problem.
    """

    target: str
    solver: str
    problems: int = 0
    texts: int = 0
    compiled: int = 0
    structures: int = 0
    reached: int = 0
    refused: str | None = None
    kernels: list[Kernel] = field(default_factory=list)
    errors: dict[str, str] = field(default_factory=dict)
    worst: tuple[str, Kernel] | None = None


class Text(NamedTuple):
    """A kernel text that is to be compiled, compressed, because tens of thousands are planned, and its problem."""

    repeats: bool
    """Whether another text of the row, which comes before, has the same structure."""
    digest: bytes
    packed: bytes
    problem: str


_Place = tuple[Row, Text]
"""A text, and the row that it belongs to."""


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


def variants(problems: Sequence[ConvProblem]) -> Iterator[ConvProblem]:
    """The problems with other batches, image sizes, layouts and float dtypes, by seeds that their texts give."""
    seen = set(problems)
    for number, problem in itertools.product(range(MAX_VARIANTS), problems):
        source = random.Random(f"{problem} {number}")
        floats = ("float32", "float16", "bfloat16") if problem.dtype in ("float32", "float16", "bfloat16") else ()
        change = {
            "mb": source.choice((1, 2, 8, problem.mb)),
            "layout": source.choice(("nchw", "nhwc")),
            "dtype": source.choice((*floats, problem.dtype)),
        }
        for axis in ("id", "ih", "iw")[3 - problem.ndim :]:
            size = getattr(problem, axis)
            change[axis] = source.choice((size, max(size // 2, 1), size + source.randrange(1, 8), 2 * size))
        try:
            variant = problem.replace(**change)
        except InvalidProblem:
            continue
        if variant not in seen:
            seen.add(variant)
            yield variant


def _digest(problem: ConvProblem) -> int:
    return int.from_bytes(hashlib.sha256(str(problem).encode()).digest()[:8], "big")


def plan_all(
    targets: Sequence[str],
    solvers: Sequence[Solver],
    problems: Sequence[ConvProblem] | None,
    most: int,
    step: Callable[[str, int], None] = lambda words, advance: None,
) -> Iterator[tuple[Row, list[Text]]]:
    """A row and its distinct texts for each solver and target, of the first ``most`` problems that the solver takes.

    Without ``problems`` they are drawn, and those of a solver that takes fewer are varied.
    """
    own = drawn() if problems is None else problems
    for target, solver in itertools.product(targets, solvers):
        row, texts, structures = Row(target, solver.name), dict[bytes, Text](), dict[bytes, bytes]()
        taken = _taken(row, solver, own, problems is None)
        for answers in itertools.islice(taken, most):
            row.problems += 1
            for text in _texts(row, solver, answers):
                digest = hashlib.sha256(text).digest()
                if digest not in texts:
                    texts[digest] = Text(True, digest, zlib.compress(text, 1), str(answers.problem))
                    structure = structure_of(text)
                    structures[structure] = min(digest, structures.get(structure, digest))
            step(f"planning for {target}: {solver.name}", 1)
        row.texts, row.structures = len(texts), len(structures)
        step("", most - row.problems)
        firsts = set(structures.values())
        yield row, sorted(text._replace(repeats=text.digest not in firsts) for text in texts.values())


def structure_of(text: bytes) -> bytes:
    """A digest of the text without its numbers."""
    return hashlib.sha256(_NUMBER.sub(b"0", text)).digest()


def _taken(row: Row, solver: Solver, problems: Sequence[ConvProblem], varied: bool) -> Iterator[SolverAnswers]:
    """The solver's answers for those of the problems, and of their variants, that it takes on the row's target."""
    info, taken = target_device(row.target), list[ConvProblem]()
    for problem in problems:
        answers = query(solver, problem, info)
        if answers.accepts:
            taken.append(problem)
            yield answers
        else:
            row.refused = row.refused or answers.refused or answers.fault
    if varied:
        yield from (answers for problem in variants(taken) if (answers := query(solver, problem, info)).accepts)


def _texts(row: Row, solver: Solver, answers: SolverAnswers) -> Iterator[bytes]:
    """The texts of a problem's kernels in the solver's first configuration."""
    try:
        with rendering() as texts:
            config = answers.default
            solver.plan(described_context(target_device(row.target)), answers.shown(config), config)
    except Exception as error:
        row.errors[str(answers.problem)] = f"planning: {words(error)}"
    info = target_device(row.target)
    return (for_device(text, info).encode() if isinstance(text, str) else text for text in texts)


def compile_all(
    planned: Sequence[tuple[Row, list[Text]]],
    until: float | None = None,
    step: Callable[[str, int], None] = lambda words, advance: None,
) -> None:
    """Compile texts of the rows in turns, two compilers at a time, until all are or ``time.monotonic()`` is ``until``.

    Raises InvalidArgument for a target that this machine cannot compile for.
    """
    run = {target: compiler(target) for target in dict.fromkeys(row.target for row, _ in planned)}
    pool, waiting = ThreadPoolExecutor(2), dict[Future[Compiled], _Place]()
    try:
        for row, text in _in_turns(planned):
            if until is not None and time.monotonic() >= until:
                break
            waiting[pool.submit(_compiled, run[row.target], row.target, text.packed)] = row, text
            if len(waiting) > 4:
                _collect(waiting, FIRST_COMPLETED, step)
        _collect(waiting, ALL_COMPLETED, step)
    finally:
        pool.shutdown(wait=False, cancel_futures=True)  # What runs must not hold up the table of an interrupted run.


def _in_turns(planned: Sequence[tuple[Row, list[Text]]]) -> Iterator[_Place]:
    """The texts in the order in which they are compiled: one of each row before another one of any row."""
    for repeats in (False, True):
        chosen = [(row, [text for text in texts if text.repeats == repeats]) for row, texts in planned]
        for turn in range(max((len(texts) for _, texts in chosen), default=0)):
            yield from ((row, texts[turn]) for row, texts in chosen if turn < len(texts))


def _collect(waiting: dict[Future[Compiled], _Place], until: str, step: Callable[[str, int], None]) -> None:
    ended, _ = wait(waiting, return_when=until)
    for future in ended:
        row, text = waiting.pop(future)
        step(f"{row.target} {row.solver}", 1)
        _count(row, text, future.result())


def _count(row: Row, text: Text, compiled: Compiled) -> None:
    """Add a text's kernels, or its error, to its row."""
    info, problem = target_device(row.target), text.problem
    row.compiled += 1
    row.reached += not text.repeats
    row.kernels += compiled.kernels
    for kernel in compiled.kernels:
        if row.worst is None or _badness(problem, kernel) > _badness(*row.worst):
            row.worst = problem, kernel
    beyond = [excess(row.target, one, info.max_work_group_size, info.local_mem_size) for one in compiled.kernels]
    for sentence in filter(None, [compiled.error, *beyond]):
        row.errors.setdefault(problem, sentence)


def _badness(problem: str, kernel: Kernel) -> tuple[int, float, int, str, str]:
    """The order of what kernels use; names decide between equals, because texts end in any order."""
    return kernel.scratch, -kernel.occupancy, kernel.registers, problem, kernel.name


def _compiled(run: Callable[[str, Path], Compiled], target: str, packed: bytes) -> Compiled:
    """The compiler's result for a compressed text, from the cache where it was compiled before."""
    text = zlib.decompress(packed).decode()
    key = key_of(target, identity(target), text)
    value = TARGETS.get(key)
    if value is not None:
        return Compiled(value["error"], [Kernel(**kernel) for kernel in value["kernels"]])
    with tempfile.TemporaryDirectory(prefix="convdispatch-target-") as scratch:
        result = run(text, Path(scratch))
    if not result.late:
        TARGETS.put(key, asdict(result), target)
    return result


def table(rows: Sequence[Row]) -> Table:
    """A line for each row that has problems, and one for all of a target's: counts, and what kernels use."""
    shown = Table(
        *columns("name", "target", "solver"),
        *columns("number", "problems", "texts", "compiled", "structures", "reached", "kernels", "errors"),
        *columns("number", "registers", "most", "with scratch", "most bytes", "local KB", "occupancy", "least"),
    )
    for target, of_target in itertools.groupby((row for row in rows if row.problems), lambda row: row.target):
        joined = list(of_target)
        for row in joined:
            shown.add_row(target, row.solver, *_numbers([row]))
        if len(joined) > 1:
            shown.add_row(target, "all", *_numbers(joined))
    return shown


def _numbers(rows: Sequence[Row]) -> list[str]:
    kernels = [kernel for row in rows for kernel in row.kernels]
    used = [kernel.registers for kernel in kernels] or [0]
    scratch = [kernel.scratch for kernel in kernels if kernel.scratch]
    filled = [kernel.occupancy for kernel in kernels] or [0.0]
    counts = [
        sum(getattr(row, name) for row in rows) for name in ("problems", "texts", "compiled", "structures", "reached")
    ]
    counts += [len(kernels), sum(len(row.errors) for row in rows), round(statistics.median(used)), max(used)]
    counts += [len(scratch), max(scratch, default=0)]
    local = max((kernel.local for kernel in kernels), default=0) / 1024
    return [*map(str, counts), f"{local:.1f}", f"{statistics.median(filled):.0%}", f"{min(filled):.0%}"]


def worst(rows: Sequence[Row], most: int = 20) -> Table:
    """The rows whose kernels use most scratch memory, each with that kernel and its problem."""
    shown = Table(
        *columns("name", "target", "solver", "kernel"),
        *columns("number", "scratch bytes", "registers", "local KB", "occupancy"),
        *columns("sentence", "problem"),
    )
    spilling = [(row, *row.worst) for row in rows if row.worst is not None and row.worst[1].scratch]
    for row, problem, kernel in sorted(spilling, key=lambda place: _badness(*place[1:]), reverse=True)[:most]:
        numbers = (str(kernel.scratch), str(kernel.registers), f"{kernel.local / 1024:.1f}", f"{kernel.occupancy:.0%}")
        shown.add_row(row.target, row.solver, kernel.name, *numbers, problem)
    return shown


def markdown(shown: Table) -> str:
    """A table as Markdown."""
    heads = [column.title for column in shown.columns]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in [heads, ["---"] * len(heads), *shown.rows])
