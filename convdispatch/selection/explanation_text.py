"""The result of ``explain`` and its text: a sentence that says why the first solver is first, and a table of all
verdicts."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from ..api.device import DeviceInfo
from ..api.errors import grouped
from ..api.problem import ConvProblem
from .text_table import PIPED_WIDTH, UNBOUNDED, Column, Table

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
    predicted: float | None = None
    """The time that the solver predicts for the problem, in seconds."""
    predicted_ms: float | None = None
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
        table.add_row(_bytes(ceiling.workspace), ceiling.solver or "nobody", *times)
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
        "-" if verdict.workspace is None else _bytes(verdict.workspace),
        _by(verdict),
    ]


def _by(verdict: Verdict) -> str:
    """Return as one word what gave a solver its rank."""
    source = str(verdict.source)
    if source.startswith("measured"):
        return "record" if verdict.benchmarked else "screening"
    words = {"neighbour": "neighbour", "lock file": "lock file", "predicted": "cost", "name": "name"}
    return next((word for start, word in words.items() if source.startswith(start)), "rule")


def _bytes(count: int) -> str:
    for unit, size in (("GiB", 30), ("MiB", 20), ("KiB", 10)):
        if count >= 1 << size:
            return f"{count / (1 << size):.3g} {unit}"
    return f"{count} B"
