"""The comparison of two runs: each problem that both measured, the ratio of its times, and whether the ratio is
significant.

A problem is faster or slower where the intervals of the two medians do not overlap and the ratio is beyond the
tolerance; otherwise it is the same as far as one can know.
"""

from __future__ import annotations

from dataclasses import dataclass

from rich.console import Console

from ....selection.records.timing import TOLERANCE
from ....selection.text_table import Column, Table
from ..quiet import busy, disturbed, signs
from ..report import Report
from ..summary import Line, geomean, lines
from .terminal import interval, number

VERDICTS = ("slower", "faster", "same")
TITLE = "Old and new, the most time lost first; ? stands where other work disturbed a run"


@dataclass(frozen=True)
class Pair:
    """One problem in the old and in the new run."""

    old: Line
    new: Line
    doubtful: bool
    """Whether other work on the machine disturbed one of the two measurements."""

    @property
    def speedup(self) -> float:
        """The old time over the new one: above 1 the new run is faster."""
        return self.old.ms / self.new.ms

    @property
    def verdict(self) -> str:
        """One of VERDICTS."""
        (low, high), (new_low, new_high) = (
            line.measured.best.ci_ms or (line.ms, line.ms) for line in (self.old, self.new)
        )
        overlap = low <= new_high and new_low <= high
        if overlap or abs(self.speedup - 1) <= TOLERANCE:
            return "same"
        return "faster" if self.speedup > 1 else "slower"

    @property
    def solvers(self) -> str:
        """The fastest solver, or both where the runs differ."""
        old, new = self.old.fastest, self.new.fastest
        return new if old == new else f"{old} → {new}"


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
        sentences = []
        devices = [run.environment["device"] for run in (self.old, self.new)]
        if devices[0]["key"] != devices[1]["key"]:
            sentences.append(f"Two devices: {devices[0]['title']} before, {devices[1]['title']} after.")
        elif devices[0]["driver"] != devices[1]["driver"]:
            sentences.append(f"The driver changed: {devices[0]['driver']} before, {devices[1]['driver']} after.")
        for when, run in (("before", self.old), ("after", self.new)):
            if disturbances := signs(run):
                sentences.append(f"The machine was busy {when}. {busy(disturbances)}")
        return sentences

    @property
    def speedup(self) -> float | None:
        """Geometric mean over the problems; None where a run was disturbed or no problem is common."""
        doubtful = signs(self.old) or signs(self.new)
        return None if doubtful else geomean(pair.speedup for pair in self.pairs)


def compare(old: Report, new: Report) -> Comparison:
    """Pair the problems of two runs."""
    olds, news = ({line.measured.problem: line for line in reversed(lines(run)) if line.ms} for run in (old, new))
    pairs = []
    for problem in [problem for problem in olds if problem in news]:
        both = (old, olds[problem]), (new, news[problem])
        doubtful = any(disturbed(line.measured, run.environment["device"]) for run, line in both)
        pairs.append(Pair(olds[problem], news[problem], doubtful))
    pairs.sort(key=lambda pair: pair.old.ms - pair.new.ms)
    only_old, only_new = [p for p in olds if p not in news], [p for p in news if p not in olds]
    return Comparison(old, new, pairs, only_old, only_new)


def heading(compared: Comparison) -> str:
    """The whole comparison in a sentence."""
    mean, verdicts = compared.speedup, [pair.verdict for pair in compared.pairs]
    ratio = "is withheld, for a machine was busy" if compared.pairs and mean is None else f"is {number(mean)}"
    counts = ", ".join(f"{verdicts.count(verdict)} {verdict}" for verdict in VERDICTS)
    return f"{len(verdicts)} problems in both runs: {counts}; the old time over the new one {ratio} (geometric mean)"


def show_comparison(compared: Comparison, console: Console) -> None:
    """Print what makes it doubtful, a line a problem, and what only one run has."""
    for note in compared.notes:
        console.print(note, style="red", highlight=False)
    names = (Column("layer", "name"), Column("problem", "name", 2))
    numbers = (Column(title, rank=3 * (title == "95 %")) for title in ("old ms", "95 %", "new ms", "95 %", "old / new"))
    table = Table(*names, *numbers, Column("verdict", "name"), Column("solver", "name", 1), title=TITLE)
    for pair in compared.pairs:
        times = [cell for line in (pair.old, pair.new) for cell in (number(line.ms, 4), interval(line.measured.best))]
        ratio = number(pair.speedup) + "?" * pair.doubtful
        table.add_row(pair.new.layer.name, pair.new.measured.problem, *times, ratio, pair.verdict, pair.solvers)
    if compared.pairs:
        console.print(table)
    console.print(heading(compared), highlight=False)
    for label, problems in (("only in the old run", compared.only_old), ("only in the new run", compared.only_new)):
        if problems:
            console.print(f"{label}: {', '.join(problems)}", highlight=False)
