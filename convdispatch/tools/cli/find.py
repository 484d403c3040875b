"""``find``: measure what could run problems, verified, within a budget; resumable; and lock files."""

from __future__ import annotations

import json
import sys
import warnings
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from ...api.errors import ConvDispatchError, ConvDispatchWarning, grouped
from ...api.problem import ConvProblem
from ...selection.text_table import Column, Table, columns
from ..problems import read_entries
from ..progress import progress
from .options import (
    AS_JSON,
    BUDGET,
    CHANGES,
    CONFIGURE,
    DEVICE,
    FILES,
    ISOLATE,
    JOBS,
    OUTPUT,
    configure,
    processes,
    records_are_writable,
    search_limits,
    settings,
    stderr,
    stdout,
)
from .output import echo

BUDGET_MS = 5000.0
"""The default of --budget: the milliseconds that the search for a problem may take."""
PRINTED = 5
"""The number of measured candidates that are printed without -v."""


@click.command()
@click.argument("names", metavar="[NET|PROBLEM]...", nargs=-1)
@FILES
@CONFIGURE
@BUDGET(BUDGET_MS)
@click.option("--workspace-limit", type=int, default=None, help="Most bytes of a plan's workspace.")
@click.option("--memory-limit", type=int, default=None, help="Most bytes that the search holds at once.")
@ISOLATE
@JOBS
@click.option("--again", is_flag=True, help="Measure also what is known and not in doubt.")
@click.option("--lock", type=click.Path(path_type=Path), default=None, help="Write the decisions to this lock file.")
@click.option("--check", is_flag=True, help="Measure nothing: exit 1 if today's decisions differ from --lock.")
@click.option("--verbose", "-v", is_flag=True, help="Print every candidate.")
@DEVICE
@AS_JSON
def find(
    names: tuple[str, ...], files: tuple[Path, ...], device: str | None, lock: Path | None, **options: Any
) -> None:
    """Measure the solvers for problems or whole nets and record the results, so that later calls choose by them.

    What is known and not in doubt is skipped, so an interrupted search goes on where it was.
    """
    as_json = options.pop("as_json")
    changes = {name: options.pop(name) for name in CHANGES}
    check, verbose = options.pop("check"), options.pop("verbose")
    entries = configure(read_entries(names, files, changes["batch"], changes["layout"]), **changes)
    problems = list(dict.fromkeys(entry.problem for entry in entries if entry.problem.mb))
    if check:
        _check(problems, device, lock)
        return
    if lock is not None:
        OUTPUT.convert(lock, None, click.get_current_context())
    records_are_writable()
    options |= search_limits(options.pop("given_ms"), BUDGET_MS)
    every_search = _search(problems, device, quiet=as_json, **options)
    if as_json:
        echo(json.dumps([_to_dict(results) for results in every_search], indent=1))
    else:
        for results in every_search:
            _show(results, verbose)
    unmeasured = [str(results.problem) for results in every_search if results.winner is None]
    if unmeasured:
        raise click.ClickException(
            f"nothing could be measured, and nothing is recorded, for {', '.join(unmeasured)}: -v says what became of "
            f"each candidate, and --budget gives more than {options['budget_ms']:g} ms"
        )
    if lock is not None:
        from ...selection.choice.lockfile import write

        write(lock, _decisions(problems, device))
        echo(f"{len(problems)} decisions locked in {lock}")


def _calibrate(device: Any, console: Any) -> None:
    """Measure a device's rates, once; where they cannot be stored, estimates order the search."""
    from ...measurement.calibration import Unsteady, calibrate

    try:
        calibrate(device, steady=True)
    except Unsteady as error:
        console.print(f"the device's rates stay estimated: {error}")
    except (OSError, ConvDispatchError) as error:
        warnings.warn(f"the device's rates stay estimated: {error}", ConvDispatchWarning, stacklevel=2)


def _search(
    problems: list[ConvProblem], device: str | None, again: bool, jobs: int | None, quiet: bool, **limits: Any
) -> list[Any]:
    from ...device import runtime
    from ...device.rates import rates, switched_off
    from ...measurement.find import find as measure
    from ...measurement.find import why_find
    from ...measurement.search.precompile import precompile, precompile_s
    from ...selection.plugins import verdicts

    chosen = runtime.find_device(device)
    info = runtime.device_info(chosen)
    console, every_search = stderr(), []
    known_limits = {name: limits[name] for name in ("budget_ms", "workspace_limit")}
    if again:
        for problem in problems:
            verdicts.lift(problem)
    skipped = 0
    shown = progress(None if quiet else console, "find", len(problems))
    with shown as step:
        try:
            new = [problem for problem in problems if again or why_find(problem, info, **known_limits)]
            skipped = len(problems) - len(new)
            step.resize(len(new))
            if new and not rates(info).measured and not switched_off() and info.vendor != "oclgrind":
                step("calibrating", 0)
                _calibrate(chosen, console)
            if (compilers := processes(jobs, info)) and new:
                most_s = precompile_s(len(new), limits["budget_ms"])
                precompile(new, runtime.address(chosen), compilers, most_s, say=step)
            for problem in new:
                step(str(problem), 0)
                every_search.append(measure(problem, chosen, **limits))
                step("", 1)
                if every_search[-1].lost:
                    raise ConvDispatchError(
                        f"{every_search[-1].lost} left a device that nothing runs on, at {problem}; what was measured "
                        "is recorded: run again, with --isolate"
                    )
        except KeyboardInterrupt:
            console.print(f"interrupted: {len(every_search)} problems are measured and recorded; run again to go on")
    if skipped and not quiet:
        console.print(f"{skipped} problems are measured already and not in doubt (--again measures them)")
    return every_search


def _show(results: Any, verbose: bool) -> None:
    console = stdout()
    winner = results.winner
    console.print(
        f"{results.problem}: {winner.solver if winner else 'nothing could be measured'} "
        f"({results.verdict}) in {results.spent_ms / 1e3:.1f} s, at most {results.peak_bytes / 2**20:.0f} MiB",
        highlight=False,
    )
    table = Table(
        Column("solver", "name"),
        Column("state", "name", rank=2),
        *columns("number", "ms", "95 % interval"),
        Column("screening", rank=4),
        Column("error", rank=1),
        Column("workspace", rank=3),
        Column("configuration", "sentence"),
        Column("why", "sentence", rank=5),
    )
    bad, refused = results.having("wrong", "failed"), results.having("refused")
    shown = [r for r in results if r not in (*bad, *refused)] if verbose else results.having("measured")[:PRINTED]
    for r in shown:
        benchmarked = (
            [f"{r.median_ms:.4g}", f"{r.ci[0]:.4g} to {r.ci[1]:.4g}"] if r.benchmarked else ["not benchmarked", ""]
        )
        table.add_row(
            r.solver,
            r.status,
            *(["", ""] if r.median_ms is None else benchmarked),
            "" if r.screening_ms is None else f"{r.screening_ms:.4g}",
            "" if r.error is None else f"{r.error:.1e}",
            "" if r.workspace is None else str(r.workspace),
            settings(r.config),
            r.reason,
        )
    if shown:
        console.print(table)
    for r in bad:
        console.print(f"{r.solver} {settings(r.config)}".rstrip() + f": {r.status}: {r.reason}")
    for line in grouped({r.solver: r.reason for r in refused}):
        console.print(f"refused: {line}")
    if results.runs:
        console.print(results.runs)
    untried = len(results) - len(shown) - len(bad) - len(refused)
    if untried:
        console.print(f"{untried} candidates more were cut or not tried (-v lists them)")
    if results.conditions:
        console.print(f"incomplete: {results.conditions}")


def _to_dict(results: Any) -> dict[str, Any]:
    return {
        "problem": str(results.problem),
        "device": str(results.device),
        "winner": results.winner.solver if results.winner else None,
        "verdict": results.verdict,
        "spent_ms": results.spent_ms,
        "peak_bytes": results.peak_bytes,
        "conditions": results.conditions,
        "runs": results.runs,
        "results": [asdict(result) | {"config": dict(result.config)} for result in results],
    }


def _decisions(problems: list[ConvProblem], device: str | None) -> dict[str, Any]:
    from ...device import runtime
    from ...selection.choice.lockfile import Decision
    from ...selection.choice.ranking import rank

    info = runtime.device_info(runtime.find_device(device))
    candidates = {str(problem): rank(problem, info)[0] for problem in problems}
    return {text: Decision(candidate.solver.name, dict(candidate.config)) for text, candidate in candidates.items()}


def _check(problems: list[ConvProblem], device: str | None, lock: Path | None) -> None:
    from ...selection.choice.lockfile import drift, read

    if lock is None:
        raise click.UsageError("--check compares with a lock file: name it with --lock")
    differences = drift(read(lock), _decisions(problems, device).items())
    for line in differences:
        echo(line)
    echo(f"{len(problems)} problems, {len(differences)} differ from {lock}")
    sys.exit(1 if differences else 0)
