"""Reads JSON text from files that others may have written: whatever is wrong with a text raises ValueError.

Python's reader raises RecursionError for deep nesting, reads an integer of any length (which no float holds), and
accepts text that cannot be encoded again. This project writes no such files.
"""

from __future__ import annotations

import json
from typing import Any

DEPTH = 64
"""The most lists and objects nested within each other."""
DIGITS = 40
"""The most digits of a whole number; 64 bits have 20."""


def loads(text: str | bytes) -> Any:
    """The value of a JSON text. Raises ValueError; for text that is not JSON its subclass json.JSONDecodeError."""
    try:
        value = json.loads(text, parse_int=_integer)
    except RecursionError:
        raise ValueError(f"lists or objects stand more than {DEPTH} deep in each other") from None
    _check(value)
    return value


def _integer(digits: str) -> int:
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
        children: list[Any] = []
        for each in level:
            if isinstance(each, dict):
                children += [*each.keys(), *each.values()]
            elif isinstance(each, list):
                children += each
        if not children:
            return
        level = children
    raise ValueError(f"lists or objects stand more than {DEPTH} deep in each other")
