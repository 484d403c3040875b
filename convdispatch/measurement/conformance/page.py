"""Turns a conformance report into one self-contained HTML page: no script, no font and no file from elsewhere."""

from __future__ import annotations

import importlib.resources
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..search.families import FAMILIES
from .checks import CHECKS, LONG
from .outcome import Report, groups, reasons


def write_html(reports: Report | Sequence[Report], path: Path) -> None:
    """Write the page."""
    path.write_text(render(*([reports] if isinstance(reports, Report) else reports)), encoding="utf-8")


def render(*reports: Report) -> str:
    """The page's text; several reports are of one plugin on several kinds of device."""
    from mako.template import Template

    text = importlib.resources.files(__package__).joinpath("page.html.mako").read_text(encoding="utf-8")
    template = Template(text, strict_undefined=True, default_filters=["h"])
    names = labels([report.environment["device"] for report in reports])
    sections = [_section(report) for report in reports]
    return template.render(sections=sections, labels=names, differences=differences(reports))


def labels(devices: Sequence[Mapping[str, Any]]) -> list[str]:
    """What to call kinds of device on a page: their names, with their keys where several have one name."""
    names = [device["name"] for device in devices]
    return [f"{d['name']} ({d['key']})" if names.count(d["name"]) > 1 and d.get("key") else d["name"] for d in devices]


def differences(reports: Sequence[Report]) -> list[tuple[str, str, str, list[str]]]:
    """Case, problem, solver and each report's status or ``not asked``, where these are not all the same."""
    found: dict[tuple[str, str, str], dict[int, str]] = {}
    for place, report in enumerate(reports):
        for outcome in report.outcomes:
            found.setdefault((outcome.case, outcome.problem, outcome.solver), {})[place] = outcome.status
    every = [(*key, [said.get(place, "not asked") for place in range(len(reports))]) for key, said in found.items()]
    return [each for each in every if len(set(each[-1])) > 1]


def _section(report: Report) -> dict[str, Any]:
    return {
        "report": report,
        "device": report.environment["device"],
        "levels": report.levels(),
        "verdict": report.verdict(),
        "failed": report.of(status="failed"),
        "passed": report.of(status="passed"),
        "refused": report.of(status="refused"),
        "reasons": reasons,
        "groups": groups,
        "checks": CHECKS,
        "long": LONG,
        "coverage": report.coverage(),
        "families": [name for name in FAMILIES if any(name in outcome.errors for outcome in report.outcomes)],
        "worst": {
            solver: {
                kind: max((o.errors[kind] for o in report.of(solver=solver) if kind in o.errors), default=None)
                for kind in ("integer", "real", *FAMILIES)
            }
            for solver in report.solvers
        },
        "cases": list(dict.fromkeys((o.level, o.case, o.problem) for o in report.outcomes)),
    }
