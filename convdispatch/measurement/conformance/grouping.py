"""Finds features that failing cases have in common and passing ones lack, for the solver's author."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from ...api.dtypes import ALL_DTYPES
from ...api.errors import InvalidProblem
from ...api.problem import ConvProblem
from .outcome import Outcome, Report

FEATURES: dict[str, Callable[[ConvProblem], bool]] = {
    "padding": lambda p: any(getattr(p, f"p{axis}") or getattr(p, f"p{axis}_r") for axis in "dhw"),
    "other padding at the far side": lambda p: any(
        getattr(p, f"p{axis}") != getattr(p, f"p{axis}_r") for axis in "dhw"
    ),
    "a stride above 1": lambda p: max(p.sd, p.sh, p.sw) > 1,
    "a dilation above 1": lambda p: max(p.dd, p.dh, p.dw) > 1,
    "groups": lambda p: p.g > 1,
    "one channel a group": lambda p: p.g > 1 and p.ic == p.g,
    "a 1x1 kernel": lambda p: p.kd == p.kh == p.kw == 1,
    "a kernel that is not square": lambda p: p.ndim > 1 and p.kh != p.kw,
    "an even kernel": lambda p: any(size % 2 == 0 for size in (p.kd, p.kh, p.kw)),
    "several images": lambda p: p.mb > 1,
    "no images": lambda p: p.mb == 0,
    "channels that are no multiple of 4": lambda p: p.ic // p.g % 4 != 0 or p.oc // p.g % 4 != 0,
    "a bias": lambda p: p.bias,
    "a residual": lambda p: p.residual,
    "an activation": lambda p: p.activation is not None,
    "accumulate": lambda p: p.accumulate,
    "a norm": lambda p: p.norm is not None,
    "sums of channels": lambda p: p.sums,
    "constant weights": lambda p: p.constant_weights,
    "one axis": lambda p: p.ndim == 1,
    "three axes": lambda p: p.ndim == 3,
    "the layout nhwc": lambda p: p.layout == "nhwc",
    **{f"the direction {way}": lambda p, way=way: p.direction == way for way in ("fwd", "bwd_data", "bwd_weights")},
    **{f"the dtype {name}": lambda p, name=name: p.dtype == name for name in ALL_DTYPES if name != "float32"},
    **{f"math {name}": lambda p, name=name: p.math == name for name in ("ieee", "tf32", "fast", "reproducible")},
}
"""The features of a case as text, each with its test, in the order in which a sentence names them."""
MAX_FEATURES = 3
"""The most features that one sentence names."""


@dataclass(frozen=True)
class Group:
    """The failures of one solver in one check."""

    solver: str
    check: str
    failed: tuple[Outcome, ...]
    common: str
    """A sentence that says what the group's cases have in common; empty if nothing separates them from passing
    cases."""


def groups(report: Report) -> list[Group]:
    """The failures by solver and check, in the order in which they occurred."""
    outcomes_of: dict[tuple[str, str], list[Outcome]] = {}
    for outcome in report.of(status="failed"):
        outcomes_of.setdefault((outcome.solver, outcome.check), []).append(outcome)
    return [
        Group(solver, check, tuple(failed), common(failed, report.of(solver=solver, status="passed")))
        for (solver, check), failed in outcomes_of.items()
    ]


def common(failed: Sequence[Outcome], passed: Sequence[Outcome]) -> str:
    """A sentence such as ``all 5 failing cases have padding; no passing case has``; empty if nothing separates them."""
    failing, passing = list(_problems(failed)), list(_problems(passed))
    if len(failing) < 2 or not passing:
        return ""
    passing_with = {name: sum(map(has, passing)) for name, has in FEATURES.items() if all(map(has, failing))}
    separating = [name for name, count in passing_with.items() if not count][:MAX_FEATURES]
    if separating:
        return f"all {len(failing)} failing cases have {' and '.join(separating)}; no passing case has"
    rare = min(passing_with, key=lambda name: passing_with[name], default=None)
    if rare is None or passing_with[rare] > len(passing) / 4:
        return ""
    return f"all {len(failing)} failing cases have {rare}; of {len(passing)} passing cases {passing_with[rare]} have"


def _problems(outcomes: Iterable[Outcome]) -> Iterable[ConvProblem]:
    for outcome in outcomes:
        try:
            yield ConvProblem.parse(outcome.problem)
        except InvalidProblem:
            # A report of another version of this package may name a kind of problem that this version does not know.
            continue


def errors_by_dtype(outcomes: Iterable[Outcome]) -> str:
    """The worst relative error on real data of each dtype: ``float32 2e-07, float16 4e-04``."""
    worst: dict[str, float] = {}
    for outcome in outcomes:
        error = outcome.errors.get("real")
        if error is not None:
            for problem in _problems([outcome]):
                worst[problem.dtype] = max(error, worst.get(problem.dtype, 0.0))
    return ", ".join(f"{dtype} {error:.0e}" for dtype, error in worst.items())
