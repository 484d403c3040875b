"""Corrects solvers' predicted times for an unmeasured problem by their measured times at the nearest measured problems,
and computes what that rule has cost so far.

Near means: the same direction, dtype, layout and number of axes, and a small distance between logarithms of the sizes.
What changes which algorithm wins (kernel, stride, dilation, one channel a group) weighs more than what only changes
how much work there is.

A solver's pace at a measured problem is its time there over what it predicts, beside the other solvers' of that
problem. What it predicts here is multiplied by the geometric mean of its paces at the nearest problems, weighted by
the inverse square of their distances; one problem more, ``FAR`` away, at which all is as predicted, keeps few and far
ones from saying much. The least corrected prediction wins. What would run without measurements stands until a rival
promises ``MARGIN`` less, for times err by as much.

Who predicts nothing has no pace, and its time at another size says little of its time here: it is taken over only from
a problem ``NEAR`` by, where it was faster than all who predict; or where nobody predicts.

The cost of the rule is its leave-one-out regret: each measured problem is asked as if it were not measured, and the
time of the decision it gets is divided by its own best time.
"""

from __future__ import annotations

import dataclasses
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

Accepts = Callable[[str, Mapping[str, Any]], bool]
"""Whether the solver of that name would accept the problem in question with that configuration."""

Cost = Callable[[str, ConvProblem, Mapping[str, Any]], float | None]
"""What the solver of that name predicts for a problem and configuration; None when it predicts nothing."""

WEIGHTS = {"mb": 0.5, "g": 0.5, "c": 1.0, "o": 0.7, "k": 3.0, "s": 3.0, "d": 3.0}
"""The distance that one doubling adds between two problems, by size: batch, groups, channels per group, output, kernel,
stride, dilation."""
DEPTHWISE = 8.0
"""The distance that is added between a depthwise problem and one with several channels per group."""
WORDS = ("math", "constant_weights", "bias", "residual", "activation", "accumulate")
WORD = 0.5
"""The distance that is added for each of WORDS (direction, dtype and the like) in which two problems differ."""

FAR = 2.5
"""The distance beyond which a measured problem is ignored; without a nearer one the registry's rules choose the
solver."""
NEAR = 0.5
"""The distance within which a measured choice may be taken over for a solver that has no cost model."""
MOST = 16
"""The number of nearest measured problems from which a prediction is corrected."""
MARGIN = 0.1
"""A rival must be predicted faster by this fraction to replace the solver that runs without measurements."""
SURE = 6
"""The number of samples from which a time counts as benchmarked; screening overestimates times, by half and more."""


@dataclass(frozen=True)
class Regret:
    """The cost of a rule's decisions: chosen time over best time, on problems where both are measured."""

    geomean: float = 1.0
    worst: float = 1.0
    worst_problem: str | None = None
    count: int = 0
    """The number of problems for which a regret is known: several choices were measured, that of the rule among
    them."""

    def __str__(self) -> str:
        if not self.count:
            return "regret unknown, too few measured problems"
        return f"regret {self.geomean:.2f}, worst {self.worst:.2f}, on {self.count} measured problems"


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
    regret: Regret
    tried: tuple[Record, ...] = ()
    """The solver's records at ``problem``, fastest first, screened ones left out."""

    def __str__(self) -> str:
        return f"prediction corrected by {self.problem}, {self.distance:.1f} away; {self.regret}"


def distance(one: ConvProblem, other: ConvProblem) -> float:
    """Return the distance of two problems: 0 for equal ones, infinite if direction, dtype, layout or rank differ."""
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
        """The distance from each problem of the crowd to ``problem``."""
        words = np.array([str(getattr(problem, word)) for word in WORDS])
        return np.abs(self._places - _place(problem)).sum(axis=1) + WORD * (self._words != words).sum(axis=1)

    def nearest_first(self, problem: ConvProblem) -> Iterator[tuple[float, ConvProblem]]:
        """Distance and problem; equally near ones in the crowd's order."""
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
        self._crowds = {kind: _Crowd(problems) for kind, problems in kinds.items()}
        self._solvers: dict[tuple[str, str, str, int], frozenset[str]] = {}
        self._paces: dict[ConvProblem, tuple[float, dict[str, float]]] = {}
        self._regret: Regret | None = None

    def __len__(self) -> int:
        return sum(len(crowd.problems) for crowd in self._crowds.values())

    def solvers(self, problem: ConvProblem) -> frozenset[str]:
        """The solvers that were measured at problems of this kind, however far away."""
        kind = _kind(problem)
        if kind not in self._solvers:
            crowd = self._crowds.get(kind)
            records = (record for other in (crowd.problems if crowd else ()) for record in self._choices[other])
            self._solvers[kind] = frozenset(record.solver for record in records)
        return self._solvers[kind]

    def nearest(self, problem: ConvProblem, accepts: Accepts | None = None) -> Neighbour | None:
        """The nearest measured problem's fastest decision that ``accepts``, or None when no neighbour has one."""
        for gap, measured in self._nearest_first(problem):
            choices = [r for r in self._choices[measured] if accepts is None or accepts(r.solver, r.config)]
            if choices:
                return self._as_there(choices[0], gap, measured, problem)
        return None

    def choose(self, problem: ConvProblem, offers: Mapping[str, Offer], first: str | None = None) -> Neighbour | None:
        """Return the solver that runs best by the nearest measured problems, of each solver's offer; ``first`` is what
        would run without.

        None where none is near enough, or where they say nothing of the best one.
        """
        others = ((gap, other) for gap, other in self._queried(problem, offers) if other != problem)
        # The problem's own records are left out: they were examined before, and are not usable.
        near = list(itertools.islice(others, MOST))
        if not near or near[0][0] > FAR:
            return None
        found = self._unpredicted(problem, near[0], offers, first) or self._corrected(near, offers, first)
        return found and dataclasses.replace(found, regret=self.regret())

    def corrections(self, problem: ConvProblem, offers: Mapping[str, Offer]) -> dict[str, float]:
        """By what other problems measured near by multiply a solver's prediction; only solvers that they measured."""
        near = ((gap, other) for gap, other in self._queried(problem, offers) if other != problem)
        sums, _ = self._sums(list(itertools.islice(itertools.takewhile(lambda one: one[0] <= FAR, near), MOST)))
        return {solver: math.exp(log / weights) for solver, (log, weights) in sums.items()}

    def regret(self) -> Regret:
        """The leave-one-out regret of ``choose`` on these records; worked out once."""
        if self._regret is None:
            self._regret = self._leave_one_out()
        return self._regret

    # --- how a solver is chosen by its neighbours --------------------------------------------------------------------

    def _unpredicted(
        self,
        problem: ConvProblem,
        nearest: tuple[float, ConvProblem],
        offers: Mapping[str, Offer],
        first: str | None,
    ) -> Neighbour | None:
        """Return the fastest solver without a cost model, if it beat all others and the problem is near or no solver
        has a cost model.

        Whom ``first`` names counts with its prediction for that problem where it was not measured there.
        """
        gap, measured = nearest
        predicts = any(offer.cost for offer in offers.values())
        if gap > (NEAR if predicts else FAR):
            return None
        choices = [record for record in self._choices[measured] if record.solver in offers]
        rival = next((r.median_ms for r in choices if offers[r.solver].cost), math.inf)
        if first is not None and offers[first].cost and all(record.solver != first for record in choices):
            rival = min(rival, 1e3 * (self._cost(first, measured, offers[first].config) or math.inf))
        for record in choices:
            if not offers[record.solver].cost and (record.count >= SURE or not predicts):
                beaten = record.median_ms * (1 + MARGIN) < rival
                return self._as_there(record, gap, measured, problem) if beaten else None
        return None

    def _corrected(
        self, near: Sequence[tuple[float, ConvProblem]], offers: Mapping[str, Offer], first: str | None
    ) -> Neighbour | None:
        if first is not None and not offers[first].cost:
            # The registry's first solver predicts no time, so nothing says how other solvers compare with it.
            return None
        sums, level = self._sums(near)
        promised = {}
        for solver, offer in offers.items():
            if offer.cost and (solver in sums or solver == first):
                log, weights = sums.get(solver, (0.0, 1.0))
                promised[solver] = math.log(offer.cost) + log / weights
        if not promised:
            return None
        lead = math.log1p(MARGIN)
        best = min(promised, key=lambda solver: (promised[solver] - (lead if solver == first else 0.0), solver))
        for gap, measured in near:
            if best in self._pace(measured)[1]:
                tried = [r for r in self._choices[measured] if r.solver == best and r.count >= SURE]
                ms = math.exp(promised[best] + level)
                return Neighbour(best, offers[best].config, str(measured), gap, ms, Regret(), tuple(tried))
        return None

    def _sums(self, near: Sequence[tuple[float, ConvProblem]]) -> tuple[dict[str, tuple[float, float]], float]:
        """By solver the weighted sum of its paces and the weights, a problem ``FAR`` away among them; and the level."""
        sums: dict[str, tuple[float, float]] = {}
        levels = total = 0.0
        for gap, measured in near:
            weight = _weight(gap)
            level, paces = self._pace(measured)
            levels, total = levels + weight * level, total + weight
            for solver, pace in paces.items():
                log, weights = sums.get(solver, (0.0, _weight(FAR)))
                sums[solver] = log + weight * pace, weights + weight
        return sums, levels / total if total else 0.0

    def _pace(self, measured: ConvProblem) -> tuple[float, dict[str, float]]:
        """Logarithms at a measured problem: the middle of times over predictions, and each solver's beside it.

        A solver's is the least over its records: a time that was disturbed is too long.
        """
        if measured not in self._paces:
            found: dict[str, float] = {}
            for record in self._choices[measured]:
                cost = self._cost(record.solver, measured, record.config)
                if cost:
                    ratio = math.log(record.median_ms / cost)
                    found[record.solver] = min(ratio, found.get(record.solver, math.inf))
            level = float(np.median([*found.values()])) if found else 0.0
            self._paces[measured] = level, {solver: ratio - level for solver, ratio in found.items()}
        return self._paces[measured]

    def _as_there(self, record: Record, gap: float, measured: ConvProblem, problem: ConvProblem) -> Neighbour:
        time = record.median_ms * (problem.flops / max(1, measured.flops) or 1.0)
        return Neighbour(record.solver, record.config, record.problem, gap, time, Regret())

    def _queried(self, problem: ConvProblem, offers: Mapping[str, Offer]) -> Iterator[tuple[float, ConvProblem]]:
        for gap, measured in self._nearest_first(problem):
            if any(record.solver in offers for record in self._choices[measured]):
                yield gap, measured

    def _nearest_first(self, problem: ConvProblem) -> Iterator[tuple[float, ConvProblem]]:
        crowd = self._crowds.get(_kind(problem))
        return crowd.nearest_first(problem) if crowd else iter(())

    # --- what choosing by neighbours has cost: the leave-one-out regret ----------------------------------------------

    def _leave_one_out(self) -> Regret:
        ratios: dict[str, float] = {}
        for problem in (problem for crowd in self._crowds.values() for problem in crowd.problems):
            times, offers = self._run(problem)
            if len(self._choices[problem]) < 2:
                continue
            near = ((gap, other) for gap, other in self._queried(problem, offers) if other != problem)
            nearest = list(itertools.islice(near, MOST))
            if not nearest or nearest[0][0] > FAR:
                continue
            predicted = {solver: offer.cost for solver, offer in offers.items() if offer.cost}
            first = min(predicted, key=predicted.__getitem__, default=None)
            chosen = self._unpredicted(problem, nearest[0], offers, first) or self._corrected(nearest, offers, first)
            solver = chosen.solver if chosen else first
            if solver is not None:
                ratios[str(problem)] = times[solver] / self._choices[problem][0].median_ms
        if not ratios:
            return Regret()
        worst = max(ratios, key=lambda text: (ratios[text], text))
        mean = math.exp(math.fsum(map(math.log, ratios.values())) / len(ratios))
        return Regret(mean, ratios[worst], worst, len(ratios))

    def _run(self, problem: ConvProblem) -> tuple[dict[str, float], dict[str, Offer]]:
        """By solver, the time of its default configuration, or of its fastest where that is unknown, and its offer."""
        picked: dict[str, Record] = {}
        for record in self._choices[problem]:
            if record.solver not in picked or (record.default and not picked[record.solver].default):
                picked[record.solver] = record
        times = {solver: record.median_ms for solver, record in picked.items()}
        return times, {s: Offer(r.config, self._cost(s, problem, r.config)) for s, r in picked.items()}


def _weight(gap: float) -> float:
    return (0.5 + gap) ** -2


_lock = threading.Lock()
_known: WeakKeyDictionary[PerfDB, dict[DeviceInfo | str, tuple[int, Neighbours]]] = WeakKeyDictionary()


def neighbours(db: PerfDB, device: DeviceInfo | str) -> Neighbours:
    """Return the Neighbours of a device's records in a database, cached until the database changes."""
    with _lock:
        cached = _known.setdefault(db, {})
        generation, found = cached.get(device, (-1, None))
        if found is None or generation != db.generation:
            found = Neighbours(db.all(device), _cost_on(device))
            cached[device] = (db.generation, found)
        return found


def _cost_on(device: DeviceInfo | str) -> Cost:
    def cost(solver: str, problem: ConvProblem, config: Mapping[str, Any]) -> float | None:
        found = plugins().solvers.get(solver)
        if found is None or isinstance(device, str):
            return None
        return predicted(found, problem, device, config)

    return cost
