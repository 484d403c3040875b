"""``verify``: the conformance kit over a plugin."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table

from ..conformance.levels import LEVELS, VERSION, cases, digest
from .options import DEVICE

__all__ = ["verify"]


@click.command()
@click.argument("plugin", required=False)
@click.option("--level", type=click.Choice(LEVELS), default="full", show_default=True, help="Each holds those before.")
@click.option("--solver", metavar="GLOB", default=None, help="Only these solvers of the plugin.")
@click.option("--case", metavar="GLOB", default=None, help="Only these cases.")
@click.option("--from", "files", type=click.Path(path_type=Path), multiple=True, help="Further problems, from a file.")
@click.option("--derived", is_flag=True, help="Also the solvers that dispatch derives from the plugin's.")
@click.option(
    "--jobs", type=click.IntRange(min=0), default=None, help="Child processes; 0 for none. Default: 2 at most."
)
@click.option("--first", "-x", is_flag=True, help="End at the first case that fails.")
@click.option("--json", "json_path", type=click.Path(path_type=Path), default=None, help="Write the report there.")
@click.option("--html", "html_path", type=click.Path(path_type=Path), default=None, help="Write one HTML page there.")
@click.option("--render", type=click.Path(path_type=Path), default=None, help="Verify nothing: show this JSON.")
@click.option("--list", "listing", is_flag=True, help="List the level's cases and run none.")
@click.option("--verbose", "-v", is_flag=True, help="Print every outcome.")
@DEVICE
def verify(
    plugin: str | None,
    level: str,
    solver: str | None,
    case: str | None,
    files: tuple[Path, ...],
    derived: bool,
    jobs: int | None,
    first: bool,
    json_path: Path | None,
    html_path: Path | None,
    render: Path | None,
    listing: bool,
    verbose: bool,
    device: str | None,
) -> None:
    """Verify PLUGIN: each of its solvers refuses every case in words or computes it right. Exit status 1 if not.

    Core is the forward convolution in 2-D, training adds the gradients, full the ranks, layouts, dtypes, epilogues.
    """
    from ..conformance.outcome import load
    from ..conformance.verify import own_cases
    from ..conformance.verify import verify as examine

    if listing:
        for one in cases(level):
            click.echo(f"{one.level:8} {one.name}{'!' if one.long else ''}  {one.problem}")
        click.echo(f"version {VERSION}, {digest()}")
        return
    if render is not None:
        report = load(render)
    elif plugin is None:
        raise click.UsageError("name a plugin; `convdispatch doctor` lists them")
    else:
        console = Console(stderr=True)
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
        with Progress(*columns, console=console, transient=True) as progress:
            task = progress.add_task("verify", total=None)

            def heard(done: Any, outcomes: list[Any], total: int) -> None:
                progress.update(task, description=done.name[:40], total=total, advance=1)
                for outcome in outcomes:
                    if outcome.status == "failed" or verbose:
                        words = f"{outcome.check}: {outcome.reason}" if outcome.check else outcome.reason
                        console.print(f"{outcome.status} {outcome.solver} {done.name}: {words}", markup=False)

            report = examine(
                plugin,
                level,
                device,
                solver=solver,
                case=case,
                own=own_cases(files),
                derived=derived,
                jobs=min(2, os.cpu_count() or 1) if jobs is None else jobs,
                first=first,
                command="convdispatch " + " ".join(shlex.quote(_bare(word)) for word in sys.argv[1:]),
                report=heard,
            )
    _show(report)
    if json_path is not None:
        report.write(json_path)
    if html_path is not None:
        from ..conformance.page import write_html

        write_html(report, html_path)
    sys.exit(0 if report.verdict() == "passed" else 1)


def _bare(word: str) -> str:
    """A word of the command without the folders of this machine."""
    return Path(word).name if "/" in word else word


def _show(report: Any) -> None:
    console = Console()
    table = Table("solver", "computed", "refused", "failed", "refused most often because", box=None)
    from ..conformance.outcome import reasons

    for solver in report.solvers:
        counts = [len(report.of(solver=solver, status=status)) for status in ("passed", "refused", "failed")]
        words = reasons(report.of(solver=solver))
        table.add_row(solver, *map(str, counts), words[0][0] if words else "")
    console.print(table)
    failed = report.of(status="failed")
    for outcome in failed[:20]:
        console.print(f"{outcome.solver} {outcome.problem}: {outcome.check}: {outcome.reason}", markup=False)
        console.print(f"  again: {outcome.rerun(report.plugin['name'])}", markup=False)
    if len(failed) > 20:
        console.print(f"and {len(failed) - 20} failures more (--json holds them all)")
    for level, verdict in report.levels().items():
        console.print(f"{level}: {verdict}")
    device = report.environment["device"]["title"]
    console.print(
        f"{report.plugin['name']} {report.plugin['version']} on {device}: {report.verdict()}; "
        f"{len(report.outcomes)} outcomes in {report.seconds:.0f} s, cases version {report.version} ({report.digest})"
    )
