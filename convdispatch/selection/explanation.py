"""explain: every solver's answer to a problem, what is known of it, and where the choice came from."""

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
from .visible_problem import visible_problem

__all__ = ["Explanation", "Verdict", "explain"]


def explain(problem: ConvProblem | str, device: Any = None) -> Explanation:
    """Return every solver's verdict on a problem: refused with the reason, or accepted with its rank; and the choice's
    source.

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
    first = ranked[0] if ranked else None
    sentences = [sentence(verdicts, first.rule if first else ""), *_undecided(problem, info)]
    if policy.is_invariant and first and asked.direction != "bwd_weights":
        sentences.append(_price(first, asked, info, policy))
    why = "; ".join(sentences)
    chosen, source = (first.solver.name, first.source) if first else (None, None)
    calibrated = rates(info).measured
    basis = (
        "at the device's measured rates" if calibrated else "at estimated rates: convdispatch calibrate measures them"
    )
    return Explanation(asked, info, chosen, source, verdicts, why, basis)


def _price(first: Candidate, problem: ConvProblem, device: DeviceInfo, policy: Policy) -> str:
    """What the choice for every batch costs for this one, by prediction."""
    chosen = f"it is chosen as for a batch of {policy.problem_of_choice(problem).mb} images, for every batch"
    free = rank(problem, device, replace(policy, batch_invariant=False))[0]
    times = [predicted(one.solver, problem, device, one.config) for one in (first, free)]
    if (first.solver.name, first.config) == (free.solver.name, free.config):
        return f"{chosen}; without batch_invariant the same would run here"
    if None in times:
        return f"{chosen}; without batch_invariant {free.solver.name} would run here, and one of both predicts no time"
    ours, theirs = (1e3 * time for time in times if time is not None)
    return (
        f"{chosen}; it is predicted to take {ours:.3g} ms here, and {free.solver.name}, which would run without "
        f"batch_invariant, {theirs:.3g} ms: {ours / max(theirs, 1e-9):.2f} times as long"
    )


def by_workspace(problem: ConvProblem, device: DeviceInfo) -> list[Ceiling]:
    """What runs under each ceiling of the workspace, the lowest first: an entry for each at which the choice changes.

    A choice can change only where another configuration fits, so the ceilings that are tried are their workspaces.
    """
    policy, found = current_policy(), list[Ceiling]()
    problem = policy.problem_of_choice(problem)
    records = admitted_records(problem, device, policy)
    sizes = {0, *(record.workspace for record in records)}
    for solver in contestants(problem, device).values():
        if refusal(solver, problem, device, policy) is None:
            answers = query(solver, problem, device)
            sizes.update(answers.workspace(config) or 0 for config in answers.within(policy.workspace_limit))
    for size in sorted(size for size in sizes if policy.workspace_limit is None or size <= policy.workspace_limit):
        try:
            first = rank(problem, device, replace(policy, workspace_limit=size))[0]
        except NoSolver:
            first = None
        one = _under(size, first, problem, device, records)
        if not found or (one.solver, one.config) != (found[-1].solver, found[-1].config):
            found.append(one)
    return found


def _under(
    size: int, first: Candidate | None, problem: ConvProblem, device: DeviceInfo, records: Iterable[Record]
) -> Ceiling:
    """The entry of a ceiling of ``size`` bytes, under which ``first`` runs, or nobody."""
    if first is None:
        return Ceiling(size, None, {}, None, None)
    name, config = first.solver.name, dict(first.config)
    cost = query(first.solver, problem, device).cost(config)
    measured_ms = next((one.median_ms for one in records if (one.solver, dict(one.config)) == (name, config)), None)
    return Ceiling(size, name, config, None if cost is None else 1e3 * cost, measured_ms)


def _undecided(problem: ConvProblem, device: DeviceInfo) -> Iterator[str]:
    """Records that decide nothing, and why: a sentence a reason."""
    records = admitted_records(problem, device, current_policy())
    for why in dict.fromkeys(record.inconclusive for record in records if record.inconclusive):
        names = ", ".join(dict.fromkeys(one.solver for one in records if one.inconclusive == why))
        yield f"what is on record of {names} decides nothing: {why}"


def _accepted(ranked: list[Candidate], problem: ConvProblem, device: DeviceInfo) -> Iterator[Verdict]:
    records = admitted_records(problem, device, current_policy())
    for place, candidate in enumerate(ranked):
        solver = candidate.solver
        seen, answers = visible_problem(solver, problem), query(solver, problem, device)
        record = next((record for record in records if record.solver == solver.name), None)
        cost = answers.cost(candidate.config)
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
            fuses=tuple(part for part in ("bias", "residual", "activation", "accumulate") if getattr(seen, part)),
            rewriting=solver.words(seen) if isinstance(solver, Derived) else None,
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
