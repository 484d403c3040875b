"""The tests' own shape tables, ``basic`` and ``near_miss``, and those of the package's nets."""

from __future__ import annotations

import functools

from paths import SUPPORT

from convdispatch.measurement import shapes


@functools.cache
def _own(name: str) -> tuple[shapes.Entry, ...]:
    return tuple(shapes.parse((SUPPORT / "shape_texts" / f"{name}.txt").read_text(encoding="utf-8"), f"{name}.txt"))


def load(name: str) -> tuple[shapes.Entry, ...]:
    """A table's entries, in its order."""
    return _own(name) if name in ("basic", "near_miss") else shapes.load(name)
