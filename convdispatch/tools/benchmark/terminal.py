"""Shows a report as tables in the terminal: a line a layer, then sums a net, then what is amiss."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Console

from ...selection.text_table import Column, Table, columns
from .quiet import busy, disturbed, signs
from .report import EVIDENCE, Report, Timed
from .summary import Line, gaps, geomean, known, lines, nets

DOUBT = " (busy machine: not to be trusted)"
WITHHELD = "withheld, the machine was busy"


FIGURES = {
    "measured": 6,
    "ms": 0,
    "95 % interval": 5,
    "GFLOP/s": 4,
    "roofline": 3,
    "error": 9,
    "chosen's error": 10,
    "workspace": 8,
    "regret": 7,
}
"""The columns of a layer's figures and their ranks; the highest ranks are left out first on a narrow terminal."""


def number(value: float | None, digits: int = 3) -> str:
    """A few significant digits without an exponent; a dash for None."""
    if value is None:
        return "-"
    return f"{value:,.0f}" if abs(value) >= 10 ** (digits - 1) else f"{value:.{digits}g}"


def interval(timed: Timed | None) -> str:
    """The median's interval of whatever was timed, ``0.41-0.43``; a dash where there is none."""
    return "-" if timed is None or not timed.ci_ms else "-".join(number(ms) for ms in timed.ci_ms)


def share(value: float | None) -> str:
    """A fraction in per cent; a dash for None."""
    return "-" if value is None else f"{value:.0%}"


def errors(timed: Timed | None) -> str:
    """Relative errors on normal and on scaled data; a dash for what is not known."""
    if timed is None or timed.error is None:
        return "-"
    return f"{timed.error:.0e} {'-' if timed.error_scaled is None else f'{timed.error_scaled:.0e}'}"


def show(report: Report, console: Console) -> None:
    """Print everything that is measured so far."""
    every, disturbances = lines(report), signs(report)
    peers = list(report.settings.get("peers", {}))
    _heading(report, console, busy(disturbances))
    doubt = DOUBT if disturbances else ""
    if every:
        console.print(_layers(every, peers, report.environment["device"]))
        console.print(_nets(every, peers, withheld=bool(disturbances)))
        for sentence in evidence(every, bool(report.settings.get("search", True))):
            console.print(sentence + doubt, highlight=False)
    low = gaps(every)
    if low:
        console.print(f"{len(low)} problems below half of the roofline, most lost time first:", highlight=False)
        for line in low[:10]:
            console.print(f"  {share(line.fraction):>4}  {line.measured.problem}  {line.verdict}", highlight=False)
    for peer in peers:
        ratios = [ratio for line in every if (ratio := line.ratio(peer))]
        if ratios:
            mean = WITHHELD if disturbances else f"{geomean(ratios):.3f}"
            console.print(f"{peer}: its time over ours, geometric mean of {len(ratios)} layers: {mean}")
    for peer, reason in report.settings.get("missing_peers", {}).items():
        console.print(f"{peer} is not measured: {reason}", markup=False)
    for line in every:
        rows = [row for row in line.measured.rows if row.status in ("wrong", "failed")]
        bad = [f"{row.solver} {row.status}: {row.reason}" for row in rows]
        for sentence in [*([line.measured.failure] if line.measured.failure else []), *bad]:
            console.print(f"{line.layer.name} {line.problem.direction}: {sentence}", style="red", markup=False)
    if report.interrupted:
        missing = len({layer.problem for layer in report.layers} - set(report.measured))
        why = "time limit reached" if report.time_limit else "interrupted"
        console.print(f"{why}: {missing} problems are not measured")


def evidence(every: list[Line], searched: bool) -> list[str]:
    """Sentences that say on how many measurements regret and winners rest."""
    if not searched:
        return ["nothing was searched: times and ratios are the immediate choice's, winners and regret are unknown"]
    sure, count = known(every)
    regret = geomean(line.measured.regret for line in {line.measured.problem: line for line in every}.values())
    rests = f"{sure} of {count} problems, of which {EVIDENCE} candidates or more were measured"
    unknown = f"; of the other {count - sure} winner, regret and ratio are unknown" if count > sure else ""
    return [f"regret of the choice: {'unknown' if regret is None else number(regret)}, on {rests}{unknown}"]


def _heading(report: Report, console: Console, warning: str) -> None:
    device = report.environment["device"]
    console.print(f"{device['title']}, driver {device['driver']}, {report.environment['created']}", highlight=False)
    if warning:
        console.print(warning, style="red")
    for dtype, roof in report.roofs.items():
        rates = {name: peak["rate"] / 1e9 for name, peak in roof.items() if isinstance(peak, dict)}
        rate_texts = [f"{rates['flops']:,.0f} GFLOP/s multiply-add", f"{rates['bandwidth']:,.1f} GB/s copy"]
        rate_texts += [f"{rates['matrix']:,.0f} GFLOP/s matrix units"] if "matrix" in rates else []
        console.print(f"ceilings measured in this run, {dtype}: {', '.join(rate_texts)}", highlight=False)


def _layers(every: list[Line], peers: list[str], device: Mapping[str, Any]) -> Table:
    title = "Layers; errors on normal data, and on data of differing scales"
    if any(disturbed(line.measured, device) for line in every):
        title += "; ? stands where other work disturbed the layer"
    peer_titles = [title for peer in peers for title in (f"{peer} ms", "ratio", "error")]
    ranks = {f"{peer} ms": 3 for peer in peers}
    table = Table(
        Column("net", "name", rank=1),
        Column("layer", "name"),
        Column("direction", "name", rank=2),
        Column("fastest solver", "name"),
        *(Column(title, rank=FIGURES.get(title, ranks.get(title, 0))) for title in (*FIGURES, *peer_titles)),
        title=title,
    )
    for line in every:
        best = line.measured.best
        doubt = "?" if disturbed(line.measured, device) else ""
        cells = [line.coverage, number(line.ms, 4) + doubt, interval(best)]
        cells += [number(line.gflops), share(line.fraction)]
        cells += [errors(best), errors(line.measured.chosen)]
        cells += [f"{best.workspace / 2**20:,.1f} MiB" if best and best.workspace is not None else "-"]
        cells += [number(line.measured.regret) if line.measured.sure else "unknown"]
        for peer in peers:
            ratio = line.ratio(peer)
            cells += [number(line.measured.peer_ms(peer), 4), number(ratio) + doubt * bool(ratio)]
            cells += [errors(line.measured.peer(peer))]
        times = f" *{line.layer.count}" if line.layer.count > 1 else ""
        table.add_row(line.layer.net, line.layer.name + times, line.problem.direction, line.verdict, *cells)
    return table


def _nets(every: list[Line], peers: list[str], withheld: bool) -> Table:
    of_peers = [title for peer in peers for title in (f"{peer} ms", "ratio of sums", "geomean")]
    ranks = {"GFLOP": 5, "GFLOP/s": 4, "roofline ms": 3, "layers": 2, "chosen ms": 1}
    titles = ("layers", "GFLOP", "best ms", "chosen ms", "roofline ms", "GFLOP/s", *of_peers)
    table = Table(
        *columns("name", "net", "direction"),
        *(Column(title, rank=ranks.get(title, 0)) for title in titles),
        title="Nets, sums over their convolutions",
    )
    for net in nets(every, peers):
        cells = [number(net.gflop), number(net.best_ms, 4), number(net.chosen_ms, 4), number(net.roof_ms, 4)]
        cells += [number(net.gflops)]
        for peer in peers:
            their_ms, our_ms, layers = net.peers.get(peer, (None, None, 0))
            some = "" if layers == net.layers else f" ({layers} layers)"
            ratios = [number(their_ms / our_ms if our_ms else None), number(net.ratios[peer])]
            cells += [number(their_ms, 4) + some, *(["withheld"] * 2 if withheld and our_ms else ratios)]
        table.add_row(net.name, net.direction, str(net.layers), *cells)
    return table
