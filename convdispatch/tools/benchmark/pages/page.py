"""Turns a report into one HTML page: its style stands in it, it has no script, and nothing is from elsewhere."""

from __future__ import annotations

import importlib.resources
from pathlib import Path
from typing import Any

from ..quiet import busy, disturbed, signs
from ..report import Report
from ..summary import GAP, family, gaps, geomean, known, lines, nets
from .plots import colours, roofline
from .terminal import errors, evidence, interval, number, share


def write_html(report: Report, path: Path) -> None:
    """Write a report's page to a file."""
    path.write_text(render(report), encoding="utf-8")


def render(report: Report) -> str:
    """The HTML text of a report's page."""
    from mako.template import Template

    template = Template(packaged("page.html.mako"), strict_undefined=True, default_filters=["h"])
    return template.render(**_values(report))


def packaged(name: str) -> str:
    """Return the text of a file in this module's folder."""
    return importlib.resources.files(__package__).joinpath(name).read_text(encoding="utf-8")


def _values(report: Report) -> dict[str, Any]:
    every, device = lines(report), report.environment["device"]
    peers = [peer for peer in report.settings.get("peers", {}) if any(line.ratio(peer) for line in every)]
    colour = colours({row.solver for line in every for row in line.measured.rows if row.median_ms is not None})
    return {
        "report": report,
        "busy": busy(signs(report)),
        "device": device,
        "disturbed": {line.measured.problem for line in every if disturbed(line.measured, device)},
        "lines": every,
        "peers": peers,
        "nets": nets(every, peers),
        "gaps": gaps(every),
        "gap": GAP,
        "family": family,
        "colour": colour,
        "roofline": roofline(report, every, colour),
        "sheet": packaged("page.css"),
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
