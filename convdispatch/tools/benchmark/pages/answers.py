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
    worst_line = worst(timed)
    if worst_line is not None:
        doubtful = disturbed(worst_line.measured, report.environment["device"])
        pairs.append(("What about the worst layer?", " ".join(advice_for(worst_line, doubtful))))
    return pairs


def worst(every: list[Line]) -> Line | None:
    """The layer below its roofline that loses most time in its net."""
    low = gaps(every, below=1.0)
    return max(low, key=lambda line: line.layer.count * (line.ms - line.roof_ms), default=None)


def _shares_of_engines(timed: list[Line]) -> str:
    layers: dict[str, int] = {}
    ms: dict[str, float] = {}
    total_ms = sum(line.layer.count * line.ms for line in timed)
    for line in timed:
        layers[line.winner] = layers.get(line.winner, 0) + line.layer.count
        ms[line.winner] = ms.get(line.winner, 0.0) + line.layer.count * line.ms
    solvers = sorted(filter(None, ms), key=lambda solver: -ms[solver])
    shares = [f"{name} is fastest in {layers[name]} ({ms[name] / total_ms:.0%} of the time)" for name in solvers[:4]]
    shares += [f"{len(solvers) - 4} others in the rest"] if len(solvers) > 4 else []
    shares += [f"too little was measured to know it in {layers['']} ({ms['']:.3g} ms)"] if "" in layers else []
    return f"Of {sum(layers.values())} layers {', '.join(shares)}."


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
    slow_problems = len(gaps(timed))
    measured_ms = sum(line.layer.count * line.ms for line in timed)
    roofline_ms = sum(line.layer.count * (line.roof_ms or 0.0) for line in timed)
    return (
        f"{mean:.0%} of the measured roofline as a geometric mean; the ceilings would allow {roofline_ms:.4g} ms where "
        f"{measured_ms:.4g} ms are taken; {slow_problems} problems are below half of it."
    )


def advice_for(line: Line, doubtful: bool = False) -> Iterator[str]:
    """Sentences: the layer, then what helps, the cheapest first; no peer of a layer that other work disturbed."""
    result = line.measured
    lost_ms = line.layer.count * (line.ms - line.roof_ms)
    yield (
        f"{line.layer.name} ({result.problem}) loses most: {lost_ms:.3g} ms, at {line.fraction:.0%} of its roofline, "
        f"bound by {line.bound}."
    )
    command = f"convdispatch find {shlex.quote(result.problem)}"
    measured, offered = result.coverage
    if result.regret and result.regret >= REGRET and result.chosen:
        yield f"Without a record {result.chosen.solver} runs and takes {result.regret:.2f} times as long: {command}"
        yield "records the faster one."
    if measured < offered:
        yield f"{offered - measured} candidates have no time yet: {command} --budget 60000 measures more of them."
    if doubtful:
        yield "Other work disturbed it: measure it again on a quiet machine first."
    for peer in () if doubtful else sorted({time.peer for time in result.peers}):
        ratio = line.ratio(peer)
        if ratio and ratio < 1 / REGRET:
            yield f"{peer} needs {ratio:.2f} of the time, so there is a faster way."
    refused = [row for row in result.rows if row.status == "refused" and row.reason]
    reasons = dict.fromkeys(f"{row.solver}: {row.reason}" for row in refused if not ELSEWHERE.search(row.reason))
    if reasons:
        yield f"Refused: {'; '.join(list(reasons)[:REFUSALS])}{'; and more' if len(reasons) > REFUSALS else ''}."
    if (line.fraction or 0.0) < 0.5:
        yield "A plugin for this geometry would fill the gap (docs/plugins/writing-a-plugin.md)."
