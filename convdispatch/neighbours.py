"""Gives an unmeasured problem the decision of the nearest measured one, and says what that rule has cost so far.

Near means: the same direction, dtype, layout and number of axes, and a small distance between logarithms of the sizes.
What changes which algorithm wins (kernel, stride, dilation, one channel a group) weighs more than what only changes
how much work there is. Of the neighbour's measured choices that one is taken which its time, scaled by what its solver
predicts for both problems, makes the fastest here: tiles that fit the neighbour's sizes need not fit these.

The cost of the rule is its leave-one-out regret: each measured problem is asked as if it were not measured, and the
time of the decision it gets is divided by its own best time.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import numpy as np

from .api.device import DeviceInfo
from .api.errors import InvalidProblem
from .api.problem import ConvProblem
from .loader import plugins
from .record import Record

if TYPE_CHECKING:
    from .perfdb import PerfDB

__all__ = ["Neighbour", "Neighbours", "Regret", "distance", "neighbours"]

Accepts = Callable[[str, Mapping[str, Any]], bool]
"""Whether the solver of that name would accept the problem in question with that configuration."""

Cost = Callable[[str, ConvProblem, Mapping[str, Any]], float | None]
"""What the solver of that name predicts for a problem and configuration; None when it predicts nothing."""

WEIGHTS = {"mb": 0.5, "g": 0.5, "c": 1.0, "o": 0.7, "k": 3.0, "s": 3.0, "d": 3.0}
"""What one doubling counts: batch, groups, channels a group, output, kernel, stride, dilation."""
DEPTHWISE = 8.0
"""What it counts when one of the two has a single channel a group and the other has not."""
WORDS = ("math", "constant_weights", "bias", "residual", "activation", "accumulate")
WORD = 0.5
"""What each difference among the words counts."""


@dataclass(frozen=True)
class Regret:
    """What a rule's decisions cost: chosen time over best time, on problems where both are measured."""

    geomean: float = 1.0
    worst: float = 1.0
    worst_problem: str | None = None
    count: int = 0
    """Problems that could be asked: several choices are measured, and what the neighbour's comes to is among them."""

    def __str__(self) -> str:
        if not self.count:
            return "regret unknown, too few measured problems"
        return f"regret {self.geomean:.2f}, worst {self.worst:.2f}, on {self.count} measured problems"


@dataclass(frozen=True)
class Neighbour:
    """A decision borrowed from a measured problem."""

    solver: str
    config: Mapping[str, Any]
    problem: str
    """The measured problem that it is borrowed from."""
    distance: float
    predicted_ms: float
    """The neighbour's time, scaled by what the solver predicts for both problems, or else by their operations."""
    regret: Regret

    def __str__(self) -> str:
        return f"as for {self.problem}, {self.distance:.1f} away; {self.regret}"


def distance(one: ConvProblem, other: ConvProblem) -> float:
    """How far apart two problems are: 0 for equal ones, infinite for another direction, dtype, layout or rank."""
    if _kind(one) != _kind(other):
        return math.inf
    return float(_Crowd([one]).distances(other)[0])


def _kind(problem: ConvProblem) -> tuple[str, str, str, int]:
    return problem.direction, problem.dtype, problem.layout, problem.ndim


def _place(problem: ConvProblem) -> list[float]:
    sizes = [("mb", max(problem.mb, 1)), ("g", problem.g)]
    sizes += [("c", problem.ic // problem.g), ("c", problem.oc // problem.g)]
    sizes += [(letter, getattr(problem, letter + axis)) for letter in "oksd" for axis in problem.axes]
    return [WEIGHTS[letter] * math.log2(size) for letter, size in sizes] + [DEPTHWISE * problem.depthwise]


class _Crowd:
    """Problems of one kind, as arrays: hundreds of distances take the time of a few."""

    def __init__(self, problems: Sequence[ConvProblem]) -> None:
        self.problems = list(problems)
        self._places = np.array([_place(problem) for problem in problems])
        self._words = np.array([[str(getattr(problem, word)) for word in WORDS] for problem in problems])

    def distances(self, problem: ConvProblem) -> np.ndarray:
        """From each problem of the crowd to this one."""
        words = np.array([str(getattr(problem, word)) for word in WORDS])
        return np.abs(self._places - _place(problem)).sum(axis=1) + WORD * (self._words != words).sum(axis=1)

    def nearest_first(self, problem: ConvProblem) -> Iterator[tuple[float, ConvProblem]]:
        """Distance and problem; equally near ones in the crowd's order."""
        gaps = self.distances(problem)
        return ((float(gaps[i]), self.problems[i]) for i in np.argsort(gaps, kind="stable"))


class Neighbours:
    """The measured problems of one device, ready to be asked. Records of one problem are its choices, rivals."""

    def __init__(self, records: Iterable[Record], cost: Cost = lambda solver, problem, config: None) -> None:
        self._cost = cost
        by_text: dict[str, list[Record]] = {}
        for record in records:
            by_text.setdefault(record.problem, []).append(record)
        self._choices: dict[ConvProblem, list[Record]] = {}
        kinds: dict[tuple[str, str, str, int], list[ConvProblem]] = {}
        for text, choices in sorted(by_text.items()):
            try:
                problem = ConvProblem.parse(text)
            except InvalidProblem:  # from a version that knew more kinds of problem
                continue
            self._choices[problem] = sorted(choices, key=lambda record: (record.median_ms, record.choice))
            kinds.setdefault(_kind(problem), []).append(problem)
        self._crowds = {kind: _Crowd(problems) for kind, problems in kinds.items()}
        self._regret: Regret | None = None

    def __len__(self) -> int:
        return sum(len(crowd.problems) for crowd in self._crowds.values())

    def nearest(self, problem: ConvProblem, accepts: Accepts | None = None) -> Neighbour | None:
        """The nearest measured problem's fastest decision that ``accepts``, or None when no neighbour has one."""
        for gap, measured in self._nearest_first(problem):
            choices = [r for r in self._choices[measured] if accepts is None or accepts(r.solver, r.config)]
            if choices:
                time, record = min(((self._scaled(r, measured, problem), r) for r in choices), key=lambda pair: pair[0])
                return Neighbour(record.solver, record.config, record.problem, gap, time, self.regret())
        return None

    def _scaled(self, record: Record, measured: ConvProblem, problem: ConvProblem) -> float:
        """A choice's time at ``measured``, scaled to ``problem``."""
        there = self._cost(record.solver, measured, record.config)
        here = self._cost(record.solver, problem, record.config)
        if here and there:
            return record.median_ms * here / there
        return record.median_ms * (problem.flops / max(1, measured.flops) or 1.0)

    def regret(self) -> Regret:
        """The leave-one-out regret of ``nearest`` on these records; worked out once."""
        if self._regret is None:
            self._regret = self._leave_one_out()
        return self._regret

    def _nearest_first(self, problem: ConvProblem) -> Iterator[tuple[float, ConvProblem]]:
        crowd = self._crowds.get(_kind(problem))
        return crowd.nearest_first(problem) if crowd else iter(())

    def _leave_one_out(self) -> Regret:
        ratios: dict[str, float] = {}
        for problem in (problem for crowd in self._crowds.values() for problem in crowd.problems):
            choices = self._choices[problem]
            times = {record.choice[1:]: record.median_ms for record in choices}
            if len(times) < 2:
                continue
            # A configuration that is not offered here is replaced by the solver's default.
            defaults = {record.solver: record.median_ms for record in choices if record.default}
            borrowed = (
                times.get(record.choice[1:], defaults.get(record.solver))
                for _, other in self._nearest_first(problem)
                if other != problem
                for record in sorted(self._choices[other], key=lambda r, other=other: self._scaled(r, other, problem))
                if record.choice[1:] in times or record.solver in defaults  # else it cannot be judged here
            )
            chosen = next(borrowed, None)
            if chosen is not None:
                ratios[str(problem)] = chosen / min(times.values())
        if not ratios:
            return Regret()
        worst = max(ratios, key=lambda text: (ratios[text], text))
        mean = math.exp(math.fsum(map(math.log, ratios.values())) / len(ratios))
        return Regret(mean, ratios[worst], worst, len(ratios))


_lock = threading.Lock()
_known: WeakKeyDictionary[PerfDB, dict[DeviceInfo | str, tuple[int, Neighbours]]] = WeakKeyDictionary()


def neighbours(db: PerfDB, device: DeviceInfo | str) -> Neighbours:
    """The Neighbours of a device's records in a database, kept until the database learns something."""
    with _lock:
        kept = _known.setdefault(db, {})
        generation, found = kept.get(device, (-1, None))
        if found is None or generation != db.generation:
            found = Neighbours(db.all(device), _cost_on(device))
            kept[device] = (db.generation, found)
        return found


def _cost_on(device: DeviceInfo | str) -> Cost:
    def cost(solver: str, problem: ConvProblem, config: Mapping[str, Any]) -> float | None:
        found = plugins().solvers.get(solver)
        if found is None or isinstance(device, str):
            return None
        try:
            return found.cost(problem, device, config)
        except Exception:  # a configuration that is none for this problem: there is no prediction
            return None

    return cost
