"""Activations that an epilogue can apply: one table for kernels, reference and validation.

An activation is written ``name`` or ``name(number, ...)``, as in ``"relu"`` or ``"leaky_relu(0.1)"``.
"""

from __future__ import annotations

import functools
import math
import re
from typing import TYPE_CHECKING, NamedTuple

from .errors import InvalidProblem

if TYPE_CHECKING:
    import numpy as np

__all__ = ["ACTIVATIONS", "Activation", "activation_macro", "apply_activation", "parse_activation"]


class Activation(NamedTuple):
    """How to write one activation: in OpenCL C over a value ``v`` of type ``T``, and in NumPy."""

    parameters: tuple[float, ...]
    """Defaults of the numbers in parentheses."""
    opencl: str
    """Expression of ``v`` (scalar or vector), ``T`` (its type) and ``{0}``, ``{1}`` (the parameters)."""
    numpy: str
    """The same of ``v`` and ``p`` (the parameters); evaluated with ``np`` and ``erf`` in scope."""


_HARD_SIGMOID = (
    "((v) * (T)({0}) + (T)({1}) < (T)(0) ? (T)(0) : (v) * (T)({0}) + (T)({1}) > (T)(1) ? (T)(1) : "
    "(v) * (T)({0}) + (T)({1}))"
)
_HARD_SIGMOID_NUMPY = "np.clip(v * p[0] + p[1], 0, 1)"

# A comparison, not fmax: NaN must come out as NaN, as in PyTorch.
ACTIVATIONS: dict[str, Activation] = {
    "relu": Activation((), "((v) < (T)(0) ? (T)(0) : (v))", "np.where(v < 0, 0, v)"),
    "relu6": Activation(
        (), "((v) < (T)(0) ? (T)(0) : (v) > (T)(6) ? (T)(6) : (v))", "np.where(v < 0, 0, np.where(v > 6, 6, v))"
    ),
    "clip": Activation(
        (0.0, 6.0),
        "((v) < (T)({0}) ? (T)({0}) : (v) > (T)({1}) ? (T)({1}) : (v))",
        "np.where(v < p[0], p[0], np.where(v > p[1], p[1], v))",
    ),
    "leaky_relu": Activation((0.01,), "((v) < (T)(0) ? (v) * (T)({0}) : (v))", "np.where(v < 0, v * p[0], v)"),
    "elu": Activation((1.0,), "((v) < (T)(0) ? (T)({0}) * expm1(v) : (v))", "np.where(v < 0, p[0] * np.expm1(v), v)"),
    "sigmoid": Activation((), "((T)(1) / ((T)(1) + exp(-(v))))", "1 / (1 + np.exp(-v))"),
    "silu": Activation((), "((v) / ((T)(1) + exp(-(v))))", "v / (1 + np.exp(-v))"),
    "tanh": Activation((), "tanh(v)", "np.tanh(v)"),
    "hardsigmoid": Activation((1 / 6, 0.5), _HARD_SIGMOID, _HARD_SIGMOID_NUMPY),
    "hardswish": Activation((), "((v) * " + _HARD_SIGMOID.format(1 / 6, 0.5) + ")", "v * np.clip(v / 6 + 0.5, 0, 1)"),
    "gelu": Activation(
        (),
        "((T)(0.5) * (v) * ((T)(1) + erf((v) * (T)(0.7071067811865476))))",
        "0.5 * v * (1 + erf(v * 0.7071067811865476))",
    ),
    "mish": Activation((), "((v) * tanh(log1p(exp(v))))", "v * np.tanh(np.logaddexp(v, 0))"),
}

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
    given = [part for part in (match[2] or "").split(",") if part]
    try:
        if not text.isascii():  # float() reads any script's digits
            raise ValueError
        numbers = tuple(float(part) for part in given)
    except ValueError:
        raise InvalidProblem(f"activation {match[1]} takes numbers in parentheses, got {text[:80]!r}") from None
    if not all(number == number for number in numbers):
        raise InvalidProblem(f"activation {match[1]} takes numbers, got {text[:80]!r}")
    if len(numbers) > len(defaults):
        raise InvalidProblem(f"activation {match[1]} takes at most {len(defaults)} numbers, got {text[:80]!r}")
    return match[1], numbers + defaults[len(numbers) :]


def activation_macro(text: str | None) -> str:
    """OpenCL text that defines ``ACTIVATION(T, v)``; the identity for None. ``T`` may be a vector type."""
    if text is None:
        return "#define ACTIVATION(T, v) (v)\n"
    name, numbers = parse_activation(text)
    body = ACTIVATIONS[name].opencl.format(*(repr(number).replace("inf", "INFINITY") for number in numbers))
    return f"#define ACTIVATION(T, v) {body}\n"


def apply_activation(text: str | None, v: np.ndarray) -> np.ndarray:
    """The same activation in NumPy, for the reference."""
    if text is None:
        return v
    import numpy as np

    name, numbers = parse_activation(text)
    scope = {"np": np, "erf": np.vectorize(math.erf, [float]), "v": v, "p": numbers}
    return eval(ACTIVATIONS[name].numpy, scope)  # our own table's text, never a caller's
