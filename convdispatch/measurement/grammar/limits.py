"""Refuses, in words, what a dialect cannot express, and numbers that no problem has."""

from __future__ import annotations

from collections.abc import Collection

from ...api.errors import InvalidArgument, InvalidProblem
from ...api.problem import ConvProblem

_DIGITS = 18
_FLAGS = {
    "bias": "a bias",
    "residual": "a residual",
    "activation": "an activation",
    "accumulate": "accumulation",
    "constant_weights": "constant weights",
}


def number(digits: str) -> int:
    """The whole number of these digits. Raises InvalidProblem for more than a size can have."""
    if len(digits) > _DIGITS:
        raise InvalidProblem(f"a number has {len(digits)} digits, at most {_DIGITS} are read")
    return int(digits)


def check(
    dialect: str,
    problem: ConvProblem,
    *,
    flags: Collection[str] = (),
    directions: Collection[str] = ("fwd",),
    dtypes: Collection[str] = ("float32",),
    layouts: Collection[str] = ("nchw",),
    maths: Collection[str] = ("float32",),
    ranks: Collection[int] = (1, 2, 3),
    groups: bool = True,
    dilation: bool = True,
    asymmetric: bool = True,
) -> None:
    """Raise InvalidArgument for the first thing about ``problem`` that is not among what the dialect can say."""
    missing = None
    for name, known in (("direction", directions), ("dtype", dtypes), ("layout", layouts), ("math", maths)):
        if getattr(problem, name) not in known:
            missing = missing or f"{name} {getattr(problem, name)}"
    if problem.ndim not in ranks:
        missing = missing or f"{problem.ndim}-D convolutions"
    if problem.g != 1 and not groups:
        missing = missing or "groups"
    if not dilation and any(getattr(problem, "d" + axis) != 1 for axis in problem.axes):
        missing = missing or "dilation"
    if not asymmetric and any(getattr(problem, f"p{axis}_r") != getattr(problem, "p" + axis) for axis in problem.axes):
        missing = missing or "padding that differs between the sides"
    for name, words in _FLAGS.items():
        if getattr(problem, name) and name not in flags:
            missing = missing or words
    if missing:
        raise InvalidArgument(f"{dialect} has no words for {missing}: {problem}")
