"""Derived solvers: the list of those for a problem, and their methods."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from ...api.declared import declared_dtypes, outside_declaration
from ...api.device import DeviceInfo
from ...api.problem import DIRECTIONS, ConvProblem
from ...api.solver import Plan, Solver
from ...device.rates import rates
from ..choice.set_aside import quarantined
from ..defensive_copy import ask
from ..solver_query import query
from .plan import DerivedPlan, Room
from .rewriting import REWRITINGS, Rewritten

DEPTH = 4
"""The most rewritings that are applied one after the other."""
MOST = 2
"""The most derived solvers of one plugin for one problem, because a search compiles each of them."""
_PLAIN = ("flat", "rotated", "evened", "padded")
"""The rewritings that do not copy the written tensor, so that the inner plan computes the epilogue."""


class Derived(Solver):
    """A solver on what a problem becomes by one or more rewritings, the first of them applied first."""

    def __init__(self, root: Solver, chain: tuple[str, ...]) -> None:
        self.root, self.chain = root, chain
        self.name = "+".join((root.name, *chain))
        self.deterministic, self.exact, self.predicts = root.deterministic, root.exact, root.predicts
        self.spreads_nonfinite, self.batch_invariant = root.spreads_nonfinite, root.batch_invariant
        self.dtypes = frozenset().union(*(declared_dtypes(root, each) for each in DIRECTIONS))
        self._rewrite = REWRITINGS[chain[0]]
        self.inner = Derived(root, chain[1:]) if chain[1:] else root
        self.fuses = self.inner.fuses if chain[0] in _PLAIN else frozenset()

    def rewritten(self, problem: ConvProblem) -> Rewritten | str:
        """The problem's first rewriting, or why there is none."""
        return self._rewrite(problem)

    def words(self, problem: ConvProblem) -> str:
        """Return a sentence for people: how the problem is rewritten, and what it becomes."""
        said: list[str] = []
        solver: Solver = self
        moved = 0
        while isinstance(solver, Derived):
            step = solver.rewritten(problem)
            if isinstance(step, str):
                return step
            said.append(step.words)
            moved += step.moved
            solver, problem = solver.inner, step.inner
        copied = f"; {moved} bytes moved" if moved else ""
        return f"{'; '.join(said)}: {problem}{copied}"

    def innermost(self, problem: ConvProblem) -> ConvProblem:
        """Return the problem that the plugin's solver computes after all rewritings; the problem itself if one does not
        apply."""
        solver: Solver = self
        while isinstance(solver, Derived):
            step = solver.rewritten(problem)
            if isinstance(step, str):
                break
            solver, problem = solver.inner, step.inner
        return problem

    def _inner_problem(self, problem: ConvProblem) -> ConvProblem:
        return self._need(problem).inner

    def _need(self, problem: ConvProblem) -> Rewritten:
        found = self.rewritten(problem)
        if isinstance(found, str):
            raise ValueError(f"{self.name} refuses {problem}: {found}")
        return found

    # --- the methods of a solver -------------------------------------------------------------------------------------

    def rejects(self, problem: ConvProblem, device: DeviceInfo) -> str | None:
        """Why the rewriting does not apply, or why the solver refuses what it gives."""
        if problem.mb < 1:
            return f"1 image or more, got {problem.mb}"
        found = self.rewritten(problem)
        if isinstance(found, str):
            return found
        reason = outside_declaration(self.inner, found.inner, device) or ask(self.inner, "rejects", found.inner, device)
        return None if reason is None else f"rewritten: {reason}"

    def configs(self, problem: ConvProblem, device: DeviceInfo) -> Iterable[Mapping[str, Any]]:
        """The solver's own choices for the rewritten problem."""
        return ask(self.inner, "configs", self._inner_problem(problem), device)

    def cost(self, problem: ConvProblem, device: DeviceInfo, config: Mapping[str, Any]) -> float | None:
        """The solver's own prediction for each part, and what the copies take; None where the solver makes none."""
        found = self._need(problem)
        own = ask(self.inner, "cost", found.inner, device, config)
        if own is None:
            return None
        known = rates(device)
        return found.parts * own + found.moved / known.bandwidth + found.launches * known.launch

    def workspace(self, problem: ConvProblem, device: DeviceInfo, config: Mapping[str, Any]) -> int | None:
        """Bytes of the copies and of the inner plan; None where the solver states none."""
        found = self._need(problem)
        size = ask(self.inner, "workspace", found.inner, device, config)
        return None if size is None else Room(found, device, size, self._packs(problem, found)).workspace_size

    def sums_by_batch(self, problem: ConvProblem, device: DeviceInfo, config: Mapping[str, Any]) -> bool:
        """The solver's own answer for the rewritten problem; the copies sum nothing."""
        return bool(ask(self.inner, "sums_by_batch", self._inner_problem(problem), device, config))

    @staticmethod
    def _packs(problem: ConvProblem, found: Rewritten) -> bool:
        return problem.constant_weights and found.parts == 1 and any(copy.source == "w" for copy in found.copies)

    def plan(self, context: Any, problem: ConvProblem, config: Mapping[str, Any]) -> Plan:
        """The inner plan, with the copies round it."""
        found = self._need(problem)
        return DerivedPlan(context, problem, found, ask(self.inner, "plan", context, found.inner, config))


def derived(problem: ConvProblem, device: DeviceInfo, own: Mapping[str, Mapping[str, Solver]]) -> dict[str, Derived]:
    """The derived solvers that accept a problem, by name; ``own`` holds each plugin's solvers.

    Only where every solver of a plugin refuses: derivation fills a plugin's gaps and never rivals its own methods. For
    each solver the shortest chain of rewritings that it accepts, the earlier named ones first; of a plugin's, the MOST
    with the shortest chains and the least predicted costs.
    """
    found: dict[str, Derived] = {}
    for roots in _gaps(problem, device, own):
        made = [one for root in roots if (one := _shortest(root, problem, device)) is not None]
        made.sort(key=lambda one: (len(one.chain), *_cost(one, problem, device), one.name))
        found |= {one.name: one for one in made[:MOST]}
    return found


def may_beat(seconds: float, problem: ConvProblem, device: DeviceInfo, own: Mapping[str, Mapping[str, Solver]]) -> bool:
    """Whether a solver may be derived that is predicted to take less than ``seconds``.

    A chain of rewritings takes at least as long as its copies: only those below are asked whether a solver accepts.
    """
    known = rates(device)
    for roots in _gaps(problem, device, own):
        for chain, inner, moved, launches in _chains(_bare(problem)):
            if moved / known.bandwidth + launches * known.launch >= seconds:
                continue
            for root in roots:
                if query(root, inner, device).accepts:
                    without_cost, cost = _cost(Derived(root, chain), problem, device)
                    if not without_cost and cost < seconds:
                        return True
    return False


def _gaps(problem: ConvProblem, device: DeviceInfo, own: Mapping[str, Mapping[str, Solver]]) -> Iterator[list[Solver]]:
    """For each plugin all of whose solvers refuse a problem, those that others may be derived from."""
    # The solvers for empty batches and for quantized problems take any geometry, so nothing is derived for them.
    if problem.mb < 1 or problem.quantized:
        return
    for solvers in own.values():
        queried = [solver for name, solver in solvers.items() if not quarantined(problem, device, name)]
        answers = [query(solver, problem, device) for solver in queried]
        if not any(answer.accepts for answer in answers):
            yield [answer.solver for answer in answers if answer.fault is None and answer.elsewhere is None]


def _bare(problem: ConvProblem) -> ConvProblem:
    return problem.replace(bias=False, residual=False, activation=None, accumulate=False)


def _shortest(root: Solver, problem: ConvProblem, device: DeviceInfo) -> Derived | None:
    for chain, inner, _, _ in _chains(_bare(problem)):
        answer = query(root, inner, device)
        if answer.fault is not None:
            return None  # A warning of the solver's fault was given; each further chain of rewritings would repeat it.
        if answer.accepts:
            made = Derived(root, chain)
            if query(made, problem, device).accepts:
                return made
    return None


def _cost(solver: Derived, problem: ConvProblem, device: DeviceInfo) -> tuple[bool, float]:
    answer = query(solver, problem, device)
    cost = answer.cost(answer.configs[0]) if answer.accepts else None
    return cost is None, cost or 0.0


@functools.lru_cache(maxsize=1024)
def _chains(problem: ConvProblem) -> tuple[tuple[tuple[str, ...], ConvProblem, int, int], ...]:
    """Chains of rewritings that apply to a problem, the shortest first: their names, the problem that each ends in, and
    the bytes and launches that its copies take at least. No end twice."""
    level: list[tuple[tuple[str, ...], ConvProblem, int, int]] = [((), problem, 0, 0)]
    found: dict[ConvProblem, tuple[tuple[str, ...], ConvProblem, int, int]] = {problem: level[0]}
    for _ in range(DEPTH):
        steps = [
            ((*chain, name), step.inner, moved + step.moved, launches + step.launches)
            for (chain, now, moved, launches), name in itertools.product(level, REWRITINGS)
            if name not in chain and not isinstance(step := REWRITINGS[name](now), str)
        ]
        level = []
        for each in steps:
            if each[1] not in found:
                found[each[1]] = each
                level.append(each)
    return tuple(each for each in found.values() if each[0])


def named(name: str, solvers: Mapping[str, Solver]) -> Solver:
    """The solver of that name, derived ones included. Raises KeyError."""
    if name in solvers:
        return solvers[name]
    root, *chain = name.split("+")
    if not chain or any(rewriting not in REWRITINGS for rewriting in chain):
        raise KeyError(name)
    return Derived(solvers[root], tuple(chain))
