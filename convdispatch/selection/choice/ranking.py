"""The order of choice: the solvers for a problem on a device, best first, each with its configuration and the reason.

Solvers that accept the problem rank in this order: the one that a lock file names; those that records measured, the
fastest first; the one that measured neighbours favour; those that ``registry.yaml`` prefers; then the least predicted
time; then the name. An unmeasured solver may rank before measured ones (``evidence.ahead``). A policy that names a
solver refuses all others.

Two kinds of solvers can seldom be first, and are queried only where they may be (``Choices``): those of a plugin that
predicts no time (a vendor's library, which must be loaded to be queried), and derived ones, which take at least as long
as the copies that they make, and which a rule prefers only by name.
"""

from __future__ import annotations

import contextlib
import fnmatch
import math
import os
import reprlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ...api.device import DeviceInfo
from ...api.errors import InvalidPolicy, NoSolver
from ...api.policy import Policy, current_policy
from ...api.problem import ConvProblem
from ...api.solver import Solver
from ..defensive_copy import banned
from ..derivation import Derived, derived, may_beat
from ..plugins.loader import plugins
from ..plugins.registry import Rule, packaged_path, registry
from ..records.perfdb import perfdb
from ..solver_query import Fault, SolverAnswers, least_seconds, predicted, query, refuses_kind
from ..visible_problem import unfused_seconds
from . import lockfile
from .evidence import Evidence, Prediction, admitted_records, ahead, error_reason, from_neighbours, measured
from .neighbours import MARGIN, Offer, neighbours
from .set_aside import erratum, needs_too_much, quarantined


@dataclass(frozen=True)
class Candidate:
    """A solver that accepts the problem, the configuration it would run with, and what put it in its place."""

    solver: Solver
    config: Mapping[str, Any]
    source: str
    """What gave the candidate its rank, for example ``measured``, ``registry.yaml:12`` or ``predicted``."""
    rule: str = ""
    """The rule that gave the candidate its rank, in words."""
    math: str = ""
    """The math for which the solver offered the configuration, if a stored decision says so; if empty, the solver is
    queried."""


def rank(problem: ConvProblem, device: DeviceInfo, policy: Policy | None = None) -> list[Candidate]:
    """The candidates for a problem, best first. Raises NoSolver with every reason when there is none."""
    policy = policy or current_policy()
    problem = policy.problem_of_choice(problem)
    return [candidate for candidate, _ in _ranked(problem, device, policy, lambda: contestants(problem, device))]


def _ranked(
    problem: ConvProblem, device: DeviceInfo, policy: Policy, solvers: Callable[[], dict[str, Solver]]
) -> list[tuple[Candidate, tuple[Any, ...]]]:
    """The candidates among ``solvers()``, best first, each with its sort key among unmeasured solvers."""
    while True:
        accepted, reasons = {}, {}
        for name, solver in solvers().items():
            refused = refusal(solver, problem, device, policy)
            if refused:
                reasons[name] = refused[1]
            else:
                accepted[name] = solver
        if not accepted:
            raise NoSolver(problem, str(device), reasons)
        try:
            candidates = _Ranking(problem, device, policy, accepted, reasons).candidates()
            if not any(banned(solver) for solver in accepted.values()):
                return candidates
        except Fault:
            # A solver broke its contract at a later query and was set aside, so the others are ranked again.
            continue


class Choices:
    """The candidates in the order of ``rank``. Solvers that cannot be first are queried only when a second candidate is
    wanted."""

    def __init__(
        self, problem: ConvProblem, device: DeviceInfo, policy: Policy | None = None, first: Candidate | None = None
    ) -> None:
        """``first`` is the best candidate if a stored decision names it; then no solver is queried for it."""
        policy = policy or current_policy()
        self._query = policy.problem_of_choice(problem), device, policy
        self._ranked: list[Candidate] | None = None
        first = first or _first_cheaply(*self._query)
        if first is None:
            self._ranked = rank(*self._query)
            first = self._ranked[0]
        self.first: Candidate = first

    def __iter__(self) -> Iterator[Candidate]:
        yield self.first
        if self._ranked is None:
            self._ranked = rank(*self._query)
        yield from (candidate for candidate in self._ranked if candidate.solver.name != self.first.solver.name)


def _first_cheaply(problem: ConvProblem, device: DeviceInfo, policy: Policy) -> Candidate | None:
    """The first candidate of ``rank``, without querying derived solvers or plugins that predict nothing; None if one of
    these may be first."""
    loaded = plugins()
    by_plugin = _plugins_solvers()
    silent = {name for name, solvers in by_plugin.items() if not any(solver.predicts for solver in solvers.values())}
    if policy.solver is not None or lockfile.in_force(problem) is not None:
        return None
    predicting = {plugin: solvers for plugin, solvers in by_plugin.items() if plugin not in silent}
    direct = dict(sorted((name, solver) for solvers in predicting.values() for name, solver in solvers.items()))
    records = [one for one in admitted_records(problem, device, policy) if not one.inconclusive]
    recorded = [record.solver for record in records]
    # Measured neighbours are records of other batches: they do not bear on a choice for every batch.
    nearby = set() if policy.is_invariant else neighbours(perfdb(), device).solvers(problem)
    if not recorded and not nearby:
        direct = _with_a_chance(problem, device, policy, direct)
    try:
        placed = _ranked(problem, device, policy, lambda: direct)
    except NoSolver:
        return None
    first = placed[0][0]
    if _may_derived_be_first(problem, device, predicting, placed, recorded, nearby):
        return None
    # A measured solver was put first; records that are slower than its own do not affect the choice.
    if first.source.startswith("measured "):
        last = max(place for place, name in enumerate(recorded) if name == first.solver.name)
        faster = [*records[:last], *(one for one in records[last:] if one.median_ms < records[last].median_ms)]
        return None if any(loaded.provider(one.solver) in silent for one in faster) else first
    if any(loaded.provider(name) in silent for name in (*recorded, *nearby)):
        return None
    least_place = min(place for _, place in placed)
    order = preferred(problem, device)
    # A rule for derived solvers may name one that is derived from a solver that was not queried.
    if any(one.may_select_derived() for one in order if one.place <= least_place[0]):
        return None
    names = [name for plugin in silent for name in by_plugin[plugin]]
    return first if all(_sort_key(order, name, None)[0] > least_place for name in names) else None


def _with_a_chance(
    problem: ConvProblem, device: DeviceInfo, policy: Policy, solvers: Mapping[str, Solver]
) -> dict[str, Solver]:
    """The accepting ones of ``solvers`` that may be first where nothing is measured: without those that go after
    another one even if they take no longer than their ``least_seconds``."""
    order, kept, best = preferred(problem, device), {}, None
    asked = {name: solver for name, solver in solvers.items() if refuses_kind(solver, problem, device) is None}
    least = {name: _sort_key(order, name, least_seconds(solver, problem, device))[0] for name, solver in asked.items()}
    for name in sorted(least, key=lambda name: (least[name][2] > 0, least[name])):
        if best is not None and least[name] > best:
            continue
        solver = asked[name]
        if refusal(solver, problem, device, policy) is None:
            kept[name] = solver
            answers = query(solver, problem, device)
            with contextlib.suppress(Fault):
                cost = answers.cost(next(admitted(answers, policy)))
                if cost is not None:
                    cost += unfused_seconds(solver, problem, device)
                    best = min(best or (math.inf,), _sort_key(order, name, cost)[0])
    return kept


def _may_derived_be_first(
    problem: ConvProblem,
    device: DeviceInfo,
    by_plugin: Mapping[str, Mapping[str, Solver]],
    placed: list[tuple[Candidate, tuple[Any, ...]]],
    recorded: list[str],
    nearby: Iterable[str],
) -> bool:
    """Whether a solver that is derived from one of ``own`` may go before the direct ones, ``placed``.

    It may where a rule, a record or a neighbour names derived ones. Else no rule prefers it, so it goes neither before
    one that a rule prefers, nor before one that is predicted to take less than the copies that the derivation makes.
    """
    order = preferred(problem, device)
    (_, first_place), places = placed[0], [place for _, place in placed]
    if any(rule.may_select_derived() for rule in order) or any("+" in name for name in (*recorded, *nearby)):
        return True
    behind_rules = [place for (candidate, place) in placed if candidate.solver.name in recorded] or [min(places)]
    if all(place[0] < len(order) for place in (first_place, *behind_rules)):
        return False
    costs = [1e-3 * record.median_ms for record in perfdb().lookup(problem, device) if record.solver in recorded]
    costs += [cost for _, without_cost, cost, _ in (first_place, min(places)) if not without_cost]
    return not costs or may_beat(max(costs) * (1 + MARGIN), problem, device, by_plugin)


def _plugins_solvers() -> dict[str, dict[str, Solver]]:
    """Each plugin's solvers by name."""
    loaded = plugins()
    by_plugin: dict[str, dict[str, Solver]] = {}
    for name, solver in loaded.solvers.items():
        by_plugin.setdefault(loaded.plugin_of.get(name, name), {})[name] = solver
    return by_plugin


def _sort_key(order: list[Preferred], name: str, cost: float | None) -> tuple[tuple[Any, ...], Preferred | None]:
    """The sort key of an unmeasured solver, and the rule that prefers it."""
    rule = next((rule for rule in order if rule.selects(name)), None)
    return (rule.place if rule else len(order), cost is None, cost or 0.0, name), rule


def contestants(problem: ConvProblem, device: DeviceInfo) -> dict[str, Solver]:
    """Every solver for a problem, by name, sorted: the plugins', and those derived where a plugin has a gap."""
    return dict(sorted({**plugins().solvers, **derived(problem, device, _plugins_solvers())}.items()))


def refusal(solver: Solver, problem: ConvProblem, device: DeviceInfo, policy: Policy) -> tuple[str, str] | None:
    """Why ``solver`` is no candidate, as (status, reason), or None. A solver that breaks its contract is set aside."""
    if policy.solver is not None and not fnmatch.fnmatchcase(solver.name, policy.solver):
        return "refused", f"policy(solver={policy.solver!r}) does not name it"
    if policy.repeats and not solver.deterministic:
        option = "batch_invariant" if policy.is_invariant else "deterministic"
        return "refused", f"policy({option}=True), and this solver is not deterministic"
    if policy.is_strict_nan and solver.spreads_nonfinite is not False:
        says = "spreads an infinity or NaN" if solver.spreads_nonfinite else "does not say spreads_nonfinite = False"
        return "refused", f"policy(strict_nan=True), and this solver {says}"
    # Most solvers are for other devices or dtypes, and need not be asked about each problem again.
    if reason := refuses_kind(solver, problem, device):
        return "refused", reason
    invariant = policy.is_invariant and problem.direction != "bwd_weights"
    problem = policy.problem_of_choice(problem)
    set_aside_reason = set_aside_here(solver, problem, device)
    if set_aside_reason:
        return set_aside_reason
    answers = query(solver, problem, device)
    reason = answers.refused or error_reason(solver, problem, device, policy)
    if reason is None and answers.accepts and policy.solver is None:
        reason = plugins().never_run(plugins().provider(solver.name))
    if reason is None and invariant and not solver.batch_invariant:
        reason = "policy(batch_invariant=True), and this solver does not say that it is"
    if reason:
        return "refused", reason
    try:
        if answers.accepts and (reason := needs_too_much(solver, problem, device)):
            return "refused", reason
        if answers.accepts and next(answers.within(policy.workspace_limit), None) is None:
            return "refused", f"no configuration needs {policy.workspace_limit} bytes of workspace or less"
        if answers.accepts and invariant:
            if reason := answers.refuses_batches((1, 8 * problem.mb)):
                return "refused", f"policy(batch_invariant=True), and not every batch: {reason}"
            if next(admitted(answers, policy), None) is None:
                return "refused", "policy(batch_invariant=True), and each configuration sums by the batch"
    except Fault:
        pass
    return ("quarantined", answers.fault) if answers.fault else None


def admitted(answers: SolverAnswers, policy: Policy) -> Iterator[Mapping[str, Any]]:
    """The configurations that a policy admits, the one to use without measuring first. Raises Fault."""
    within = answers.within(policy.workspace_limit)
    return filter(answers.is_invariant, within) if policy.is_invariant else within


def offered(answers: SolverAnswers, policy: Policy) -> list[Mapping[str, Any]]:
    """The configurations that a policy admits, whatever workspace they need. Raises Fault."""
    return [config for config in answers.configs if not policy.is_invariant or answers.is_invariant(config)]


def set_aside_here(solver: Solver, problem: ConvProblem, device: DeviceInfo) -> tuple[str, str] | None:
    """Return why a solver must not run here although it may accept, as (status, reason), or None."""
    reason = erratum(solver.name, problem, device)
    if reason is None and isinstance(solver, Derived):
        reason = erratum(solver.root.name, solver.innermost(problem), device)
    if reason:
        return "refused", reason
    failed = quarantined(problem, device, solver.name)
    # A quarantined solver may crash or hang again, so it must not run here.
    return ("quarantined", failed) if failed else None


class _Ranking:
    """Puts the accepted solvers of one problem in order, each with the configuration it would run."""

    def __init__(
        self,
        problem: ConvProblem,
        device: DeviceInfo,
        policy: Policy,
        accepted: Mapping[str, Solver],
        reasons: Mapping[str, str],
    ) -> None:
        self.problem, self.device, self.policy = problem, device, policy
        self.accepted, self.reasons = accepted, reasons

    def candidates(self) -> list[tuple[Candidate, tuple[Any, ...]]]:
        """Locked, measured and neighbours' solvers, then by registry, predicted cost and name; each with its sort
        key."""
        ordered: list[Candidate] = []
        evidence = measured(self.problem, self.device, self.policy, self.accepted, self.configs)
        offers = self._offers()
        placed = self._unmeasured(offers)
        unmeasured = [candidate for candidate, _ in placed]
        neighbour = None
        if not evidence and not self.policy.is_invariant:
            first = unmeasured[0].solver.name
            neighbour = from_neighbours(self.problem, self.device, offers, first, self._affordable, self._cost)
        places = {candidate.solver.name: place for candidate, place in placed}
        recorded = [
            *(_candidate(self.accepted, item) for item in self._locked()),
            *(self._unbeaten(evidence, placed, offers) if evidence else ()),
            *(_candidate(self.accepted, item) for item in (*evidence, *([neighbour] if neighbour else []))),
        ]
        for candidate in (*recorded, *unmeasured):
            if all(candidate.solver.name != ranked.solver.name for ranked in ordered):
                ordered.append(candidate)
        return [(candidate, places[candidate.solver.name]) for candidate in ordered]

    def _unbeaten(
        self,
        known: list[Evidence],
        placed: list[tuple[Candidate, tuple[Any, ...]]],
        offers: Mapping[str, Offer],
    ) -> list[Candidate]:
        """The candidate that ranks before the first record without being it, with the reason; perhaps none."""
        is_free = not self.policy.is_invariant
        corrections = neighbours(perfdb(), self.device).corrections(self.problem, offers) if is_free else {}
        configs = {item.solver: item.config for item in known}
        predictions = {}
        for candidate, place in placed:
            name, cost = candidate.solver.name, offers[candidate.solver.name].cost
            # A measured solver's prediction is for the configuration that was measured.
            if name in configs:
                cost = query(candidate.solver, self.problem, self.device).cost(configs[name])
            predicted = None if cost is None else 1e3 * cost * corrections.get(name, 1.0)
            predictions[name] = Prediction(name, place, predicted, candidate.rule != "")
        choice = ahead(known, predictions)
        if choice is None:
            return []
        name, reason = choice
        config, source = offers[name].config, next(c.source for c, _ in placed if c.solver.name == name)
        for evidence in known:
            if evidence.solver == name:
                config, source = evidence.config, evidence.source
        return [Candidate(self.accepted[name], config, source, reason)]

    def configs(self, solver: str) -> list[Mapping[str, Any]]:
        """Return the configurations that a solver offers for the problem, and that the policy admits."""
        return offered(query(self.accepted[solver], self.problem, self.device), self.policy)

    def _affordable(self, solver: str) -> list[Mapping[str, Any]]:
        """Return the configurations that a solver offers within the policy's workspace limit."""
        return list(admitted(query(self.accepted[solver], self.problem, self.device), self.policy))

    def _cost(self, solver: str, problem: ConvProblem, config: Mapping[str, Any]) -> float | None:
        """What a solver predicts for a problem and configuration; None if the configuration is not valid for it."""
        return predicted(self.accepted[solver], problem, self.device, config)

    def _offers(self) -> dict[str, Offer]:
        """Return the configuration that each accepting solver would run if nothing were measured."""
        offers = {}
        for name, solver in self.accepted.items():
            answers = query(solver, self.problem, self.device)
            config = next(admitted(answers, self.policy))
            cost = answers.cost(config)
            unfused = unfused_seconds(solver, self.problem, self.device)
            offers[name] = Offer(config, None if cost is None else cost + unfused)
        return offers

    def _locked(self) -> list[Evidence]:
        locked = lockfile.in_force(self.problem)
        if locked is None or self.policy.solver is not None:
            return []
        decision, path = locked
        if decision.solver not in self.accepted:
            reason = self.reasons.get(decision.solver, "no plugin provides it")
            raise InvalidPolicy(
                f"{path} fixes {decision.solver} for {self.problem}, which cannot run on {self.device}: {reason}; "
                "lock anew with convdispatch find --lock"
            )
        if not query(self.accepted[decision.solver], self.problem, self.device).offers(decision.config):
            raise InvalidPolicy(
                f"{path} fixes {decision.solver} for {self.problem} with {reprlib.repr(dict(decision.config))}, "
                f"which is no configuration that it offers on {self.device}; lock anew with convdispatch find --lock"
            )
        return [Evidence(decision.solver, decision.config, f"lock file {path}")]

    def _unmeasured(self, offers: Mapping[str, Offer]) -> list[tuple[Candidate, tuple[Any, ...]]]:
        order = preferred(self.problem, self.device)
        keyed = []
        for name, offer in offers.items():
            place, rule = _sort_key(order, name, offer.cost)
            origin = rule.rule.where if rule else "predicted" if offer.cost is not None else "name"
            keyed.append((Candidate(self.accepted[name], offer.config, origin, str(rule or "")), place))
        return sorted(keyed, key=lambda pair: pair[1])


def _candidate(accepted: Mapping[str, Solver], evidence: Evidence) -> Candidate:
    return Candidate(accepted[evidence.solver], evidence.config, evidence.source)


def reasons(problem: ConvProblem, device: DeviceInfo, policy: Policy) -> dict[str, str]:
    """Why each solver that refuses does, by name."""
    solvers = contestants(problem, device)
    answers = {name: refusal(solver, problem, device, policy) for name, solver in solvers.items()}
    return {name: answer[1] for name, answer in answers.items() if answer}


@dataclass(frozen=True)
class Preferred:
    """One name, glob or family of a rule; all solvers that it selects share ``place``, 0 for the first."""

    place: int
    glob: str
    rule: Rule
    plugin: str | None = None
    """The plugin whose solvers the name, glob or family selects; None for those of all plugins."""

    def __str__(self) -> str:
        packaged = packaged_path()
        where = self.rule.where.removeprefix(f"{packaged.parent}{os.sep}" if packaged else "")
        when = ", ".join(map(str, self.rule.when))
        globs = self.rule.globs(self.glob)
        name_text = self.glob if globs == (self.glob,) else f"{self.glob} ({', '.join(globs)})"
        return f"{where} prefers {name_text} for {when or 'everything'}"

    def selects(self, solver: str) -> bool:
        """Return whether the rule selects ``solver``; a derived solver only if the glob includes it, because rewriting
        has a cost."""
        if self.plugin is not None and plugins().provider(solver) != self.plugin:
            return False
        return any(
            ("+" in glob or "+" not in solver) and fnmatch.fnmatchcase(solver, glob)
            for glob in self.rule.globs(self.glob)
        )

    def may_select_derived(self) -> bool:
        """Whether the glob may select derived solvers."""
        return any("+" in glob for glob in self.rule.globs(self.glob))


def preferred(problem: ConvProblem, device: DeviceInfo) -> list[Preferred]:
    """Return the solvers that the matching rules prefer, the most preferred first. Raises InvalidPolicy.

    The user's rules come first, then those of plugins, each of which may prefer its own solvers by a ``registry.yaml``
    in its package, then the packaged rules. A user's registry without ``include`` replaces both.
    """
    rules, order = registry(), []
    first_rule = rules.rule(problem, device)
    if rules.own is not None and first_rule not in rules.rules[: rules.own]:
        matching = {name: shipped.rule(problem, device) for name, shipped in plugins().rules.items()}
        for name, rule in matching.items():
            order += [Preferred(i, glob, rule, name) for i, glob in enumerate(rule.prefer if rule else ())]
    offset = 1 + max((entry.place for entry in order), default=-1)
    order += [Preferred(offset + i, glob, first_rule) for i, glob in enumerate(first_rule.prefer if first_rule else ())]
    return sorted(order, key=lambda one: one.place)
