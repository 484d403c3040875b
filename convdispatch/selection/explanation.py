"""explain: every solver's verdict on a problem, what is known of its time, and the source of the choice."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from ..api.device import DeviceInfo
from ..api.errors import NoSolver, grouped
from ..api.policy import Policy, current_policy
from ..api.problem import ConvProblem
from ..device import runtime
from ..device.rates import rates
from ..device.size_limits import problem_must_fit, size_text
from .choice.evidence import admitted_records
from .choice.ranking import Candidate, contestants, rank, refusal
from .choice.set_aside import errata_of
from .derivation import Derived
from .plugins.loader import plugins
from .records.record import Record
from .solver_query import Fault, predicted, query
from .text_table import PIPED_WIDTH, UNBOUNDED, Column, Table
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


WIDTH = 80
"""The default width of an explanation's text, in columns."""


@dataclass(frozen=True)
class Verdict:
    """The verdict of one solver on one problem, and what is known of the solver's times."""

    solver: str
    plugin: str
    status: str
    """The solver's status for the problem: ``chosen``, ``accepted``, ``refused`` or ``quarantined``."""
    reason: str | None = None
    config: Mapping[str, Any] = field(default_factory=dict)
    source: str | None = None
    """What gave the solver its rank: a lock file, a measurement, a neighbour, a line of the registry, or a
    prediction."""
    predicted_ms: float | None = None
    """The time that the solver predicts for the problem, in milliseconds."""
    measured_ms: float | None = None
    """The median time, in milliseconds, of the solver's best record for this problem."""
    ci_ms: tuple[float, float] | None = None
    """The 95 % confidence interval of the measured median, in milliseconds."""
    benchmarked: bool | None = None
    """Whether the measured time comes from interleaved benchmarking with rivals; False for screening alone."""
    error: float | None = None
    """The relative error that the solver's best record measured."""
    workspace: int | None = None
    """Workspace in bytes: that of the record, or what the solver states without compiling."""
    fuses: tuple[str, ...] = ()
    """Parts of the problem's epilogue that the solver computes itself."""
    rewriting: str | None = None
    """How a derived solver rewrites the problem, and what the problem becomes; None for other solvers."""
    errata: tuple[str, ...] = ()
    """Kernels of the solver's library that are set aside for the problem, each with the reason."""


@dataclass(frozen=True)
class Explanation:
    """Every solver's verdict for one problem on one device, best first, and the source of the choice."""

    problem: ConvProblem
    device: DeviceInfo
    chosen: str | None
    source: str | None
    verdicts: tuple[Verdict, ...]
    why: str = ""
    """A sentence that says which solver runs, what ranked it first, its time, and the time of the next solver."""
    predicted_by: str = ""
    """The source of the predicted times, such as the device's measured rates."""

    def to_dict(self) -> dict[str, Any]:
        """Return the explanation as JSON values."""
        return {
            "problem": str(self.problem),
            "device": str(self.device),
            "chosen": self.chosen,
            "source": self.source,
            "why": self.why,
            "predicted_by": self.predicted_by,
            "solvers": [{**asdict(v), "config": dict(v.config), "fuses": list(v.fuses)} for v in self.verdicts],
        }

    def text(self, width: int = WIDTH, every: bool = False) -> str:
        """Return the text of the explanation: the sentence, the table, the solvers that refuse and why; with ``every``
        a line for each solver that refuses."""
        return "\n".join(_lines(self, width, every))

    def __str__(self) -> str:
        return self.text()

    def __repr__(self) -> str:
        return f"<Explanation of {self.problem} on {self.device}: {self.chosen or 'nobody'} runs>"


@dataclass(frozen=True)
class Ceiling:
    """The choice under a ceiling of the workspace, which holds up to the next higher ceiling."""

    workspace: int
    """The lowest ceiling of this choice, in bytes."""
    solver: str | None
    """The solver that runs; None if no solver has so small a workspace."""
    config: Mapping[str, Any]
    predicted_ms: float | None
    measured_ms: float | None
    """The median time of the choice's record, in milliseconds."""


def ceilings_text(problem: ConvProblem, device: DeviceInfo, ceilings: Iterable[Ceiling], width: int = WIDTH) -> str:
    """Return a table of the solver and time under each ceiling of the workspace."""
    table = Table(Column("workspace from"), Column("solver", "name"), Column("predicted ms"), Column("measured ms"))
    for ceiling in ceilings:
        times = ("-" if ms is None else f"{ms:.3g}" for ms in (ceiling.predicted_ms, ceiling.measured_ms))
        table.add_row(size_text(ceiling.workspace), ceiling.solver or "nobody", *times)
    return "\n".join([f"{problem} on {device}, by the ceiling of the workspace", *table.lines(width)])


def sentence(verdicts: Iterable[Verdict], because: str) -> str:
    """A sentence that says which solver runs, why, how long it takes, and which solver is next; ``because`` is the rule
    that decided, as text."""
    ranked = [verdict for verdict in verdicts if verdict.status in ("chosen", "accepted")]
    if not ranked:
        return "nobody runs it: every solver refuses"
    chosen = ranked[0]
    reasons = {
        "predicted": "no rule prefers another, and its predicted cost is the lowest",
        "name": "nothing is measured, preferred or predicted, and its name comes first",
    }
    reason = because or reasons.get(str(chosen.source), str(chosen.source))
    measured = str(chosen.source).startswith("measured")
    prediction = "" if measured else _time(chosen)
    rival = ranked[1] if len(ranked) > 1 else None
    next_text = f"next {rival.solver} {_time(rival) or 'of unknown time'}" if rival else "nobody else accepts it"
    return f"{chosen.solver} runs: {reason}; " + ", ".join(filter(None, (prediction, next_text)))


def _time(verdict: Verdict) -> str:
    if verdict.measured_ms is not None:
        return f"measured {verdict.measured_ms:.4g} ms" + ("" if verdict.benchmarked else " at screening")
    return "" if verdict.predicted_ms is None else f"predicted {verdict.predicted_ms:.3g} ms"


def _lines(explanation: Explanation, width: int, every: bool) -> Iterator[str]:
    yield f"{explanation.problem} on {explanation.device}"
    room = PIPED_WIDTH if width >= UNBOUNDED else width
    yield from _wrapped(explanation.why, room, "")
    ranked = [verdict for verdict in explanation.verdicts if verdict.status in ("chosen", "accepted")]
    table = Table(
        Column("", "name"),
        Column("solver", "name"),
        Column("predicted ms"),
        Column("measured ms"),
        Column("error", rank=2),
        Column("workspace", rank=3),
        Column("by", "name", rank=1),
    )
    for verdict in ranked:
        table.add_row("->" if verdict.status == "chosen" else "", verdict.solver, *_cells(verdict))
    if ranked:
        yield from table.lines(width)
    for verdict in ranked:
        settings = " ".join(f"{name}={value}" for name, value in verdict.config.items())
        notes = settings if verdict.status == "chosen" else "", verdict.rewriting, *verdict.errata
        for note in filter(None, notes):
            yield from _wrapped(f"{verdict.solver}: {note}", room, "     ", "   ")
    if any(verdict.predicted_ms is not None for verdict in ranked):
        yield from _wrapped(f"predicted: {explanation.predicted_by}", room, "   ")
    refusals = {v.solver: v.reason for v in explanation.verdicts if v.status in ("refused", "quarantined")}
    for line in [f"{name}: {reason}" for name, reason in refusals.items()] if every else grouped(refusals):
        yield from _wrapped(line, room, "     ", "  x  ")


def _wrapped(text: str, width: int, indent: str, first_indent: str | None = None) -> list[str]:
    indents = {"initial_indent": indent if first_indent is None else first_indent, "subsequent_indent": indent}
    return textwrap.wrap(text, width, **indents, break_long_words=False, break_on_hyphens=False)


def _cells(verdict: Verdict) -> list[str]:
    screened = "" if verdict.benchmarked else " screened"
    return [
        "-" if verdict.predicted_ms is None else f"{verdict.predicted_ms:.3g}",
        "-" if verdict.measured_ms is None else f"{verdict.measured_ms:.3g}{screened}",
        "-" if verdict.error is None else f"{verdict.error:.1e}",
        "-" if verdict.workspace is None else size_text(verdict.workspace),
        _by(verdict),
    ]


def _by(verdict: Verdict) -> str:
    """Return as one word what gave a solver its rank."""
    source = str(verdict.source)
    if source.startswith("measured"):
        return "record" if verdict.benchmarked else "screening"
    words = {"neighbour": "neighbour", "lock file": "lock file", "predicted": "cost", "name": "name"}
    return next((word for start, word in words.items() if source.startswith(start)), "rule")
