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

_MAX_DIGITS = 18
_LINE = re.compile(r"(?P<problem>\S+)(?:\s+(?P<name>.*?))?(?:\s*\*\s*(?P<count>[0-9]+))?")


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
def load(name: str) -> tuple[Entry, ...]:
    """The entries of a table. Raises InvalidArgument for an unknown name, and what ``parse`` raises."""
    if name not in names():
        raise InvalidArgument(f"no shape table is named {name!r}; there are {', '.join(names())}")
    text = importlib.resources.files(__name__).joinpath(f"{name}.txt").read_text(encoding="utf-8")
    return tuple(parse(text, f"{name}.txt"))


def number(digits: str) -> int:
    """The number with these digits. Raises InvalidProblem for more digits than a size can have."""
    if len(digits) > _MAX_DIGITS:
        raise InvalidProblem(f"a number has {len(digits)} digits, at most {_MAX_DIGITS} are read")
    return int(digits)


def read_line(line: str) -> Entry:
    """The entry of one line. Raises InvalidProblem."""
    match = _LINE.fullmatch(line)
    if match is None:
        raise InvalidProblem(f"cannot read {line!r}; expected `problem  name *count`")
    problem = ConvProblem.parse(match["problem"])
    return Entry(match["name"] or match["problem"], problem, number(match["count"] or "1"))


def parse(text: str, source: str = "<text>") -> list[Entry]:
    """Read a table's text. Raises InvalidProblem, with source and line, for an invalid line or a repeated name."""
    entries: list[Entry] = []
    line_of: dict[str, int] = {}
    for at, line in enumerate(text.splitlines(), 1):
        line = line.split("#")[0].strip()
        if not line:
            continue
        try:
            entry = read_line(line)
            if " " in entry.name:
                raise InvalidProblem(f"expected a name of one word, got {entry.name!r}")
            if entry.name in line_of:
                raise InvalidProblem(f"{entry.name!r} is named on line {line_of[entry.name]} already")
        except InvalidProblem as error:
            raise InvalidProblem(f"{source}:{at}: {error}") from None
        line_of[entry.name] = at
        entries.append(entry)
    return entries
