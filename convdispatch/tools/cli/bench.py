"""``bench``: every solver's time for each layer of a net, beside the device's own ceilings and other libraries."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from ..model_file import is_model
from ..problems import known_nets, read_entries
from ..progress import progress
from .cluster import CLUSTER, security_of
from .options import (
    BUDGET,
    CONFIGURE,
    DEVICE,
    JOBS,
    OUTPUT,
    command_line,
    configure,
    processes,
    records_are_writable,
    search_limits,
    solvers_are_named,
    stderr,
    stdout,
)
from .output import shown

BUDGET_MS = 3000.0
"""Milliseconds that the search for a problem takes where --budget does not say otherwise."""
STEP_S = 1.0
"""Seconds that a training step is thought to take until one has ended."""


@click.command()
@click.argument("names", metavar="[NET|PROBLEM]...", nargs=-1)
@click.option("--from", "files", type=click.Path(path_type=Path), multiple=True, help="A file of problems or a trace.")
@CONFIGURE
@click.option("--solver", metavar="GLOB", default=None, help="Only these solvers.")
@click.option("--against", metavar="PEERS", default="", help="torch, onnxruntime; several with commas.")
@click.option("--find/--no-find", "search", default=True, help="Measure every solver, or only the immediate choice.")
@BUDGET(BUDGET_MS)
@click.option("--record/--no-record", default=False, help="Keep the results for later calls, as find does.")
@click.option("--resume", type=OUTPUT, default=None, help="A journal to go on with and append to.")
@click.option("--isolate/--no-isolate", default=True, help="Measure in a child process, which may die or hang.")
@click.option("--timeout", "timeout_s", type=float, default=None, help="Seconds of silence after which one hangs.")
@click.option("--within", "within_s", type=float, default=None, help="Most seconds of it all; what is left is said.")
@JOBS
@click.option("--csv", "csv_path", type=OUTPUT, default=None, help="Write CSV there.")
@click.option("--json", "json_path", type=OUTPUT, default=None, help="Write JSON there.")
@click.option("--html", "html_path", type=OUTPUT, default=None, help="Write one HTML page there.")
@click.option(
    "--wait-quiet",
    "wait_quiet_s",
    type=click.FloatRange(min=0),
    default=0.0,
    help="Wait so many seconds at most until other work has ended.",
)
@click.option("--train", is_flag=True, help="Profile training steps of nets (see models) instead: --net vgg_a --train.")
@click.option("--net", "nets", multiple=True, help="A net by name, as an argument would; several times for several.")
@click.option(
    "--compare",
    type=(click.Path(path_type=Path), click.Path(path_type=Path)),
    metavar="OLD NEW",
    default=None,
    help="Measure nothing: two JSON files beside each other.",
)
@click.option("--render", type=click.Path(path_type=Path), default=None, help="Measure nothing: show this JSON.")
@CLUSTER
@DEVICE
def bench(
    names: tuple[str, ...],
    files: tuple[Path, ...],
    against: str,
    csv_path: Path | None,
    json_path: Path | None,
    html_path: Path | None,
    train: bool,
    nets: tuple[str, ...],
    render: Path | None,
    compare: tuple[Path, Path] | None,
    device: str | None,
    solver: str | None,
    search: bool,
    given_ms: float | None,
    record: bool,
    resume: Path | None,
    isolate: bool,
    timeout_s: float | None,
    within_s: float | None,
    jobs: int | None,
    wait_quiet_s: float,
    cluster: str | None,
    **changes: Any,
) -> None:
    """Time every solver on each layer, with the device's measured ceilings and other libraries in the same run.

    With --train, where the time of a training step goes, by kind of operation, for nets of convdispatch.models.

    Nets: convnet, alexnet, overfeat, vgg_a, googlenet, resnet50 (distinct layers), resnet50_full, resnext50,
    mobilenet, mobilenet_v3, efficientnet_b0, convnext_t, densenet121, inception_v3, unet, wavenet, unet3d; cpu10.
    Problems in any dialect. Files: MODEL.onnx, its convolutions as they run.

    With --cluster the workers of a Dask scheduler measure, on every kind of device that they offer; the JSON and CSV
    files hold all kinds, and each kind has a page, with its key in the file's name.
    """
    security = security_of(changes)
    if within_s is not None and not isolate:
        raise click.UsageError("--within ends a child process: it cannot be kept with --no-isolate")
    names = (*nets, *names)
    if not (names or files or render or compare):
        known = ", ".join(known_nets())
        raise click.UsageError(f"name a net, a problem, a model or a file (--from); nets are {known}")
    solvers_are_named(solver)
    if record:
        records_are_writable()
    if train:
        _train(names, device, changes, json_path, wait_quiet_s)
        return
    from ...device import runtime
    from ..benchmark.measuring.run import run
    from ..benchmark.pages.export import write_json
    from ..benchmark.report import load, load_all

    if compare is not None:
        old, new = map(load, compare)
        with shown(" or ".join(map(str, compare))):
            _compare(old, new)
        return
    options = {
        "against": [peer.strip() for peer in against.split(",") if peer.strip()],
        "solver": solver,
        "search": search,
        **search_limits(given_ms, BUDGET_MS),
        "command": command_line(),
        "timeout_s": timeout_s,
        "wait_quiet_s": wait_quiet_s,
    }
    if cluster is not None and render is None:
        if record or resume or within_s is not None or not isolate:
            raise click.UsageError(
                "--record, --resume, --within and --no-isolate are for one device here; `find --cluster` records"
            )
        reports = _there(_nets(names, files, changes), cluster, device, security, **options)
        if reports:
            _write(reports, json_path, csv_path, html_path)
        sys.exit(0 if reports else 1)
    if render is not None:
        reports = load_all(render)
    else:
        report = run(
            _nets(names, files, changes),
            device,
            **options,
            record=record,
            resume=resume,
            console=stderr(),
            isolate=isolate,
            within_s=within_s,
            jobs=processes(jobs, runtime.device_info(runtime.find_device(device))),
            keep=lambda report: None if json_path is None else write_json(replace(report, interrupted=True), json_path),
        )
        reports = [report]
    with shown(render):
        _write(reports, json_path, csv_path, html_path)


def _write(reports: list[Any], json_path: Path | None, csv_path: Path | None, html_path: Path | None) -> None:
    """Show the reports, one a kind of device, and write the files that were asked for: a page a kind, one else."""
    from ..benchmark.pages.export import write_csv, write_json
    from ..benchmark.pages.terminal import show

    for report in reports:
        show(report, stdout())
    if json_path is not None:
        write_json(reports if len(reports) > 1 else reports[0], json_path)
    if csv_path is not None:
        write_csv(reports, csv_path)
    if html_path is not None:
        from ..benchmark.pages.page import write_html

        for report in reports:
            key = report.environment["device"]["key"]
            write_html(report, html_path if len(reports) == 1 else html_path.with_stem(f"{html_path.stem}-{key}"))


def _there(nets: dict[str, Any], cluster: str, device: str | None, security: Any, **options: Any) -> Any:
    """By a cluster's workers, a report a kind of device."""
    from ..benchmark.measuring.cluster_run import bench_many

    console = stderr()
    with progress(console, "bench", 0) as step:

        def say(words: str, done: int, total: int) -> None:
            step.resize(total)
            step(words, done)

        return bench_many(nets, cluster, device, security=security, say=say, tell=console.print, **options)


def _train(
    nets: tuple[str, ...], device: str | None, changes: dict[str, Any], json_path: Path | None, wait_s: float
) -> None:
    import json

    from ...device import runtime
    from ..benchmark.quiet import wait_quiet
    from ..benchmark.training import profile_training, show_training, turns

    console, reports = stderr(), []
    given = {"mb": changes.get("batch"), "layout": changes.get("layout")}
    options = {name: value for name, value in given.items() if value}
    units = runtime.device_info(runtime.find_device(device)).compute_units
    with progress(console, "training", len(nets) * turns(), STEP_S) as step:
        if wait_s:
            wait_quiet(wait_s, units, say=lambda words: step(words, 0))
        step.begin()
        for name in nets:
            reports.append(profile_training(name, device=device, say=step, **options))
            show_training(reports[-1], stdout())
    if json_path is not None:
        json_path.write_text(json.dumps([report.as_dict() for report in reports], indent=1) + "\n", encoding="utf-8")


def _compare(old: Any, new: Any) -> None:
    from ..benchmark.pages.compare import compare, show_comparison

    show_comparison(compare(old, new), stdout())


def _nets(names: tuple[str, ...], files: tuple[Path, ...], changes: dict[str, Any]) -> dict[str, Any]:
    """Net to its layers: a table's name, a file's, or ``problems`` for those named one by one."""
    nets: dict[str, Any] = {}
    for name in names:
        found = configure(
            read_entries([name], batch=changes.get("batch"), layout=changes.get("layout") or "nchw"), **changes
        )
        net = name if name in known_nets() else Path(name).stem if is_model(name) else "problems"
        nets.setdefault(net, []).extend(found)
    for file in files:
        nets.setdefault(file.stem, []).extend(configure(read_entries((), [file]), **changes))
    return nets
