"""Shape tables: reads ``<name>.txt`` beside this module into named problems.

A line is ``problem  name *count``: the problem in ConvProblem's own text, then optionally a name and how often a net
runs the layer. ``#`` begins a comment. A line without a name is named by its text.
"""

from __future__ import annotations

import functools
import importlib.resources
import re
from typing import NamedTuple

from ...api.errors import InvalidArgument, InvalidProblem
from ...api.problem import ConvProblem

__all__ = ["Entry", "load", "names", "parse"]


class Entry(NamedTuple):
    """One line of a table."""

    name: str
    problem: ConvProblem
    count: int = 1
    """The number of times that the layer occurs in its net."""


def names() -> list[str]:
    """The names of all tables, sorted."""
    files = importlib.resources.files(__name__).iterdir()
    return sorted(file.name.removesuffix(".txt") for file in files if file.name.endswith(".txt"))


@functools.cache
def _load(name: str) -> tuple[Entry, ...]:
    if name not in names():
        raise InvalidArgument(f"no shape table is named {name!r}; there are {', '.join(names())}")
    text = importlib.resources.files(__name__).joinpath(f"{name}.txt").read_text(encoding="utf-8")
    return tuple(parse(text, f"{name}.txt"))


def load(name: str) -> list[Entry]:
    """The entries of a table. Raises InvalidArgument for an unknown name, and what ``parse`` raises."""
    return list(_load(name))


def parse(text: str, source: str = "<text>") -> list[Entry]:
    """Read a table's text. Raises InvalidProblem, with source and line, for an invalid line or a repeated name."""
    entries: list[Entry] = []
    line_of: dict[str, int] = {}
    for number, line in enumerate(text.splitlines(), 1):
        line = line.split("#")[0].strip()
        if not line:
            continue
        match = re.fullmatch(r"(\S+)(?:\s+(?!\*)(\S+))?(?:\s+\*(\d+))?", line)
        if match is None:
            raise InvalidProblem(f"{source}:{number}: expected 'problem name *count', got {line!r}")
        try:
            problem = ConvProblem.parse(match[1])
            if len(match[3] or "") > 18:
                raise InvalidProblem(f"a count of {len(match[3])} digits")
        except InvalidProblem as error:
            raise InvalidProblem(f"{source}:{number}: {error}") from None
        name = match[2] or match[1]
        if name in line_of:
            raise InvalidProblem(f"{source}:{number}: {name!r} is named on line {line_of[name]} already")
        line_of[name] = number
        entries.append(Entry(name, problem, int(match[3] or 1)))
    return entries
