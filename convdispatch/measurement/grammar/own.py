"""This project's own text: a problem on each line, with a name and a count: ``mb1ic3ih8oc4kh3  conv1 *2``."""

from __future__ import annotations

import re

from ...api.errors import InvalidProblem
from ...api.problem import ConvProblem
from ..shapes import Entry
from .limits import number

TRACE = "convdispatch,1,"
"""The beginning of each line that the trace layer writes."""
HEADER = "convdispatch,version,"
"""The beginning of a trace file's first line, which names the columns."""
_LINE = re.compile(r"(?P<problem>\S+)(?:\s+(?P<name>.*?))?(?:\s*\*\s*(?P<count>[0-9]+))?")
_TRACED = re.compile(r"(?:\([^()]*\)|[^,()])*")


def read_line(line: str) -> list[Entry]:
    """The problem of one line, or of one line of a trace. Raises InvalidProblem."""
    if line.startswith(HEADER):
        return []
    if line.startswith(TRACE):
        # The text ends at a comma outside parentheses, because an activation's parameters are separated by commas.
        text = _TRACED.match(line, len(TRACE))[0]
        return [Entry(text, ConvProblem.parse(text))]
    match = _LINE.fullmatch(line)
    if match is None:
        raise InvalidProblem(f"cannot read {line!r}; expected `problem  name *count`")
    problem = ConvProblem.parse(match["problem"])
    return [Entry(match["name"] or match["problem"], problem, number(match["count"] or "1"))]
