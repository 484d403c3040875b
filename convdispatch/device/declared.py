"""JSON values to a dataclass, every field of the type that it declares, whoever wrote the file.

Raises TypeError, in words, for what is of another type, missing, or not a field.
"""

from __future__ import annotations

import dataclasses
import functools
import types
import typing
from collections.abc import Mapping
from typing import Any, TypeVar

T = TypeVar("T")
_hints = functools.lru_cache(maxsize=64)(typing.get_type_hints)


def made(kind: type[T], values: Any) -> T:
    """An instance of ``kind``, a dataclass whose fields are of JSON's types, of dataclasses, or of lists, tuples,
    mappings and alternatives of them."""
    return typing.cast(T, _value(kind, values, kind.__name__))


def _value(kind: Any, value: Any, name: str) -> Any:
    if kind is Any or (value is None and kind is type(None)):
        return value
    origin, inside = typing.get_origin(kind), typing.get_args(kind)
    if origin in (types.UnionType, typing.Union):
        fitting = [each for each in inside if (each is type(None)) == (value is None)]
        if fitting:
            return _value(fitting[0], value, name)
    elif dataclasses.is_dataclass(kind) and isinstance(value, Mapping):
        hints = _hints(kind)
        unknown = [str(key)[:40] for key in value if key not in hints]
        if unknown:
            raise TypeError(f"{name} has no field {unknown[0]!r}")
        return kind(**{key: _value(hints[key], each, f"{name}.{key}") for key, each in value.items()})
    elif origin is dict and isinstance(value, Mapping):
        return {key: _value(inside[1], each, f"{name}[{str(key)[:40]!r}]") for key, each in value.items()}
    elif origin is list and isinstance(value, (list, tuple)):
        return [_value(inside[0], each, f"{name}[{place}]") for place, each in enumerate(value)]
    elif origin is tuple and isinstance(value, (list, tuple)) and len(value) == len(inside):
        return tuple(_value(each, part, f"{name}[{place}]") for place, (each, part) in enumerate(zip(inside, value)))
    elif (kind is float and type(value) in (int, float)) or (kind in (int, str, bool) and type(value) is kind):
        return value
    raise TypeError(f"{name} is {getattr(kind, '__name__', kind)}, got {value!r:.40}")
