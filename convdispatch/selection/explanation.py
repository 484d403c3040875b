"""explain: every solver's verdict on a problem, what is known of its time, and the source of the choice."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

from ..api.device import DeviceInfo
from ..api.errors import NoSolver
from ..api.policy import Policy, current_policy
from ..api.problem import ConvProblem
from ..device import runtime
from ..device.rates import rates
from ..device.size_limits import problem_must_fit
from .choice.evidence import admitted_records
from .choice.ranking import Candidate, contestants, rank, refusal
from .choice.set_aside import errata_of
from .derivation import Derived
from .explanation_text import Ceiling, Explanation, Verdict, sentence
from .plugins.loader import plugins
from .records.record import Record
from .solver_query import Fault, predicted, query
from .visible_problem import unfused_seconds, visible_problem

__all__ = ["Explanation", "Verdict", "explain"]
_PARTS = ("bias", "residual", "activation", "accumulate", "norm", "sums")


def explain(problem: ConvProblem | str, device: Any = None) -> Explanation:
    """Every solver's verdict on a problem, refused with the reason or accepted with its rank, and the choice's source.

    ``problem`` may be text; ``device`` is what ``runtime.find_device`` takes. Compiles nothing, runs nothing.
    Raises MemoryLimit for what the device cannot hold.
    """
    if isinstance(problem, str):
        problem = ConvProblem.parse(problem)
    info = device if isinstance(device, DeviceInfo) else runtime.device_info(runtime.find_device(device))
    problem_must_fit(problem, info)
    policy = current_policy()
    asked, problem = problem, policy.problem_of_choice(problem)
    while True:
        try:
            ranked = rank(problem, info)
        except NoSolver:
            ranked = []
        try:
            verdicts = (*_accepted(ranked, problem, info), *_refused(problem, info))
            break
        except Fault:
            # A solver broke its contract at this question and was set aside, so the other solvers are ranked again.
            continue
    best = ranked[0] if ranked else None
    sentences = [sentence(verdicts, best.rule if best else ""), *_inconclusive_records(problem, info)]
    if policy.is_invariant and best and asked.direction != "bwd_weights":
        sentences.append(_invariance_cost(best, asked, info, policy))
    why = "; ".join(sentences)
    chosen, source = (best.solver.name, best.source) if best else (None, None)
    calibrated = rates(info).measured
    basis = (
        "at the device's measured rates" if calibrated else "at estimated rates: convdispatch calibrate measures them"
    )
    return Explanation(asked, info, chosen, source, verdicts, why, basis)


def _invariance_cost(invariant: Candidate, problem: ConvProblem, device: DeviceInfo, policy: Policy) -> str:
    """A sentence on the predicted cost, for this batch, of choosing one solver for every batch."""
    chosen = f"it is chosen as for a batch of {policy.problem_of_choice(problem).mb} images, for every batch"
    free = rank(problem, device, replace(policy, batch_invariant=False))[0]
    times = [predicted(one.solver, problem, device, one.config) for one in (invariant, free)]
    if (invariant.solver.name, invariant.config) == (free.solver.name, free.config):
        return f"{chosen}; without batch_invariant the same would run here"
    if None in times:
        return f"{chosen}; without batch_invariant {free.solver.name} would run here, and one of both predicts no time"
    invariant_ms, free_ms = (1e3 * time for time in times if time is not None)
    return (
        f"{chosen}; it is predicted to take {invariant_ms:.3g} ms here, and {free.solver.name}, which would run "
        f"without batch_invariant, {free_ms:.3g} ms: {invariant_ms / max(free_ms, 1e-9):.2f} times as long"
    )


def by_workspace(problem: ConvProblem, device: DeviceInfo) -> list[Ceiling]:
    """The solver that runs under each ceiling of the workspace, the lowest first: one entry for each change.

    A choice can change only if another configuration fits, so the workspaces of all configurations are tried.
    """
    policy, ceilings = current_policy(), list[Ceiling]()
    problem = policy.problem_of_choice(problem)
    records = admitted_records(problem, device, policy)
    sizes = {0, *(record.workspace for record in records)}
    for solver in contestants(problem, device).values():
        if refusal(solver, problem, device, policy) is None:
            answers = query(solver, problem, device)
            sizes.update(answers.workspace(config) or 0 for config in answers.within(policy.workspace_limit))
    for size in sorted(size for size in sizes if policy.workspace_limit is None or size <= policy.workspace_limit):
        try:
            best = rank(problem, device, replace(policy, workspace_limit=size))[0]
        except NoSolver:
            best = None
        ceiling = _ceiling_entry(size, best, problem, device, records)
        if not ceilings or (ceiling.solver, ceiling.config) != (ceilings[-1].solver, ceilings[-1].config):
            ceilings.append(ceiling)
    return ceilings


def _ceiling_entry(
    size: int, candidate: Candidate | None, problem: ConvProblem, device: DeviceInfo, records: Iterable[Record]
) -> Ceiling:
    """The entry for a ceiling of ``size`` bytes, under which ``candidate`` runs, or no solver."""
    if candidate is None:
        return Ceiling(size, None, {}, None, None)
    name, config = candidate.solver.name, dict(candidate.config)
    cost = query(candidate.solver, problem, device).cost(config)
    measured_ms = next((r.median_ms for r in records if (r.solver, dict(r.config)) == (name, config)), None)
    return Ceiling(size, name, config, None if cost is None else 1e3 * cost, measured_ms)


def _inconclusive_records(problem: ConvProblem, device: DeviceInfo) -> Iterator[str]:
    """A sentence for each reason why records decide nothing."""
    records = admitted_records(problem, device, current_policy())
    for why in dict.fromkeys(record.inconclusive for record in records if record.inconclusive):
        names = ", ".join(dict.fromkeys(one.solver for one in records if one.inconclusive == why))
        yield f"what is on record of {names} decides nothing: {why}"


def _accepted(ranked: list[Candidate], problem: ConvProblem, device: DeviceInfo) -> Iterator[Verdict]:
    records = admitted_records(problem, device, current_policy())
    for place, candidate in enumerate(ranked):
        solver = candidate.solver
        visible, answers = visible_problem(solver, problem), query(solver, problem, device)
        record = next((record for record in records if record.solver == solver.name), None)
        cost = answers.cost(candidate.config)
        cost = None if cost is None else cost + unfused_seconds(solver, problem, device)
        yield Verdict(
            solver.name,
            plugins().provider(solver.name),
            "accepted" if place else "chosen",
            config=candidate.config,
            source=candidate.source,
            predicted=cost,
            predicted_ms=None if cost is None else cost * 1e3,
            measured_ms=record.median_ms if record else None,
            ci_ms=record.ci_ms if record else None,
            benchmarked=record.sure if record else None,
            error=record.error if record else None,
            workspace=record.workspace if record else answers.workspace(candidate.config),
            fuses=tuple(part for part in _PARTS if getattr(visible, part)),
            rewriting=solver.words(visible) if isinstance(solver, Derived) else None,
            errata=tuple(
                f"{one.remedy or 'set aside'}: {', '.join(one.kernel)}: {one}"
                for one in errata_of(solver.name, problem, device)
                if one.kernel
            ),
        )


def _refused(problem: ConvProblem, device: DeviceInfo) -> Iterator[Verdict]:
    for name, solver in contestants(problem, device).items():
        answer = refusal(solver, problem, device, current_policy())
        if answer:
            yield Verdict(name, plugins().provider(name), answer[0], reason=answer[1])
