"""Turns a report into one self-contained HTML page: no script, no font and no file from elsewhere."""

from __future__ import annotations

import importlib.resources
from pathlib import Path
from typing import Any

from .figures import MARKS, colours, geometry_map
from .published import CARD, SOURCE, titanx
from .quiet import busy, disturbed, signs
from .report import Report
from .summary import GAP, family, gaps, geomean, known, lines, nets, solver_times, types
from .terminal import errors, evidence, interval, number, share

__all__ = ["render", "write_html"]


def write_html(report: Report, path: Path) -> None:
    """Write the page."""
    path.write_text(render(report), encoding="utf-8")


def render(report: Report) -> str:
    """The page's text."""
    from mako.template import Template

    text = importlib.resources.files(__package__).joinpath("page.html.mako").read_text(encoding="utf-8")
    template = Template(text, strict_undefined=True, default_filters=["h"])
    return template.render(**_values(report))


def _values(report: Report) -> dict[str, Any]:
    every, device = lines(report), report.environment["device"]
    peers = [peer for peer in report.settings.get("peers", {}) if any(line.ratio(peer) for line in every)]
    sums = nets(every, peers)
    solvers = sorted({solver for line in every for solver in solver_times(line.measured)})
    colour = colours(solvers)
    published = {net.name: [row for row in titanx() if row.net == net.name] for net in sums}
    return {
        "report": report,
        "busy": busy(signs(report)),
        "device": device,
        "disturbed": {line.measured.problem for line in every if disturbed(line.measured, device)},
        "lines": every,
        "peers": peers,
        "nets": sums,
        "types": types(every, peers),
        "gaps": gaps(every),
        "gap": GAP,
        "solver_times": solver_times,
        "family": family,
        "colour": colour,
        "figure": geometry_map(every, colour),
        "marks": MARKS,
        "published": {net: rows for net, rows in published.items() if rows},
        "card": CARD,
        "source": SOURCE,
        "means": {peer: geomean(line.ratio(peer) for line in every) for peer in peers},
        "fraction": geomean(line.fraction for line in every),
        "regret": geomean(line.measured.regret for line in {line.measured.problem: line for line in every}.values()),
        "known": known(every),
        "evidence": evidence(every, bool(report.settings.get("search", True))),
        "interval": interval,
        "number": number,
        "errors": errors,
        "share": share,
        "faults": [(line, row) for line in every for row in line.measured.rows if row.status in ("wrong", "failed")],
        "failures": [line for line in every if line.measured.failure],
        "missing": len({layer.problem for layer in report.layers} - set(report.measured)),
    }
