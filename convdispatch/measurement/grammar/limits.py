"""Rejects, with a reason, problems that a dialect cannot express, and numbers that no problem has."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass

from ...api.errors import InvalidArgument, InvalidProblem
from ...api.problem import ConvProblem

_MAX_DIGITS = 18
_FLAGS = {
    "bias": "a bias",
    "residual": "a residual",
    "activation": "an activation",
    "accumulate": "accumulation",
    "constant_weights": "constant weights",
    "norm": "a norm",
    "sums": "sums of channels",
}


def number(digits: str) -> int:
    """The number with these digits. Raises InvalidProblem for more digits than a size can have."""
    if len(digits) > _MAX_DIGITS:
        raise InvalidProblem(f"a number has {len(digits)} digits, at most {_MAX_DIGITS} are read")
    return int(digits)


@dataclass(frozen=True)
class Dialect:
    """The kinds of problem that a dialect can express."""

    name: str
    flags: Collection[str] = ()
    """The parts of the epilogue, and ``constant_weights``, that the dialect can express for forward convolutions."""
    backward_flags: Collection[str] = ()
    """The parts of the epilogue, and ``constant_weights``, that the dialect can express for backward convolutions."""
    directions: Collection[str] = ("fwd",)
    dtypes: Collection[str] = ("float32",)
    layouts: Collection[str] = ("nchw",)
    maths: Collection[str] = ("float32",)
    ranks: Collection[int] = (1, 2, 3)
    groups: bool = True
    dilation: bool = True
    asymmetric: bool = True
    """Whether the dialect can express padding that differs between the two ends of an axis."""

    def check(self, problem: ConvProblem) -> None:
        """Raise InvalidArgument for the first property of ``problem`` that the dialect cannot express."""
        for missing in self._missing(problem):
            raise InvalidArgument(f"{self.name} has no words for {missing}: {problem}")

    def _missing(self, problem: ConvProblem) -> Iterator[str]:
        for name in ("direction", "dtype", "layout", "math"):
            if getattr(problem, name) not in getattr(self, name + "s"):
                yield f"{name} {getattr(problem, name)}"
        if problem.ndim not in self.ranks:
            yield f"{problem.ndim}-D convolutions"
        if problem.g != 1 and not self.groups:
            yield "groups"
        if not self.dilation and any(getattr(problem, "d" + axis) != 1 for axis in problem.axes):
            yield "dilation"
        sides = ((getattr(problem, "p" + axis), getattr(problem, f"p{axis}_r")) for axis in problem.axes)
        if not self.asymmetric and any(before != after for before, after in sides):
            yield "padding that differs between the sides"
        flags = self.flags if problem.direction == "fwd" else self.backward_flags
        yield from (words for flag, words in _FLAGS.items() if getattr(problem, flag) and flag not in flags)
