"""JSON text to values, from files that others may have written: whatever is wrong with one is a ValueError, in words.

Python's reader answers a deep nest with RecursionError, reads an integer of any length (which no float holds), and
accepts text that cannot be written out again. None of them is data of ours.
"""

from __future__ import annotations

import json
from typing import Any

DEPTH = 64
"""The most lists and objects nested within each other."""
DIGITS = 40
"""The most digits of a whole number; 64 bits have 20."""


def loads(text: str | bytes) -> Any:
    """The value of a JSON text. Raises ValueError; json.JSONDecodeError, which has a line, where it is not JSON."""
    try:
        value = json.loads(text, parse_int=_whole)
    except RecursionError:
        raise ValueError(f"lists or objects stand more than {DEPTH} deep in each other") from None
    _check(value)
    return value


def _whole(digits: str) -> int:
    if len(digits) > DIGITS:
        raise ValueError(f"a whole number of {len(digits)} digits, at most {DIGITS} are read")
    return int(digits)


def _check(value: Any) -> None:
    """Raise ValueError for values that are nested too deep, and for text with lone surrogates."""
    level = [value]
    for _ in range(DEPTH + 1):
        texts = [each for each in level if isinstance(each, str) and not each.isascii()]
        for text in texts:
            text.encode()  # raises UnicodeEncodeError, a ValueError, for lone surrogates
        below: list[Any] = []
        for each in level:
            if isinstance(each, dict):
                below += [*each.keys(), *each.values()]
            elif isinstance(each, list):
                below += each
        if not below:
            return
        level = below
    raise ValueError(f"lists or objects stand more than {DEPTH} deep in each other")
