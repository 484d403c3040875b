"""Numbers of a text, at most as long as a size can be."""

from __future__ import annotations

from ...api.errors import InvalidProblem

_MAX_DIGITS = 18


def number(digits: str) -> int:
    """The number with these digits. Raises InvalidProblem for more digits than a size can have."""
    if len(digits) > _MAX_DIGITS:
        raise InvalidProblem(f"a number has {len(digits)} digits, at most {_MAX_DIGITS} are read")
    return int(digits)
