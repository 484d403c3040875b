"""Conditions of a registry's ``when``: the valid values of each key, and whether a problem on a device matches."""

from __future__ import annotations

import ast
import dataclasses
import fnmatch
import functools
import operator
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ...api.device import DeviceInfo
from ...api.dtypes import ALL_DTYPES, DTYPES, QUANTIZED_INPUTS
from ...api.problem import DIRECTIONS, LAYOUTS, MATHS, ConvProblem

_FIELD_TYPES = {field.name: str(field.type) for field in dataclasses.fields(ConvProblem)} | {"depthwise": "bool"}
_NUMBERS = {name for name, kind in _FIELD_TYPES.items() if kind == "int"}
_FLAGS = {name for name, kind in _FIELD_TYPES.items() if kind == "bool"}
_DEVICE = {"vendor", "type", "arch", "platform", "driver", "name"}
_CHOICES = {
    "direction": DIRECTIONS,
    "dtype": (*DTYPES, *QUANTIZED_INPUTS),
    "out_dtype": tuple(ALL_DTYPES),
    "layout": LAYOUTS,
    "math": MATHS,
    "type": ("cpu", "gpu", "accelerator"),
}
_GEOMETRY = "geometry"
"""The key whose value compares sums and products of a problem's sizes, such as ``"ih < (kh - 1) * dh + 1"``."""
KEYS = _FIELD_TYPES.keys() | _DEVICE | {_GEOMETRY}
"""The keys that a ``when`` may test: a problem's fields and geometry, and some properties of a device."""
_WHOLE_NUMBER = re.compile(r"[0-9]{1,18}")
_COMPARISON = re.compile(r"\s*(>=|<=|!=|==|>|<)\s*(.+)")
_OPERATORS: dict[str, Callable[[Any, Any], bool]] = {
    ">=": operator.ge,
    "<=": operator.le,
    "!=": operator.ne,
    "==": operator.eq,
    ">": operator.gt,
    "<": operator.lt,
}


@dataclass(frozen=True)
class Condition:
    """One ``key: value`` of a ``when``; ``alternatives`` are texts or numbers, any of which may match."""

    key: str
    alternatives: tuple[Any, ...]

    def matches(self, problem: ConvProblem, device: DeviceInfo) -> bool:
        """Whether the problem's or the device's value satisfies one alternative."""
        if self.key == _GEOMETRY:
            sizes = {name: getattr(problem, name) for name in _NUMBERS}
            return any(eval(_compiled(text), {"__builtins__": {}}, sizes) for text in self.alternatives)
        value = getattr(device if self.is_of_device else problem, self.key)
        return any(_satisfies(value, wanted) for wanted in self.alternatives)

    @property
    def is_of_device(self) -> bool:
        """Whether the condition is about the device, not about the problem."""
        return self.key in _DEVICE

    def __str__(self) -> str:
        return f"{self.key} {' or '.join(map(str, self.alternatives))}"


def mistake(key: str, value: Any) -> str | None:
    """Return as text why ``key`` can never have ``value``; None if it can."""
    text = isinstance(value, str)
    comparison = _COMPARISON.fullmatch(value) if text else None
    if key == _GEOMETRY:
        try:
            _compiled(value if text else "")
        except (SyntaxError, ValueError, MemoryError, RecursionError):
            return f"{key} compares sums and products of sizes, such as 'ih < (kh - 1) * dh + 1', got {value!r}"
        return None
    if key in _NUMBERS:
        if comparison and not _WHOLE_NUMBER.fullmatch(comparison[2].strip()):
            return f"{key}: {value!r} must compare with a whole number"
        is_whole = bool(_WHOLE_NUMBER.fullmatch(value.strip())) if text else type(value) is int
        if not (is_whole or comparison):
            return f"{key} takes a whole number, a list of them or a comparison such as '>=32', got {value!r}"
    elif key in _FLAGS:
        return None if isinstance(value, bool) else f"{key} takes true or false, got {value!r}"
    elif key == "activation" and value is None:
        return None
    elif not text or (comparison and key != "driver"):
        alternative_text = " or a comparison such as '>=580'" if key == "driver" else ""
        return f"{key} takes a name or a glob{alternative_text}, got {value!r}"
    elif key in _CHOICES and not fnmatch.filter(_CHOICES[key], value):
        return f"{key} is one of {', '.join(_CHOICES[key])}, got {value!r}"
    return None


_ALLOWED_NODES = (
    *(ast.Expression, ast.BoolOp, ast.And, ast.Or, ast.Compare, ast.Lt, ast.LtE, ast.Gt, ast.GtE, ast.Eq, ast.NotEq),
    *(ast.BinOp, ast.Add, ast.Sub, ast.Mult, ast.Name, ast.Load, ast.Constant),
)
"""The forms of Python's grammar that a comparison of sizes is made of: none calls, indexes, divides or raises."""


@functools.lru_cache(maxsize=256)
def _compiled(text: str) -> Any:
    """A comparison of a problem's sizes, compiled. Raises SyntaxError or ValueError for any other text."""
    tree = ast.parse(text.strip(), mode="eval")
    if not isinstance(tree.body, ast.Compare | ast.BoolOp):
        raise ValueError("no comparison")
    for node in ast.walk(tree):
        unknown = isinstance(node, ast.Name) and node.id not in _NUMBERS
        no_integer = isinstance(node, ast.Constant) and type(node.value) is not int
        if unknown or no_integer or not isinstance(node, _ALLOWED_NODES):
            raise ValueError("no sum or product of sizes")
    return compile(tree, "geometry", "eval")


def _satisfies(value: Any, wanted: Any) -> bool:
    if isinstance(wanted, str):
        comparison = _COMPARISON.fullmatch(wanted)
        if comparison:
            return _OPERATORS[comparison[1]](ordered(value), ordered(comparison[2]))
        return fnmatch.fnmatchcase(str(value), wanted)
    return value == wanted and isinstance(value, bool) == isinstance(wanted, bool)


def ordered(value: Any) -> tuple[int, ...]:
    """A number or a driver's version as a tuple that can be compared: ``"580.159"`` is (580, 159)."""
    return (value,) if isinstance(value, int) else tuple(int(part[:18]) for part in re.findall(r"[0-9]+", str(value)))
