"""Runs cases through a plugin's solvers in this process, for the command and its workers."""

from __future__ import annotations

import fnmatch
import functools
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyopencl as cl

from ...api.errors import InvalidArgument
from ...api.fault_text import words
from ...api.problem import ConvProblem
from ...api.solver import Solver
from ...device import runtime
from ...selection import derivation
from ...selection.choice import set_aside
from ...selection.plugins.answer_trial import Hang
from ...selection.plugins.loader import Loaded, plugins
from ...selection.visible_problem import visible_problem
from .. import reference
from ..search.families import FAMILIES, draw, entering, families, family_limit, plane_errors
from ..search.trialdata import error_limit, operands_of
from .checks import BATCHES, FEW_BATCHES, Examination
from .contract import answer, configurations, statements
from .levels import Case
from .memory import Fault
from .outcome import Outcome

MAX_HANGS = 2
"""The number of cases that a solver may hang in before its other cases fail without a run: each costs the full time
limit."""
HUNG = f"it did not end in {MAX_HANGS} earlier cases, and is not asked any more"
BATCH_TEST_EVERY = 4
"""Of the further configurations that the level ``full`` runs, one in this number is also tried in several batches."""
FIRST_CASES = 2
"""The number of cases of each direction, the first that a solver computes, that get the long checks too."""


def find_plugin(name: str) -> Loaded:
    """The loaded plugin of that name. Raises InvalidArgument saying why there is none."""
    entries = [entry for entry in plugins().report if entry.name == name]
    loaded = [entry for entry in entries if entry.status == "loaded"]
    if loaded:
        return loaded[0]
    if entries:
        raise InvalidArgument(f"the plugin {name!r} did not load: {entries[0].reason}")
    names = ", ".join(sorted(entry.name for entry in plugins().report if entry.status == "loaded"))
    raise InvalidArgument(f"no plugin is named {name!r}; loaded are {names or 'none'}")


class Kit:
    """The kit for one plugin on one device. With ``derived`` also the solvers that dispatch derives from the plugin's.

    ``first`` is the number of cases, in each direction, that get the long checks although not marked. ``retried`` is
    the file and line of an erratum that is ignored.
    """

    def __init__(
        self,
        plugin: str,
        device: Any = None,
        solver: str | None = None,
        derived: bool = False,
        *,
        first: int = FIRST_CASES,
        retried: str | None = None,
    ) -> None:
        self._retried = retried
        if retried is not None:
            set_aside.retry(retried)

        self.plugin = find_plugin(plugin)
        solvers = {name: plugins().solvers[name] for name in self.plugin.solvers}
        self.solvers: dict[str, Solver] = {
            name: each for name, each in sorted(solvers.items()) if solver is None or fnmatch.fnmatchcase(name, solver)
        }
        self._pattern, self._derived, self._first = solver, derived, first
        root = None if solver is None else solver.partition("+")[0]
        self._own = {name: each for name, each in solvers.items() if root is None or fnmatch.fnmatchcase(name, root)}
        if not self.solvers and not derived:
            names = ", ".join(sorted(solvers)) or "none"
            lacks = plugins().unavailable(self.plugin.name)
            if lacks and not solvers:
                raise InvalidArgument(f"the plugin {plugin!r} provides no solver on this machine: {lacks}")
            raise InvalidArgument(f"the plugin {plugin!r} has no solver {solver or ''!r}; it has {names}")
        self.device = runtime.find_device(device)
        self.info = runtime.device_info(self.device)
        self.queue = cl.CommandQueue(runtime.context(self.device))
        self._computed: Counter[tuple[str, str]] = Counter()
        self._hangs: Counter[str] = Counter()
        self._seen: set[tuple[str, Any]] = set()

    def solvers_for(self, case: Case) -> list[Solver]:
        """The solvers that run a case."""
        solvers = list(self.solvers.values())
        if self._derived:
            derived = derivation.derived(case.problem, self.info, {self.plugin.name: self._own})
            pattern = "*" if self._pattern is None else self._pattern
            solvers += [solver for name, solver in derived.items() if fnmatch.fnmatchcase(name, pattern)]
        return solvers

    def run(self, case: Case) -> list[Outcome]:
        """Run a case, and return an outcome for each solver; errors of the plugin are outcomes too."""
        return [self.examine(solver, case) for solver in self.solvers_for(case)]

    def examine(self, solver: Solver, case: Case) -> Outcome:
        """The outcome of a case with one solver."""
        outcome = Outcome(str(solver.name), case.name, str(case.problem), case.level, "failed")
        began = time.perf_counter()
        if self._hangs[outcome.solver] >= MAX_HANGS:
            outcome.check, outcome.reason = "configurations", HUNG
            return outcome
        try:
            self._examine(solver, case, outcome)
        except Fault as fault:
            outcome.status, outcome.check, outcome.reason = "failed", fault.check, fault.message
            self._hangs[outcome.solver] += isinstance(fault.__cause__, Hang)
        except Exception as error:  # The driver or the plugin raised an error that no check expects.
            outcome.status, outcome.check = "failed", "plan"
            outcome.reason = f"{words(error)}"
        outcome.seconds = round(time.perf_counter() - began, 4)
        return outcome

    def lost(self) -> str | None:
        """Return why nothing can run in this process any more, or None: a kernel that faults destroys a GPU's
        context."""
        return runtime.probe.__wrapped__(self.device)

    def _examine(self, solver: Solver, case: Case, outcome: Outcome) -> None:
        reason = answer(solver, case.problem, self.info)
        if reason is not None:
            outcome.status, outcome.reason, outcome.checks = "refused", reason, ["words"]
            return
        seen = visible_problem(solver, case.problem)
        offered = configurations(solver, seen, self.info)
        config = offered[0]
        outcome.config = dict(config)
        examination = Examination(solver, seen, config, statements(solver, seen, self.info, config), self.queue)
        outcome.workspace = examination.size
        if case.level == "accuracy":
            self._accuracy(solver, seen, offered, outcome, examination)
            return
        if case.level == "erratum":
            for further in offered:
                outcome.config = dict(further)
                Examination(solver, seen, further, statements(solver, seen, self.info, further), self.queue).run(False)
            absent = self._retried is not None and set_aside.has_not_come_up(self._retried)
            outcome.status = "refused" if absent else "passed"
            outcome.reason = "none of the kernels that it names came up here" if absent else ""
            return
        key = solver.name, seen.direction
        try:
            batches = BATCHES if case.level in ("full", "own") else FEW_BATCHES
            examination.run(case.long or self._computed[key] < self._first, batches)
        finally:
            outcome.errors, outcome.checks = examination.errors, examination.passed
        self._computed[key] += 1
        outcome.status = "passed"
        if case.level in ("full", "own") and len(offered) > 1:
            self._examine_further(solver, seen, offered, outcome)

    def _accuracy(
        self, solver: Solver, seen: Any, offered: Sequence[Any], outcome: Outcome, examination: Examination
    ) -> None:
        """Examine the first configuration of each number format that the configurations name."""
        for config in _first_of_each_kind(offered):
            if config != offered[0]:
                stated = statements(solver, seen, self.info, config)
                examination = Examination(solver, seen, config, stated, self.queue)
            outcome.config = dict(config)
            try:
                examine(examination)
            finally:
                outcome.errors = {
                    family: max(error, outcome.errors.get(family, 0.0)) for family, error in examination.errors.items()
                }
        outcome.status, outcome.checks = "passed", ["words", "configurations", "plan", "families"]

    def _examine_further(self, solver: Solver, seen: Any, offered: Sequence[Any], outcome: Outcome) -> None:
        """Examine another configuration, the next one for each case, so that all cases together run all of them."""
        turn = self._computed[solver.name, "configuration"]
        self._computed[solver.name, "configuration"] += 1
        config = offered[1 + turn % (len(offered) - 1)]
        outcome.config = dict(config)
        examination = Examination(solver, seen, config, statements(solver, seen, self.info, config), self.queue)
        examination.run(False)
        if turn % BATCH_TEST_EVERY == 0:
            examination.same_in(FEW_BATCHES)


def _first_of_each_kind(offered: Sequence[Any]) -> list[Any]:
    """The first configuration of each combination of text values, whatever their numbers such as tiles; at most six."""
    kinds = {tuple((k, v) for k, v in config.items() if isinstance(v, str)): config for config in reversed(offered)}
    return [config for config in offered if config in kinds.values()][:6]


def examine(examination: Examination) -> None:
    """Compute every family of the problem's direction. Raises Fault that names those whose error exceeds its limit.

    Every output that reads an infinity or NaN must be infinite or NaN. Other outputs of its plane may be too if the
    solver states ``spreads_nonfinite``, or if the value is in the weights (or in dy, for weight gradients).
    """
    problem, spread, failures = examination.problem, examination.solver.spreads_nonfinite, []
    normal = 0.0
    for family in families(problem.direction):
        operands, expected, entered = _family_data(problem.replace(constant_weights=False, math="float32"), family)
        result = examination.compute(operands)
        errors = plane_errors(problem, result, expected, entered, spread=spread or family == "nonfinite_partner")
        worst = float(errors.max(initial=0))
        normal = worst if family == "normal" else normal
        limit = 3 * error_limit(problem) if family == "normal" else family_limit(problem, family, normal)
        examination.errors[family] = worst
        if not worst <= limit:
            plane = tuple(int(i) for i in np.unravel_index(np.argmax(errors), errors.shape))
            failures.append(f"{family} ({FAMILIES[family]}): plane {plane} errs by {worst:.2g}, at most {limit:.2g}")
    if failures:
        raise Fault("families", f"{'; '.join(failures)}; normal data: {normal:.2g}")


@functools.lru_cache(maxsize=32)
def _family_data(problem: ConvProblem, family: str) -> tuple[dict[str, np.ndarray], np.ndarray, np.ndarray]:
    """Operands, expected result and size of its terms; cached, because every solver and ``math`` gets the same."""
    operands = draw(family, problem, seed=3)
    with np.errstate(invalid="ignore"):
        expected = reference.compute(problem, **operands_of(problem, operands))
    return operands, expected, entering(problem, operands)
