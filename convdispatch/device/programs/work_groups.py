"""Along which axes a kernel's work groups may be launched apart: where its text does not ask how it was launched."""

from __future__ import annotations

import math
import re
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..commands.interface import Kernel

_AXES = frozenset(range(3))
# Each pattern begins with letters, not with \b, so that Python searches for the letters first: a tenth of the time.
_ASKS = re.compile(
    r"get_(?:num_groups|global_size|global_offset|global_linear_id|group_linear_id)\b"
    r"\s*(?:\(\s*([0-2])\s*\))?"
)
"""Matches the functions whose results differ between a launch of a part and of the whole; a number is the only axis
concerned."""
_GROUP = "get_group_id"
_BARE = re.compile(rf"{_GROUP}\b(?!\s*\()")
"""Matches the name get_group_id where it is not called, so that a macro cannot replace it."""
_COUNTED = f"#define {_GROUP}(axis) ({_GROUP}(axis) + get_global_offset(axis) / get_local_size(axis))\n#line 1\n"
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
    """How a text's kernels may be launched in parts: these have a global offset, which ``get_global_id`` counts, and
    ``get_group_id`` in a text that is ``counted``."""

    whole: frozenset[int]
    """The axes along which the kernels cannot be launched in parts."""
    ungrouped: bool
    """Whether the kernels need no work groups of a certain size."""

    @classmethod
    def of(cls, text: str) -> Divisible:
        """How the kernels of an OpenCL C text may be divided."""
        if "##" in text and (_SPLICED_ON.search(text) or any(_words(_SPLICED, text))):
            return cls(_AXES, False)
        if any(_words(_BARE, text)):
            return cls(_AXES, False)
        asked = [found[1] for found in _words(_ASKS, text)]
        whole = _AXES if None in asked else frozenset(map(int, asked))
        return cls(whole, not any(any(_words(pattern, text)) for pattern in _GROUPED))


def _words(pattern: re.Pattern[str], text: str) -> Iterator[re.Match[str]]:
    """The matches of a pattern that do not begin within a word."""
    for found in pattern.finditer(text):
        begin = found.start()
        if not (begin and (text[begin - 1].isalnum() or text[begin - 1] == "_")):
            yield found


_known: weakref.WeakKeyDictionary[Any, str | Divisible] = weakref.WeakKeyDictionary()
"""The text of each built program, replaced by its Divisible when that is first queried, which never happens on a
GPU."""


def counted(text: str) -> str:
    """The text for a CPU, with a ``get_group_id`` that counts a launch's global offset as ``get_global_id`` does: so a
    work group has the same number in the launch of a part as in that of the whole."""
    return _COUNTED + text if _GROUP in text else text


def note(program: Any, text: str) -> None:
    """``program`` was built from ``counted(text)``, if it is a CPU's, else from ``text``."""
    _known[program] = text


def dividing_axes(kernel: Kernel) -> tuple[int, int] | None:
    """The two axes of most work groups along which a kernel may be launched in parts, most first; any for a single
    group, and the same twice where there is but one.

    None where there is none: its program was not built from text, or asks how it was launched.
    """
    local = kernel.local_size
    groups = [size // each for size, each in zip(kernel.global_size, local or (1, 1, 1), strict=False)]
    if local is not None and math.prod(groups) == 1:
        return 0, 0
    known = _known.get(kernel.program)
    if isinstance(known, str):
        known = _known[kernel.program] = Divisible.of(known)
    if known is None or (local is None and not known.ungrouped):
        return None
    able = [axis for axis in range(len(groups)) if axis not in known.whole]
    most, *others = sorted(able, key=groups.__getitem__, reverse=True) or [None]
    return None if most is None else (most, others[0] if others else most)
