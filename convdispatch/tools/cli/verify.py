"""``verify``: the conformance kit over a plugin."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from ...measurement.conformance.levels import LEVELS, VERSION, cases, digest
from ...measurement.conformance.space import describe
from ...selection.text_table import Column, Table, columns
from ..problems import read_entries
from ..progress import progress
from .interrupts import interrupted
from .options import DEVICE, FILES, OUTPUT, command_line, stderr, stdout
from .output import echo


@click.command()
@click.argument("plugins", metavar="PLUGIN...", nargs=-1)
@click.option(
    "--level",
    type=click.Choice(LEVELS),
    default="full",
    show_default=True,
    help="Each holds those before; accuracy is alone.",
)
@click.option("--solver", metavar="GLOB", default=None, help="Only these solvers of the plugin.")
@click.option("--case", metavar="GLOB", default=None, help="Only these cases.")
@FILES
@click.option("--derived", is_flag=True, help="Also the solvers that dispatch derives from the plugin's.")
@click.option(
    "--jobs", type=click.IntRange(min=0), default=None, help="Child processes; 0 for none. Default: 2 at most."
)
@click.option("--timeout", "timeout_s", type=float, default=None, help="Most seconds of a solver's case. Default: 120.")
@click.option("--within", "within_s", type=float, default=None, help="Most seconds of it all; what is left is listed.")
@click.option("--first", "-x", is_flag=True, help="End at the first case that fails.")
@click.option("--json", "json_path", type=OUTPUT, default=None, help="Write the report there.")
@click.option(
    "--errata", is_flag=True, help="Try each erratum again, of whatever plugin. Exit status 1 if one is over."
)
@click.option("--list", "listing", is_flag=True, help="List the level's cases and run none.")
@click.option("--verbose", "-v", is_flag=True, help="Print every outcome.")
@DEVICE
def verify(
    plugins: tuple[str, ...],
    level: str,
    listing: bool,
    **options: Any,
) -> None:
    """Verify each PLUGIN: its solvers refuse every case in words or compute it right. Exit status 1 if not.

    Core is the forward convolution in 2-D, training adds the gradients, full the ranks, layouts, dtypes, epilogues.
    Accuracy, a level of its own, is every family of data that scaling makes harder, judged plane by plane.
    With several plugins the files of --json are one each, with the plugin's name in theirs.
    """
    within_s, json_path = options.pop("within_s"), options.pop("json_path")
    if listing:
        for case in cases(level):
            echo(f"{case.level:8} {case.name}{'!' if case.long else ''}  {case.problem}")
        for line in describe({case.name for case in cases(level)}):
            echo(line)
        echo(f"version {VERSION}, {digest()}")
        return
    if options.pop("errata"):
        sys.exit(0 if _try_errata(options["device"], json_path) else 1)
    if not plugins:
        raise click.UsageError("name a plugin; `convdispatch doctor` lists them")
    from ...selection.plugins.loader import try_each

    # A plugin whose import ends the process is reported by name, and the other plugins are verified.
    try_each(strangers=True)
    began, verdicts, all_passed = time.monotonic(), [], True
    options["until"] = None if within_s is None else began + within_s
    options["jobs"] = min(2, os.cpu_count() or 1) if options["jobs"] is None else options["jobs"]
    for plugin in plugins:
        report = _run(plugin, level, **options)
        _show(report)
        if json_path is not None:
            report.write(json_path if len(plugins) < 2 else json_path.with_stem(f"{json_path.stem}-{plugin}"))
        verdicts.append(report.verdict())
        all_passed = all_passed and report.passed
        if verdicts[-1] == "passed" and not (report.selected or report.unasked):
            _trust(plugin)
    if len(plugins) > 1:
        verdict_texts = ", ".join(f"{plugin} {verdict}" for plugin, verdict in zip(plugins, verdicts))
        echo(f"{verdict_texts}; {time.monotonic() - began:.0f} s in all")
    sys.exit(0 if all_passed else 1)


def _run(plugin: str, level: str, **options: Any) -> Any:
    from ...measurement.conformance.verify import verify as examine

    with _progress_shown(plugin, level, options) as callbacks:
        return examine(plugin, level, options.pop("device"), command=command_line(), **callbacks, **options)


@contextlib.contextmanager
def _progress_shown(plugin: str, level: str, options: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Inside the block a bar counts cases as they end. Yields arguments for the kit: further problems and a callback.

    With -v the callback prints the outcomes of each case; failures are printed at the end anyway.
    """
    files, verbose = options.pop("files"), options.pop("verbose")
    own_problems, console = read_entries((), files) if files else [], stderr()
    with progress(console, f"verify {plugin}", len(cases(level)) + len(own_problems)) as step:

        def report_case(done: Any, outcomes: list[Any], total: int) -> None:
            step.resize(total)
            step(done.name, 1)
            for outcome in outcomes if verbose else ():
                reason = f"{outcome.check}: {outcome.reason}" if outcome.check else outcome.reason
                console.print(f"{outcome.status} {outcome.solver} {done.name}: {reason}")

        yield {"own": own_problems, "report": report_case}


def _show(report: Any) -> None:
    console = stdout()
    table = Table(
        Column("solver", "name"),
        *columns("number", "computed", "refused", "failed"),
        Column("worst error", "sentence"),
        Column("refused most often because", "sentence"),
    )
    from ...measurement.conformance.outcome import errors_by_dtype, groups, reasons

    for solver in report.solvers:
        counts = [len(report.of(solver=solver, status=status)) for status in ("passed", "refused", "failed")]
        refusals = reasons(report.of(solver=solver))
        errors = errors_by_dtype(report.of(solver=solver))
        table.add_row(solver, *map(str, counts), errors, refusals[0][0] if refusals else "")
    console.print(table)
    for (solver, check), (first, *others) in groups(report).items():
        cases = f"{1 + len(others)} cases" if others else "1 case"
        console.print(f"your solver {solver} fails {cases} of {check}: {first.problem}: {first.reason}")
        console.print(f"  again: {first.rerun(report.plugin['name'])}")
        if others:
            names = ", ".join(outcome.case for outcome in others[:8])
            console.print(f"  also: {names}" + (f", and {len(others) - 8} more (--json has all)" if others[8:] else ""))
    if len(report.levels()) > 1:
        for level, counts in report.levels().items():
            console.print(f"{level}: " + ", ".join(f"{count} {status}" for status, count in counts.items()))
    if report.unasked:
        names = ", ".join(report.unasked[:5]) + (", and more" if len(report.unasked) > 5 else "")
        why = "interrupted" if interrupted() else "time limit reached"
        console.print(f"{why}: {len(report.unasked)} cases were not asked: {names}")
    device = report.environment["device"]["title"]
    console.print(
        f"{report.plugin['name']} {report.plugin['version']} on {device}: {report.verdict()}; "
        f"{len(report.outcomes)} outcomes in {report.seconds:.0f} s, cases version {report.version} ({report.digest})"
    )


def _try_errata(device: str | None, json_path: Path | None) -> bool:
    """Try each erratum again and show whether its fault is still there; returns whether none is over."""
    from ...measurement.conformance.errata import tries

    trials = list(tries(device))
    for trial in trials:
        echo(f"{trial.state:8} {trial.erratum.solver} {' '.join(trial.erratum.kernel)}".rstrip() + f": {trial.erratum}")
        echo(f"         {trial.reason}")
    over = [trial.erratum.where for trial in trials if trial.state == "over"]
    echo(f"{len(trials)} errata, " + (f"{len(over)} over: {', '.join(over)}" if over else "none over"))
    if json_path is not None:
        json_path.write_text(json.dumps([trial.to_json() for trial in trials], indent=1) + "\n", encoding="utf-8")
    return not over


def _trust(plugin: str) -> None:
    """Note that the plugin passed, so that ``find`` runs this version of it in its own process from now on."""
    from ...selection.plugins import verdicts
    from ...selection.plugins.loader import plugins

    verdicts.trust(plugin, plugins().fingerprints.get(plugin, ""))
