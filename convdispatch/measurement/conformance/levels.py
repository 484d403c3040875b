"""The cases: named ones in three lists beside this module, and generated ones; each level contains the lower ones.

``core`` is the forward convolution in 2-D with float32 data in NCHW, and one case of each other kind; ``training`` adds
the gradients; ``full`` adds ranks, layouts, dtypes, math and epilogues. ``accuracy`` is separate: each of its cases is
computed on every family of data. A solver may refuse any case with a reason, and must compute the others right.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.resources
from dataclasses import dataclass

from ...api.errors import InvalidArgument
from ...api.problem import DIRECTIONS, ConvProblem
from .. import shapes
from . import digests
from .space import blocks, problem_of

LEVELS = ("core", "training", "full", "accuracy")
"""The levels of the kit; each of the first three contains the levels before it, the last one only its own cases."""
VERSION = 14
"""The version of the case lists, which is raised with any change of a case. Only reports of equal version are
comparable."""
_LONG_SUFFIX = "!"


@dataclass(frozen=True)
class Case:
    """One problem that every solver of a plugin must refuse or compute."""

    name: str
    problem: ConvProblem
    level: str
    long: bool = False
    """Whether the case also runs the checks of queues, threads, order and a second plan."""


@functools.cache
def _level(level: str) -> tuple[Case, ...]:
    text = importlib.resources.files(__package__).joinpath(f"{level}.txt").read_text(encoding="utf-8")
    written = (
        line.replace("*", each) for line in text.splitlines() for each in (DIRECTIONS if line[:1] == "*" else "*")
    )
    listed = [
        Case(entry.name.rstrip(_LONG_SUFFIX), entry.problem, level, entry.name.endswith(_LONG_SUFFIX))
        for entry in shapes.parse("\n".join(written), f"{level}.txt")
    ]
    reproducible = digests.known() if level == "full" else ()
    return (*listed, *_generated(level), *(Case(text, ConvProblem.parse(text), level) for text in reproducible))


def _generated(level: str) -> list[Case]:
    cases_made = []
    for block in blocks():
        for name, row in block.named() if block.level == level else ():
            problem = problem_of(row)
            assert problem is not None  # A covering array holds only rows that are possible problems.
            cases_made.append(Case(name, problem, level))
    return cases_made


def cases(level: str = "full") -> list[Case]:
    """The cases of a level, those of the levels below it first. Raises InvalidArgument for an unknown level."""
    return [case for name in held(level) for case in _level(name)]


def held(level: str) -> tuple[str, ...]:
    """The levels whose cases a level contains. Raises InvalidArgument for an unknown level."""
    if level not in LEVELS:
        raise InvalidArgument(f"no level is named {level!r}; there are {', '.join(LEVELS)}")
    return ("accuracy",) if level == "accuracy" else LEVELS[: LEVELS.index(level) + 1]


def named(entries: list[shapes.Entry]) -> list[Case]:
    """A vendor's own problems as cases, with the long checks, of the level ``own``."""
    return [Case(entry.name, entry.problem, "own", True) for entry in entries]


def digest() -> str:
    """A hash of all cases, of 16 hexadecimal digits: kits with the same digest have the same cases."""
    text = "\n".join(f"{case.level} {case.name} {case.problem} {case.long}" for case in (*cases(), *cases("accuracy")))
    return hashlib.sha256(text.encode()).hexdigest()[:16]
