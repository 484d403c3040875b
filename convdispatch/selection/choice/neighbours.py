"""Corrects solvers' predicted times for an unmeasured problem by their measured times at the nearest measured problems.

Near means: the same direction, dtype, layout and number of axes, and a small distance between logarithms of the sizes.
What changes which algorithm wins (kernel, stride, dilation, one channel a group) weighs more than what only changes
how much work there is.

A solver's pace at a measured problem is its measured time over its predicted time, relative to the median of all
solvers at that problem. A solver's prediction for the unmeasured problem is multiplied by the geometric mean of its
paces at the nearest problems, weighted by the inverse square of their distances. One more problem, ``MAX_DISTANCE``
away, at which every time is as predicted, limits the effect of few and distant problems. The least corrected prediction
wins; the solver that would run without measurements is replaced only by one predicted ``MARGIN`` faster.

A solver that predicts nothing has no pace. It is taken over only from a problem within ``TAKEOVER_DISTANCE``, where it
was faster than all that predict, or where no solver predicts.
"""

from __future__ import annotations

import itertools
import math
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import numpy as np

from ...api.device import DeviceInfo
from ...api.errors import InvalidProblem
from ...api.problem import ConvProblem
from ..plugins.loader import plugins
from ..records.record import Record
from ..solver_query import predicted

if TYPE_CHECKING:
    from ..records.perfdb import PerfDB

Cost = Callable[[str, ConvProblem, Mapping[str, Any]], float | None]
"""What the solver of that name predicts for a problem and configuration; None when it predicts nothing."""

WEIGHTS = {"mb": 0.5, "g": 0.5, "c": 1.0, "o": 0.7, "k": 3.0, "s": 3.0, "d": 3.0}
"""The distance that one doubling adds between two problems, by size: batch, groups, channels per group, output, kernel,
stride, dilation."""
DEPTHWISE_DISTANCE = 8.0
"""The distance that is added between a depthwise problem and one with several channels per group."""
COMPARED_FIELDS = ("math", "constant_weights", "bias", "residual", "activation", "accumulate", "norm", "sums")
PER_FIELD = 0.5
"""The distance that is added for each of COMPARED_FIELDS in which two problems differ."""

MAX_DISTANCE = 2.5
"""The distance beyond which a measured problem is ignored; without a nearer one the registry's rules choose the
solver."""
TAKEOVER_DISTANCE = 0.5
"""The distance within which a measured choice may be taken over for a solver that has no cost model."""
MAX_NEIGHBOURS = 16
"""The number of nearest measured problems from which a prediction is corrected."""
MARGIN = 0.1
"""A rival must be predicted faster by this fraction to replace the solver that runs without measurements."""
SURE_SAMPLES = 6
"""The number of samples from which a time counts as benchmarked; screening overestimates times, by half and more."""


@dataclass(frozen=True)
class Offer:
    """The configuration that a solver would run for a problem if nothing were measured, and its predicted time."""

    config: Mapping[str, Any]
    cost: float | None


@dataclass(frozen=True)
class Neighbour:
    """A decision taken over from measured problems."""

    solver: str
    config: Mapping[str, Any]
    """The configuration that the solver offered first; for a solver without a cost model, that of its fastest record at
    ``problem``."""
    problem: str
    """The nearest problem at which the solver was measured."""
    distance: float
    predicted_ms: float
    """The corrected prediction in milliseconds, or else the time at ``problem`` scaled by the number of operations."""
    tried: tuple[Record, ...] = ()
    """The solver's records at ``problem``, fastest first, screened ones left out."""

    def __str__(self) -> str:
        return f"prediction corrected by {self.problem}, {self.distance:.1f} away"


def distance(one: ConvProblem, other: ConvProblem) -> float:
    """Return the distance of two problems: 0 for equal ones, infinite if direction, dtype, layout or rank differ."""
    if _kind(one) != _kind(other):
        return math.inf
    return float(_ProblemSet([one]).distances(other)[0])


def _kind(problem: ConvProblem) -> tuple[str, str, str, int]:
    return problem.direction, problem.dtype, problem.layout, problem.ndim


def _coordinates(problem: ConvProblem) -> list[float]:
    sizes = [("mb", max(problem.mb, 1)), ("g", problem.g)]
    sizes += [("c", problem.ic // problem.g), ("c", problem.oc // problem.g)]
    sizes += [(letter, getattr(problem, letter + axis)) for letter in "oksd" for axis in problem.axes]
    return [WEIGHTS[letter] * math.log2(size) for letter, size in sizes] + [DEPTHWISE_DISTANCE * problem.depthwise]


class _ProblemSet:
    """Problems of one kind, as arrays, so that the distances to all of them are computed at once."""

    def __init__(self, problems: Sequence[ConvProblem]) -> None:
        self.problems = list(problems)
        self._coordinates = np.array([_coordinates(problem) for problem in problems])
        self._fields = np.array([[str(getattr(problem, word)) for word in COMPARED_FIELDS] for problem in problems])

    def distances(self, problem: ConvProblem) -> np.ndarray:
        words = np.array([str(getattr(problem, word)) for word in COMPARED_FIELDS])
        gaps = np.abs(self._coordinates - _coordinates(problem)).sum(axis=1)
        return gaps + PER_FIELD * (self._fields != words).sum(axis=1)

    def nearest_first(self, problem: ConvProblem) -> Iterator[tuple[float, ConvProblem]]:
        """Distance and problem, the nearest first; equally near ones in the group's order."""
        gaps = self.distances(problem)
        return ((float(gaps[i]), self.problems[i]) for i in np.argsort(gaps, kind="stable"))


class Neighbours:
    """The measured problems of one device, indexed for queries of the nearest ones. Records of one problem are its
    choices, rivals."""

    def __init__(self, records: Iterable[Record], cost: Cost = lambda solver, problem, config: None) -> None:
        self._cost = cost
        by_text: dict[str, list[Record]] = {}
        for record in records:
            if not record.inconclusive:
                by_text.setdefault(record.problem, []).append(record)
        self._choices: dict[ConvProblem, list[Record]] = {}
        kinds: dict[tuple[str, str, str, int], list[ConvProblem]] = {}
        for text, choices in sorted(by_text.items()):
            try:
                problem = ConvProblem.parse(text)
            except InvalidProblem:
                # A record of another version of this package may have a kind of problem unknown to this one.
                continue
            self._choices[problem] = sorted(choices, key=lambda record: (record.median_ms, record.choice))
            kinds.setdefault(_kind(problem), []).append(problem)
        self._groups = {kind: _ProblemSet(problems) for kind, problems in kinds.items()}
        self._solvers: dict[tuple[str, str, str, int], frozenset[str]] = {}
        self._paces: dict[ConvProblem, tuple[float, dict[str, float]]] = {}

    def __len__(self) -> int:
        return sum(len(group.problems) for group in self._groups.values())

    def solvers(self, problem: ConvProblem) -> frozenset[str]:
        """The solvers that were measured at problems of this kind, however far away."""
        kind = _kind(problem)
        if kind not in self._solvers:
            group = self._groups.get(kind)
            records = (record for measured in (group.problems if group else ()) for record in self._choices[measured])
            self._solvers[kind] = frozenset(record.solver for record in records)
        return self._solvers[kind]

    def nearest(self, problem: ConvProblem) -> Neighbour | None:
        """The nearest measured problem's fastest decision, or None when no problem of this kind was measured."""
        found = next(self._nearest_first(problem), None)
        return None if found is None else self._scaled(self._choices[found[1]][0], *found, problem)

    def choose(self, problem: ConvProblem, offers: Mapping[str, Offer], first: str | None = None) -> Neighbour | None:
        """The solver among ``offers`` that the nearest measured problems favour; ``first`` would run without them.

        None if no measured problem is near enough, or none of them measured the best solver.
        """
        near = self._near(problem, offers)
        if not near:
            return None
        return self._unpredicted(problem, near[0], offers, first) or self._corrected(near, offers, first)

    def corrections(self, problem: ConvProblem, offers: Mapping[str, Offer]) -> dict[str, float]:
        """The factor by which each solver's prediction is corrected; only for solvers measured at near problems."""
        sums, _ = self._sums([each for each in self._near(problem, offers) if each[0] <= MAX_DISTANCE])
        return {solver: math.exp(log / weights) for solver, (log, weights) in sums.items()}

    # --- how a solver is chosen by its neighbours --------------------------------------------------------------------

    def _unpredicted(
        self,
        problem: ConvProblem,
        nearest: tuple[float, ConvProblem],
        offers: Mapping[str, Offer],
        first: str | None,
    ) -> Neighbour | None:
        """The fastest solver without a cost model, if it beat all others at the nearest problem, and that is within
        TAKEOVER_DISTANCE or no solver has a cost model.

        If the solver ``first`` was not measured there, its prediction for that problem counts instead.
        """
        gap, measured = nearest
        predicts = any(offer.cost for offer in offers.values())
        if gap > (TAKEOVER_DISTANCE if predicts else MAX_DISTANCE):
            return None
        choices = [record for record in self._choices[measured] if record.solver in offers]
        rival_ms = next((r.median_ms for r in choices if offers[r.solver].cost), math.inf)
        if first is not None and offers[first].cost and all(record.solver != first for record in choices):
            rival_ms = min(rival_ms, 1e3 * (self._cost(first, measured, offers[first].config) or math.inf))
        for record in choices:
            if not offers[record.solver].cost and (record.count >= SURE_SAMPLES or not predicts):
                beaten = record.median_ms * (1 + MARGIN) < rival_ms
                return self._scaled(record, gap, measured, problem) if beaten else None
        return None

    def _corrected(
        self, near: Sequence[tuple[float, ConvProblem]], offers: Mapping[str, Offer], first: str | None
    ) -> Neighbour | None:
        if first is not None and not offers[first].cost:
            # The registry's first solver predicts no time, so nothing says how other solvers compare with it.
            return None
        sums, level = self._sums(near)
        predictions = {}
        for solver, offer in offers.items():
            if offer.cost and (solver in sums or solver == first):
                log, weights = sums.get(solver, (0.0, 1.0))
                predictions[solver] = math.log(offer.cost) + log / weights
        if not predictions:
            return None
        margin = math.log1p(MARGIN)
        best = min(predictions, key=lambda solver: (predictions[solver] - (margin if solver == first else 0.0), solver))
        for gap, measured in near:
            if best in self._pace(measured)[1]:
                records = [r for r in self._choices[measured] if r.solver == best and r.count >= SURE_SAMPLES]
                ms = math.exp(predictions[best] + level)
                return Neighbour(best, offers[best].config, str(measured), gap, ms, tuple(records))
        return None

    def _sums(self, near: Sequence[tuple[float, ConvProblem]]) -> tuple[dict[str, tuple[float, float]], float]:
        """The weighted sum of each solver's paces and the sum of the weights, by solver; and the weighted mean
        level."""
        sums: dict[str, tuple[float, float]] = {}
        levels = total = 0.0
        for gap, measured in near:
            weight = _weight(gap)
            level, paces = self._pace(measured)
            levels, total = levels + weight * level, total + weight
            for solver, pace in paces.items():
                log, weights = sums.get(solver, (0.0, _weight(MAX_DISTANCE)))
                sums[solver] = log + weight * pace, weights + weight
        return sums, levels / total if total else 0.0

    def _pace(self, measured: ConvProblem) -> tuple[float, dict[str, float]]:
        """The level of a measured problem (median logarithm of measured over predicted time), and each solver's pace
        relative to it. A solver's least ratio counts, because other work on the machine only lengthens times."""
        if measured not in self._paces:
            log_ratios: dict[str, float] = {}
            for record in self._choices[measured]:
                cost = self._cost(record.solver, measured, record.config)
                if cost:
                    ratio = math.log(record.median_ms / cost)
                    log_ratios[record.solver] = min(ratio, log_ratios.get(record.solver, math.inf))
            level = float(np.median([*log_ratios.values()])) if log_ratios else 0.0
            self._paces[measured] = level, {solver: ratio - level for solver, ratio in log_ratios.items()}
        return self._paces[measured]

    def _scaled(self, record: Record, gap: float, measured: ConvProblem, problem: ConvProblem) -> Neighbour:
        time = record.median_ms * (problem.flops / max(1, measured.flops) or 1.0)
        return Neighbour(record.solver, record.config, record.problem, gap, time)

    def _near(self, problem: ConvProblem, offers: Mapping[str, Offer]) -> list[tuple[float, ConvProblem]]:
        """Distance and problem of the nearest measured problems, the nearest first; none if that is too far away.

        The problem's own records are left out: they were examined before, and are not usable.
        """
        others = (
            (gap, other)
            for gap, other in self._nearest_first(problem)
            if other != problem and any(record.solver in offers for record in self._choices[other])
        )
        near = list(itertools.islice(others, MAX_NEIGHBOURS))
        return near if near and near[0][0] <= MAX_DISTANCE else []

    def _nearest_first(self, problem: ConvProblem) -> Iterator[tuple[float, ConvProblem]]:
        group = self._groups.get(_kind(problem))
        return group.nearest_first(problem) if group else iter(())


def _weight(gap: float) -> float:
    return (0.5 + gap) ** -2


_lock = threading.Lock()
_cached_neighbours: WeakKeyDictionary[PerfDB, dict[DeviceInfo, tuple[int, Neighbours]]] = WeakKeyDictionary()


def neighbours(db: PerfDB, device: DeviceInfo) -> Neighbours:
    """Return the Neighbours of a device's records in a database, cached until the database changes."""
    with _lock:
        cached = _cached_neighbours.setdefault(db, {})
        generation, device_neighbours = cached.get(device, (-1, None))
        if device_neighbours is None or generation != db.generation:
            device_neighbours = Neighbours(db.all(device), _cost_on(device))
            cached[device] = (db.generation, device_neighbours)
        return device_neighbours


def _cost_on(device: DeviceInfo) -> Cost:
    def cost(solver: str, problem: ConvProblem, config: Mapping[str, Any]) -> float | None:
        loaded_solver = plugins().solvers.get(solver)
        return None if loaded_solver is None else predicted(loaded_solver, problem, device, config)

    return cost
