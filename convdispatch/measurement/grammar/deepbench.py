"""DeepBench's tuples: ``(w, h, c, n, k, filter_w, filter_h, pad_w, pad_h, stride_w, stride_h)``, forward and 2-D."""

from __future__ import annotations

import re
from collections.abc import Sequence

from ...api.errors import InvalidProblem
from ...api.problem import ConvProblem
from ..shapes import Entry, number

FIELDS = ("iw", "ih", "ic", "mb", "oc", "kw", "kh", "pw", "ph", "sw", "sh")
TEXT = re.compile(r"(?:std::make_tuple|make_tuple)?\s*[({\[]?\s*([0-9]+(?:\s*[,\s]\s*[0-9]+){10})\s*[)}\]]?\s*[,;]?")
"""A DeepBench problem: a tuple in C++ or Python syntax, or eleven plain numbers."""


def read_tuple(numbers: Sequence[int]) -> ConvProblem:
    """The problem of eleven numbers. Raises InvalidProblem."""
    if len(numbers) != len(FIELDS):
        raise InvalidProblem(f"a DeepBench tuple has 11 numbers ({', '.join(FIELDS)}), got {len(numbers)}: {numbers!r}")
    return ConvProblem(ndim=2, **dict(zip(FIELDS, numbers)))


def read_line(line: str) -> list[Entry]:
    """The problem of one tuple. Raises InvalidProblem."""
    match = TEXT.fullmatch(line)
    if match is None:
        raise InvalidProblem(f"cannot read {line!r}; expected a tuple ({', '.join(FIELDS)})")
    problem = read_tuple([number(digits) for digits in re.findall(r"[0-9]+", match[1])])
    return [Entry(str(problem), problem)]
