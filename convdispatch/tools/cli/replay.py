"""``replay``: the calls of a trace from another machine, made on this one, with a comparison of both."""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import click

from ...selection.text_table import Column, Table, columns
from .options import AS_JSON, DEVICE, OUTPUT, stderr, stdout
from .output import echo


@click.command()
@click.argument("trace", type=click.Path(path_type=Path, dir_okay=False))
@click.option("--to", "target", type=OUTPUT, help="Append this machine's trace there.")
@click.option(
    "--with", "other", type=click.Path(path_type=Path, dir_okay=False), help="Run nothing: compare with that."
)
@click.option("--most", default=20, show_default=True, type=click.IntRange(min=1), help="Calls of one problem.")
@DEVICE
@AS_JSON
def replay(trace: Path, target: Path | None, other: Path | None, most: int, device: str | None, as_json: bool) -> None:
    """Make the calls that CONVDISPATCH_LAYERS=trace wrote to TRACE on another machine, and compare both.

    Exit status 1 where a call could not be made here.
    """
    from ..benchmark.quiet import OtherProcesses, busy, loaded
    from ..progress import progress
    from ..replay import compare, read_trace
    from ..replay import replay as run

    calls_there = read_trace(trace)
    if other is not None:
        compared, warning = compare(calls_there, read_trace(other)), ""
    else:
        from ...device import runtime

        info, other_processes = runtime.device_info(runtime.find_device(device)), OtherProcesses()
        distinct = len({call.problem for call in calls_there})
        with tempfile.TemporaryDirectory() as folder, progress(stderr(), "replay", distinct) as step:
            calls_here, failures = run(calls_there, target or Path(folder, "here.csv"), device, most=most, say=step)
        compared, load = compare(calls_there, calls_here, failures), other_processes.load()
        device_values = {"type": info.type, "compute_units": info.compute_units}
        warning = busy(
            [f"a load of {load:g} by others on {info.compute_units} processors"] if loaded(load, device_values) else []
        )
    if as_json:
        echo(json.dumps(compared.to_dict() | {"busy": warning}, indent=1))
    else:
        _show(compared, warning)
    sys.exit(int(bool(compared.failures)))


def _show(compared: Any, warning: str) -> None:
    console = stdout()
    console.print(f"there: {compared.devices[0]}\nhere: {compared.devices[1] or 'nothing ran'}", highlight=False)
    if warning:
        console.print(warning, style="red", highlight=False)
    table = Table(
        Column("problem", "name"),
        Column("calls", rank=2),
        *columns("name", "solver there", "solver here", rank=1),
        *columns("number", "enqueue there", "enqueue here", rank=3),
        *columns("number", "done there", "done here", "there / here"),
        title="Medians in microseconds: in enqueue, and until the result is there",
    )
    for problem, (side_there, side_here) in compared.problems.items():
        sides = [(_us(side and side.host_us), _us(side and side.done_us)) for side in (side_there, side_here)]
        ratio = compared.ratio(problem)
        table.add_row(
            problem,
            str(side_there.calls if side_there else 0),
            side_there.solver if side_there else "-",
            side_here.solver if side_here else "-",
            *(sides[0][0], sides[1][0], sides[0][1], sides[1][1]),
            "-" if ratio is None else f"{ratio:.3g}",
        )
    console.print(table)
    for problem, reason in compared.failures.items():
        console.print(f"{problem} did not run here: {reason}", style="red")
    if compared.whole is None:
        console.print("how long calls took is not known: CONVDISPATCH_TRACE_WAIT=1 makes a trace wait for each result")
    else:
        there_us, here_us = compared.whole
        ratio = "withheld, the machine is busy" if warning else f"{there_us / here_us:.3g}"
        sums = f"{there_us / 1e3:.4g} ms there, {here_us / 1e3:.4g} ms here"
        console.print(f"all calls that both made: {sums}; there over here: {ratio}", highlight=False)


def _us(value: float | None) -> str:
    return "-" if value is None else f"{value:,.1f}"
