"""Answers in sentences to what an engineer asks of a report: which engine, why, how sure, how far from the device's
limit, and what to do about the worst layer."""

from __future__ import annotations

import re
import shlex
import statistics
from collections.abc import Iterator

from ..quiet import disturbed, signs, spread
from ..report import EVIDENCE, Report
from ..summary import Line, gaps, geomean, known, lines

REGRET = 1.05
"""A choice is mentioned when its time is at least this many times the best."""
REFUSALS = 3
ELSEWHERE = re.compile(r"\b(GPUs?|CPUs?|nvidia|intel|amd|device)\b", re.IGNORECASE)
"""Words of a refusal that is about the device, so that no other geometry would be accepted."""


def answers(report: Report) -> list[tuple[str, str]]:
    """Return pairs of question and answer; empty if no layer has a time."""
    timed = [line for line in lines(report) if line.ms]
    if not timed:
        return []
    pairs = [
        ("Which engine?", _shares_of_engines(timed)),
        ("Why?", _reason(timed)),
        ("How sure?", _certainty(report, timed)),
        ("How far from the limit?", _distance_from_limit(timed)),
    ]
    last, device = worst(timed), report.environment["device"]
    return (
        pairs
        if last is None
        else [*pairs, ("What about the worst layer?", " ".join(advice_for(last, disturbed(last.measured, device))))]
    )


def worst(every: list[Line]) -> Line | None:
    """The layer below its roofline that loses most time in its net."""
    low = gaps(every, below=1.0)
    return max(low, key=lambda line: line.layer.count * (line.ms - line.roof_ms), default=None)


def _shares_of_engines(timed: list[Line]) -> str:
    count: dict[str, int] = {}
    time: dict[str, float] = {}
    whole = sum(line.layer.count * line.ms for line in timed)
    for line in timed:
        count[line.winner] = count.get(line.winner, 0) + line.layer.count
        time[line.winner] = time.get(line.winner, 0.0) + line.layer.count * line.ms
    first = sorted(filter(None, time), key=lambda solver: -time[solver])
    shares = [f"{name} is fastest in {count[name]} ({time[name] / whole:.0%} of the time)" for name in first[:4]]
    shares += [f"{len(first) - 4} others in the rest"] if len(first) > 4 else []
    shares += [f"too little was measured to know it in {count['']} ({time['']:.3g} ms)"] if "" in count else []
    return f"Of {sum(count.values())} layers {', '.join(shares)}."


def _reason(timed: list[Line]) -> str:
    line = max(timed, key=lambda line: line.layer.count * line.ms)
    chosen = line.measured.chosen
    text = f"The dearest layer is {line.layer.name}: {line.verdict}, of {line.coverage} candidates measured."
    if chosen is None:
        return text
    return f"{text} Without measuring {chosen.solver} would run: {chosen.source}."


def _certainty(report: Report, timed: list[Line]) -> str:
    sure, count = known(timed)
    text = f"{sure} of {count} problems had {EVIDENCE} candidates measured or more"
    widths = [width for line in timed if (width := spread(line.measured.best)) is not None]
    if widths:
        text += f"; intervals (95 %) are {statistics.median(widths):.1%} of a time wide at the middle one"
    disturbances = signs(report)
    return f"{text}; " + (
        f"the machine was busy: {'; '.join(disturbances)}." if disturbances else "nothing says that it was busy."
    )


def _distance_from_limit(timed: list[Line]) -> str:
    mean = geomean(line.fraction for line in timed)
    if mean is None:
        return "Unknown: no ceilings were measured."
    low = len(gaps(timed))
    whole = sum(line.layer.count * line.ms for line in timed)
    least = sum(line.layer.count * (line.roof_ms or 0.0) for line in timed)
    return (
        f"{mean:.0%} of the measured roofline as a geometric mean; the ceilings would allow {least:.4g} ms where "
        f"{whole:.4g} ms are taken; {low} problems are below half of it."
    )


def advice_for(line: Line, doubtful: bool = False) -> Iterator[str]:
    """Sentences: the layer, then what helps, the cheapest first; no peer of a layer that other work disturbed."""
    found = line.measured
    lost = line.layer.count * (line.ms - line.roof_ms)
    yield (
        f"{line.layer.name} ({found.problem}) loses most: {lost:.3g} ms, at {line.fraction:.0%} of its roofline, "
        f"bound by {line.bound}."
    )
    command = f"convdispatch find {shlex.quote(found.problem)}"
    measured, offered = found.coverage
    if found.regret and found.regret >= REGRET and found.chosen:
        yield f"Without a record {found.chosen.solver} runs and takes {found.regret:.2f} times as long: {command}"
        yield "records the faster one."
    if measured < offered:
        yield f"{offered - measured} candidates have no time yet: {command} --budget 60000 measures more of them."
    if doubtful:
        yield "Other work disturbed it: measure it again on a quiet machine first."
    for peer in () if doubtful else sorted({time.peer for time in found.peers}):
        ratio = line.ratio(peer)
        if ratio and ratio < 1 / REGRET:
            yield f"{peer} needs {ratio:.2f} of the time, so there is a faster way."
    refused = [row for row in found.rows if row.status == "refused" and row.reason and not ELSEWHERE.search(row.reason)]
    if refused:
        reasons = dict.fromkeys(f"{row.solver}: {row.reason}" for row in refused)
        yield f"Refused: {'; '.join(list(reasons)[:REFUSALS])}{'; and more' if len(reasons) > REFUSALS else ''}."
    if (line.fraction or 0.0) < 0.5:
        yield "A plugin for this geometry would fill the gap (docs/plugins/writing-a-plugin.md)."
