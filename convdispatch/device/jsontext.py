"""Reads JSON text from files that others may have written: whatever is wrong with a text raises ValueError.

Python's reader raises RecursionError for deep nesting, reads an integer of any length (which no float holds), and
accepts text that cannot be encoded again. This project writes no such files.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import types
import typing
from collections.abc import Mapping
from typing import Any, TypeVar

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


T = TypeVar("T")
_hints = functools.lru_cache(maxsize=64)(typing.get_type_hints)


def made(kind: type[T], values: Any) -> T:
    """An instance of ``kind``, a dataclass whose fields are of JSON's types, of dataclasses, or of lists, tuples,
    mappings and alternatives of them.

    Raises TypeError for a value of another type, a missing field or an unknown one.
    """
    return typing.cast(T, _value(kind, values, kind.__name__))


def _value(kind: Any, value: Any, name: str) -> Any:
    if kind is Any or (value is None and kind is type(None)):
        return value
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (types.UnionType, typing.Union):
        alternatives = [each for each in arguments if (each is type(None)) == (value is None)]
        if alternatives:
            return _value(alternatives[0], value, name)
    elif dataclasses.is_dataclass(kind) and isinstance(value, Mapping):
        hints = _hints(kind)
        unknown = [str(key)[:40] for key in value if key not in hints]
        if unknown:
            raise TypeError(f"{name} has no field {unknown[0]!r}")
        return kind(**{key: _value(hints[key], each, f"{name}.{key}") for key, each in value.items()})
    elif origin is dict and isinstance(value, Mapping):
        return {key: _value(arguments[1], each, f"{name}[{str(key)[:40]!r}]") for key, each in value.items()}
    elif origin is list and isinstance(value, (list, tuple)):
        return [_value(arguments[0], each, f"{name}[{index}]") for index, each in enumerate(value)]
    elif origin is tuple and isinstance(value, (list, tuple)) and len(value) == len(arguments):
        return tuple(_value(each, part, f"{name}[{index}]") for index, (each, part) in enumerate(zip(arguments, value)))
    elif (kind is float and type(value) in (int, float)) or (kind in (int, str, bool) and type(value) is kind):
        return value
    raise TypeError(f"{name} is {getattr(kind, '__name__', kind)}, got {value!r:.40}")
