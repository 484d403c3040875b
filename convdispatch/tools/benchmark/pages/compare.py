"""Two runs beside each other: each problem that both measured, the times' ratio, and whether it says anything.

A problem is faster or slower where the intervals of the two medians stand apart and the ratio is beyond the tolerance;
otherwise it is the same as far as one can know.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console

from ....selection.records.timing import TOLERANCE
from ....selection.text_table import Column, Table
from ..quiet import busy, disturbed, signs
from ..report import Report
from ..summary import Line, geomean, lines
from .terminal import interval, number

VERDICTS = ("slower", "faster", "same")


@dataclass(frozen=True)
class Pair:
    """One problem in the old and in the new run."""

    old: Line
    new: Line
    doubtful: bool
    """Whether other work disturbed one of the two."""

    @property
    def speedup(self) -> float:
        """The old time over the new one: above 1 the new run is faster."""
        return self.old.ms / self.new.ms

    @property
    def verdict(self) -> str:
        """One of VERDICTS."""
        (low, high), (new_low, new_high) = _interval(self.old), _interval(self.new)
        apart = low > new_high or new_low > high
        if not apart or abs(self.speedup - 1) <= TOLERANCE:
            return "same"
        return "faster" if self.speedup > 1 else "slower"


def _interval(line: Line) -> tuple[float, float]:
    """A median without an interval is taken as it is."""
    best = line.measured.best
    return tuple(best.ci_ms) if best and best.ci_ms else (line.ms, line.ms)


@dataclass(frozen=True)
class Comparison:
    """``pairs`` by falling loss of time; ``only_old`` and ``only_new`` are problems that one run alone measured."""

    old: Report
    new: Report
    pairs: list[Pair]
    only_old: list[str]
    only_new: list[str]

    @property
    def notes(self) -> list[str]:
        """What makes the comparison doubtful, a sentence each."""
        said = []
        devices = [run.environment["device"] for run in (self.old, self.new)]
        if devices[0]["key"] != devices[1]["key"]:
            said.append(f"Two devices: {devices[0]['title']} before, {devices[1]['title']} after.")
        elif devices[0]["driver"] != devices[1]["driver"]:
            said.append(f"The driver changed: {devices[0]['driver']} before, {devices[1]['driver']} after.")
        for when, run in (("before", self.old), ("after", self.new)):
            if seen := signs(run):
                said.append(f"The machine was busy {when}. {busy(seen)}")
        return said

    @property
    def speedup(self) -> float | None:
        """Geometric mean over the problems; None where a run was disturbed or nothing is common."""
        doubtful = signs(self.old) or signs(self.new)
        return None if doubtful else geomean(pair.speedup for pair in self.pairs)

    def count(self, verdict: str) -> int:
        """Problems of a verdict."""
        return sum(pair.verdict == verdict for pair in self.pairs)


def compare(old: Report, new: Report) -> Comparison:
    """Pair the problems of two runs."""
    first, second = (_by_problem(run) for run in (old, new))
    pairs = [
        Pair(first[problem], second[problem], _doubtful(old, first[problem]) or _doubtful(new, second[problem]))
        for problem in first
        if problem in second
    ]
    pairs.sort(key=lambda pair: pair.old.ms - pair.new.ms)
    alone = [[p for p in one if p not in other] for one, other in ((first, second), (second, first))]
    return Comparison(old, new, pairs, *alone)


def _by_problem(report: Report) -> dict[str, Line]:
    return {line.measured.problem: line for line in reversed(lines(report)) if line.ms}


def _doubtful(report: Report, line: Line) -> bool:
    return disturbed(line.measured, report.environment["device"])


def heading(compared: Comparison) -> str:
    """All of it in a sentence."""
    mean = compared.speedup
    ratio = "is withheld, for a machine was busy" if compared.pairs and mean is None else f"is {number(mean)}"
    counts = ", ".join(f"{compared.count(verdict)} {verdict}" for verdict in VERDICTS)
    return (
        f"{len(compared.pairs)} problems in both runs: {counts}; the old time over the new one {ratio} (geometric mean)"
    )


def show_comparison(compared: Comparison, console: Console) -> None:
    """Print notes, a line a problem, and what only one run has."""
    for note in compared.notes:
        console.print(note, style="red", highlight=False)
    title = "Old and new, the most time lost first; ? stands where other work disturbed a run"
    ranks = {"95 %": 3, "solver": 1, "problem": 2}
    table = Table(
        *(Column(name, "name" if name in NAMES else "number", ranks.get(name, 0)) for name in COLUMNS), title=title
    )
    for row in cells(compared.pairs):
        table.add_row(*row)
    if compared.pairs:
        console.print(table)
    console.print(heading(compared), highlight=False)
    for words, problems in (("only in the old run", compared.only_old), ("only in the new run", compared.only_new)):
        if problems:
            console.print(f"{words}: {', '.join(problems)}", highlight=False)


COLUMNS = ("layer", "problem", "old ms", "95 %", "new ms", "95 %", "old / new", "verdict", "solver")
NAMES = ("layer", "problem", "verdict", "solver")
"""Those of COLUMNS that hold words."""


def cells(pairs: Sequence[Pair]) -> list[list[str]]:
    """COLUMNS of each pair."""
    return [
        [
            pair.new.layer.name,
            pair.new.measured.problem,
            number(pair.old.ms, 4),
            interval(pair.old.measured.best),
            number(pair.new.ms, 4),
            interval(pair.new.measured.best),
            number(pair.speedup) + "?" * pair.doubtful,
            pair.verdict,
            _solvers(pair),
        ]
        for pair in pairs
    ]


def _solvers(pair: Pair) -> str:
    return pair.new.fastest if pair.old.fastest == pair.new.fastest else f"{pair.old.fastest} → {pair.new.fastest}"
