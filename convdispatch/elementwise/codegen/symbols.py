"""Python functions to formulas: the function is called once with symbols, which write down what is done to them."""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np

from ...api.errors import InvalidArgument
from .expression import FUNCTIONS

_traced: weakref.WeakKeyDictionary[Callable[..., Any], tuple[str, tuple[str, ...]]] = weakref.WeakKeyDictionary()
_UFUNCS = {
    "absolute": "abs",
    "maximum": "max",
    "minimum": "min",
    "power": "pow",
    "rint": "round",
    **{name: name for name in ("sign", "square", "exp", "expm1", "log", "log1p", "sqrt", "sin", "cos", "tanh")},
    **{name: name for name in ("floor", "ceil", "trunc", "isnan", "isinf", "tan", "sinh", "cosh")},
    **{f"arc{name}": f"a{name}" for name in ("sin", "cos", "tan", "sinh", "cosh", "tanh")},
}
_OPERATORS = {
    "add": "+",
    "subtract": "-",
    "multiply": "*",
    "divide": "/",
    "floor_divide": "//",
    "remainder": "%",
    "less": "<",
    "less_equal": "<=",
    "greater": ">",
    "greater_equal": ">=",
    "equal": "==",
    "not_equal": "!=",
}


class Symbol(np.lib.mixins.NDArrayOperatorsMixin):
    """Stands for an operand while a function is traced; operators and NumPy's functions extend its text."""

    __hash__ = None  # type: ignore[assignment]

    def __init__(self, text: str) -> None:
        self.text = text

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **options: Any) -> Symbol:
        name = ufunc.__name__
        if method != "__call__" or options:
            raise InvalidArgument(f"a traced function calls {name} with operands alone")
        operand_texts = [_text(value) for value in inputs]
        if name in _OPERATORS:
            return Symbol(f"({operand_texts[0]} {_OPERATORS[name]} {operand_texts[1]})")
        if name == "negative":
            return Symbol(f"(-{operand_texts[0]})")
        if name == "logical_not" or name == "invert":
            return Symbol(f"(not {operand_texts[0]})")
        if name in ("logical_and", "bitwise_and", "logical_or", "bitwise_or"):
            return Symbol(f"({operand_texts[0]} {'and' if name.endswith('and') else 'or'} {operand_texts[1]})")
        if name not in _UFUNCS:
            raise InvalidArgument(f"numpy.{name} is no function of formulas; there are {', '.join(FUNCTIONS)}")
        return Symbol(f"{_UFUNCS[name]}({', '.join(operand_texts)})")

    def __array_function__(self, function: Any, types: Any, args: Any, kwargs: Any) -> Symbol:
        if function is np.where and len(args) == 3:
            return where(*args)
        if function is np.clip and len(args) == 3:
            return Symbol(f"clip({', '.join(map(_text, args))})")
        raise InvalidArgument(f"numpy.{function.__name__} is no function of formulas")

    def __pow__(self, power: Any) -> Symbol:
        return Symbol(f"({self.text} ** {_text(power)})")

    def __bool__(self) -> bool:
        raise InvalidArgument(
            "a traced function cannot branch on an operand: it runs once for all elements; use where(condition, a, b)"
        )


def where(test: Any, yes: Any, no: Any) -> Symbol:
    """``yes`` where ``test`` holds, else ``no``, inside a traced function."""
    return Symbol(f"where({_text(test)}, {_text(yes)}, {_text(no)})")


def _text(value: Any) -> str:
    if isinstance(value, Symbol):
        return value.text
    if isinstance(value, bool | np.bool_ | int | float | np.number):
        return repr(value.item() if isinstance(value, np.generic) else value)
    raise InvalidArgument(f"a traced function computes with operands and numbers, got {value!r}")


def trace(function: Callable[..., Any]) -> tuple[str, tuple[str, ...]]:
    """``(formula, names of the arguments)`` of a function of element values.

    Numbers that the function closes over become constants of the formula at the first call.
    Raises InvalidArgument for what no formula can say, such as a branch.
    """
    traced = _traced.get(function)
    if traced is None:
        names = tuple(inspect.signature(function).parameters)
        traced = _text(function(*map(Symbol, names))), names
        _traced[function] = traced
    return traced
