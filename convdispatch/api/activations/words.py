"""Parses an activation's text, ``"leaky_relu(0.1)"``, and translates it to OpenCL C, NumPy, formulas and oneDNN."""

from __future__ import annotations

import functools
import math
import re
from typing import TYPE_CHECKING

from ..errors import InvalidProblem
from .table import ACTIVATIONS

if TYPE_CHECKING:
    import numpy as np

_FORM = re.compile(r"([a-z0-9_]+)(?:\(([^()]*)\))?")


def parse_activation(text: str) -> tuple[str, tuple[float, ...]]:
    """Split ``"leaky_relu(0.1)"`` into its name and numbers, defaults filled in.

    Raises InvalidProblem for an unknown name, a bad number or too many of them.
    """
    if not isinstance(text, str):
        raise InvalidProblem(f"activation must be None or one of {', '.join(ACTIVATIONS)}, got {text!r}")
    return _parse(text)


@functools.lru_cache(maxsize=1024)
def _parse(text: str) -> tuple[str, tuple[float, ...]]:
    match = _FORM.fullmatch(text.replace(" ", ""))
    if match is None or match[1] not in ACTIVATIONS:
        raise InvalidProblem(f"activation must be None or one of {', '.join(ACTIVATIONS)}, got {text[:80]!r}")
    defaults = ACTIVATIONS[match[1]].parameters
    parts = [part for part in (match[2] or "").split(",") if part]
    try:
        if not text.isascii():  # float() would accept the digits of any script
            raise ValueError
        numbers = tuple(float(part) for part in parts)
    except ValueError:
        raise InvalidProblem(f"activation {match[1]} takes numbers in parentheses, got {text[:80]!r}") from None
    if any(math.isnan(number) for number in numbers):
        raise InvalidProblem(f"activation {match[1]} takes numbers, got {text[:80]!r}")
    if len(numbers) > len(defaults):
        raise InvalidProblem(f"activation {match[1]} takes at most {len(defaults)} numbers, got {text[:80]!r}")
    return match[1], numbers + defaults[len(numbers) :]


def activation_macro(text: str | None, macro: str = "ACTIVATION") -> str:
    """OpenCL text that defines ``ACTIVATION(T, v)``; the identity for None. ``T`` may be a vector type."""
    if text is None:
        return f"#define {macro}(T, v) (v)\n"
    name, numbers = parse_activation(text)
    body = ACTIVATIONS[name].opencl.format(*(repr(number).replace("inf", "INFINITY") for number in numbers))
    return f"#define {macro}(T, v) {body}\n"


_NUMBER = re.compile(r"(?<![\w.])(\d[\d.]*(?:e[-+]?\d+)?)")
_GRADIENT_FUNCTIONS = """#define where(test, yes, no) ((test) ? (yes) : (no))
#define sigmoid(v) ((ACC)1 / ((ACC)1 + exp(-(v))))
"""


def gradient_function(text: str | None, name: str) -> str:
    """OpenCL text of the function ``ACC name(ACC dy, ACC x)``: the gradient through an activation; dy for None."""
    formula = "dy" if text is None else _NUMBER.sub(r"(ACC)\1", gradient_of_input(text))
    body = formula.replace("inf", "INFINITY")
    return f"{_GRADIENT_FUNCTIONS}inline ACC {name}(ACC dy, ACC x) {{ return {body}; }}\n#undef where\n#undef sigmoid\n"


def apply_gradient(text: str | None, dy: np.ndarray, x: np.ndarray) -> np.ndarray:
    """The gradient ``dy`` through an activation of ``x`` in NumPy, for the reference."""
    return dy if text is None else _computed(gradient_of_input(text), dy=dy, x=x)


def apply_activation(text: str | None, v: np.ndarray) -> np.ndarray:
    """Apply an activation in NumPy, for the reference."""
    return v if text is None else _computed(formula_of(text), x=v)


def _computed(formula: str, **operands: np.ndarray) -> np.ndarray:
    import numpy as np

    names = {name: getattr(np, name) for name in ("where", "clip", "exp", "expm1", "tanh", "log1p", "inf")}
    names |= {"erf": np.vectorize(math.erf, [float]), "sigmoid": lambda v: 1 / (1 + np.exp(-v))}
    # The evaluated text is an entry of the table ACTIVATIONS, never a caller's.
    with np.errstate(over="ignore", invalid="ignore"):
        return eval(formula, names | operands)


def formula_of(text: str) -> str:
    """An activation as a formula of ``x`` (``convdispatch.elementwise``)."""
    name, numbers = parse_activation(text)
    return ACTIVATIONS[name].formula.format(*numbers)


def gradient_of_input(text: str) -> str:
    """Formula of ``dy`` and the input ``x`` for the gradient through an activation."""
    name, numbers = parse_activation(text)
    return ACTIVATIONS[name].gradient.format(*numbers)


def gradient_of_result(text: str) -> str | None:
    """Formula of ``dy`` and the result ``y`` for the gradient through an activation; None if y does not suffice."""
    name, numbers = parse_activation(text)
    entry = ACTIVATIONS[name]
    if entry.from_result is None or (entry.least is not None and numbers[0] < entry.least):
        return None
    return entry.from_result.format(*numbers)


def onednn_eltwise(text: str) -> tuple[int, str, tuple[float, ...]] | None:
    """oneDNN's number and name of an activation, and its alpha and beta; None if oneDNN lacks it."""
    name, numbers = parse_activation(text)
    entry = ACTIVATIONS[name].onednn
    if entry is None:
        return None
    return entry.kind, entry.name, numbers if entry.alpha_beta is None else entry.alpha_beta
