"""The results of a search: the verdict, the solvers to set aside, and a record of each measured time."""

from __future__ import annotations

from ...api.device import DeviceInfo
from ...api.errors import ConvDispatchError
from ...api.policy import Policy
from ...api.problem import ConvProblem
from ...api.results import Result, Results
from ...selection import dispatch
from ...selection.choice import ranking
from ...selection.choice.provenance import current
from ...selection.records.perfdb import perfdb, scope_of
from ...selection.records.record import Record, choice_text, device_key, now
from ...selection.records.timing import verdict
from .candidates import Entry
from .probing import LOST


def judge(entries: list[Entry], refused: list[Result]) -> Results:
    """The results: the winner first, then the others by status and time."""
    measured_of = {entry.name: entry for entry in entries if entry.result.status == "measured"}
    # The winner is among the benchmarked candidates; screening times decide only where no candidate was benchmarked.
    rivals = {name: entry for name, entry in measured_of.items() if entry.benchmarked} or measured_of
    decision = verdict(
        {name: entry.timing for name, entry in rivals.items()},
        deterministic={name: bool(entry.result.deterministic) for name, entry in rivals.items()},
        workspace={name: entry.result.workspace or 0 for name, entry in rivals.items()},
    )
    order = {status: i for i, status in enumerate(("measured", "cut", "wrong", "failed", "refused", "not tried"))}

    def place(entry: Entry) -> tuple[bool, int, bool, float]:
        result = entry.result
        return entry.name != decision.winner, order[result.status], not result.benchmarked, result.median_ms or 0.0

    results = Results([*(entry.result for entry in sorted(entries, key=place)), *refused])
    results.verdict = decision.reason
    if decision.winner is not None and not rivals[decision.winner].benchmarked:
        results.verdict += "; not benchmarked, by screening alone"
    elif decision.winner is not None:
        unbenchmarked = [
            e
            for e in measured_of.values()
            if not e.benchmarked and e.timing.median < rivals[decision.winner].timing.median
        ]
        screened = [
            f"{entry.name} looked faster, {entry.timing.median:.4g} ms, but was not benchmarked"
            for entry in unbenchmarked
        ]
        results.verdict = "; ".join([results.verdict, *screened])
    results.tie = tuple(rivals[name].result for name in decision.tie)
    return results


def set_aside(entries: list[Entry], problem: ConvProblem, info: DeviceInfo) -> dict[str, str]:
    """Set aside the solvers whose configurations all failed, so that no call runs them unmeasured.

    Returns, by solver, the faults that later processes should know: wrong results, crashes and hangs.
    """
    unsound = {}
    for solver in sorted({entry.solver.name for entry in entries if entry.broken}):
        own_entries = [entry for entry in entries if entry.solver.name == solver]
        if all(entry.broken or entry.result.status in ("not tried", "refused") for entry in own_entries):
            broken = next(entry.result for entry in own_entries if entry.broken)
            dispatch.quarantine(problem, info, solver, f"find: {broken.status}: {broken.reason}")
            if broken.status == "wrong" or broken.reason.startswith(LOST):
                unsound[solver] = f"find: {broken.status}: {broken.reason}"
    return unsound


def record_of(result: Result, results: Results, workspace_limit: int | None, budget_ms: float | None) -> Record:
    """The record of a measured candidate, with its provenance."""
    from ... import __version__

    return Record(
        problem=str(results.problem),
        device=device_key(results.device),
        solver=result.solver,
        config=dict(result.config),
        default=result.default,
        median_ms=result.median_ms,
        ci_ms=result.ci,
        p20_ms=result.p20,
        p80_ms=result.p80,
        count=result.count,
        benchmarked=result.benchmarked,
        screening_ms=result.screening_ms,
        error=result.error,
        workspace=result.workspace,
        deterministic=result.deterministic,
        device_name=str(results.device),
        provenance=current(result.solver, results.device, workspace_limit),
        budget_ms=budget_ms,
        optimal=not results.conditions,
        conditions=results.conditions,
        inconclusive=results.inconclusive,
        created=now(),
        version=__version__,
    )


def conditions(results: Results, budget_ms: float | None) -> str:
    """The reasons why a search was not complete, as text."""
    untried = len(results.having("not tried"))
    too_large = [r for r in results.having("refused") if "workspace, the limit" in r.reason or "memory:" in r.reason]
    reasons = [f"{untried} candidates did not fit into {budget_ms:g} ms"] if untried else []
    reasons += [f"{len(too_large)} candidates did not fit into the memory"] if too_large else []
    return "; ".join(reasons)


def unmeasured(entries: list[Entry]) -> str:
    """Why the incumbent, which would run without the search, was not measured; empty if it was, or must not run."""
    for entry in entries:
        if entry.incumbent and entry.timing is None and not entry.broken:
            reason = entry.result.reason or entry.result.status
            return f"{entry.solver.name}, which ran until then, was not measured beside them: {reason}"
    return ""


def afterwards(results: Results, policy: Policy) -> str:
    """What a call under ``policy`` runs now that the results are recorded, and why; empty if it runs the winner."""
    winner, problem, device = results.winner, results.problem, results.device
    if winner is None:
        return ""
    try:
        candidate = ranking.rank(problem, device, policy)[0]
    except ConvDispatchError as error:
        return f"a call fails: {error}"
    choice = choice_text(candidate.solver.name, candidate.config)
    if choice == choice_text(winner.solver, winner.config):
        return ""
    source = candidate.source
    records = perfdb().lookup(problem, device, scope_of(policy))
    record = next((r for r in records if choice_text(r.solver, r.config) == choice), None)
    if record is not None and source.startswith("measured"):
        result = next((r for r in results if choice_text(r.solver, r.config) == choice), None)
        outcome = "not among the candidates" if result is None else result.reason or result.status
        source += f", of {record.created[:16]}; in this search it was: {outcome}"
    return f"a call runs {choice}: {source}"
