"""Determines along which axes a kernel may be launched in parts: its text must not query the launch's size there."""

from __future__ import annotations

import math
import re
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ..commands.interface import Kernel

_AXES = frozenset(range(3))
# The patterns begin with letters, not with \b, so that Python searches for the letters first, in a tenth of the time.
_LAUNCH_QUERIES = re.compile(
    r"get_(?:num_groups|global_size|global_offset|global_linear_id|group_linear_id)\b"
    r"\s*(?:\(\s*([0-2])\s*\))?"
)
"""Matches functions whose results differ between a part's launch and the whole's; group 1 is an axis's number."""
_GROUP = "get_group_id"
_BARE = re.compile(rf"{_GROUP}\b(?!\s*\()")
"""Matches the name get_group_id without a call, which a macro with an argument cannot replace."""
_OFFSET_ID = f"#define {_GROUP}(axis) ({_GROUP}(axis) + get_global_offset(axis) / get_local_size(axis))\n#line 1\n"
_SPLICED = re.compile(r"get_\w*\s*##")
_SPLICED_ON = re.compile(r"##\s*_?(?:group|num|global|local|work|sub)_")
_GROUPED = (
    re.compile(r"get_(?:enqueued_)?local_|get_group_id\b"),
    re.compile(r"barrier\b"),
    re.compile(r"work_group_"),
    re.compile(r"sub_group"),
    re.compile(r"reqd_work_group_size\s*\(\s*(?!1\s*,\s*1\s*,\s*1\s*\))"),
)


@dataclass(frozen=True)
class Divisible:
    """The ways in which a text's kernels may be launched in parts. A part is a launch with a global offset, which
    ``get_global_id`` includes, and in a text from ``counted`` also ``get_group_id``."""

    whole: frozenset[int]
    """The axes along which the kernels cannot be launched in parts."""
    ungrouped: bool
    """Whether the kernels need no work groups of a certain size."""

    @classmethod
    def of(cls, text: str) -> Divisible:
        """The Divisible of an OpenCL C text."""
        if "##" in text and (_SPLICED_ON.search(text) or any(_words(_SPLICED, text))):
            return cls(_AXES, False)
        if any(_words(_BARE, text)):
            return cls(_AXES, False)
        queried = [match[1] for match in _words(_LAUNCH_QUERIES, text)]
        whole = _AXES if None in queried else frozenset(map(int, queried))
        return cls(whole, not any(any(_words(pattern, text)) for pattern in _GROUPED))


def _words(pattern: re.Pattern[str], text: str) -> Iterator[re.Match[str]]:
    """The matches of a pattern that begin at the start of a word."""
    for match in pattern.finditer(text):
        begin = match.start()
        if not (begin and (text[begin - 1].isalnum() or text[begin - 1] == "_")):
            yield match


_noted: weakref.WeakKeyDictionary[Any, str | Divisible] = weakref.WeakKeyDictionary()
"""The text of each built program, replaced by its Divisible at the first query; on a GPU there is none."""


def counted(text: str) -> str:
    """The text for a CPU, with a ``get_group_id`` that includes a launch's global offset as ``get_global_id`` does, so
    that a work group has the same index in the launch of a part as in that of the whole."""
    return _OFFSET_ID + text if _GROUP in text else text


def note(program: Any, text: str) -> None:
    """Note that ``program`` was built from ``text``, or for a CPU from ``counted(text)``."""
    _noted[program] = text


def dividing_axes(kernel: Kernel) -> tuple[int, int] | None:
    """The two axes with most work groups along which a kernel may be launched in parts, the one with more first; if
    there is only one such axis, it is returned twice.

    None without such an axis: the program was not built from text, or queries its launch's size.
    """
    local = kernel.local_size
    groups = [size // each for size, each in zip(kernel.global_size, local or (1, 1, 1), strict=False)]
    if local is not None and math.prod(groups) == 1:
        return 0, 0
    divisible = _noted.get(kernel.program)
    if isinstance(divisible, str):
        divisible = _noted[kernel.program] = Divisible.of(divisible)
    if divisible is None or (local is None and not divisible.ungrouped):
        return None
    divisible_axes = [axis for axis in range(len(groups)) if axis not in divisible.whole]
    first, *others = sorted(divisible_axes, key=groups.__getitem__, reverse=True) or [None]
    return None if first is None else (first, others[0] if others else first)
