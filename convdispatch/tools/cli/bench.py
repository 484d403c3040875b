"""``bench``: every solver's time for each layer of a net, beside the device's own ceilings and other libraries."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from ..problems import is_model, known_nets, read_entries
from .options import (
    BUDGET,
    CHANGES,
    CONFIGURE,
    DEVICE,
    FILES,
    ISOLATE,
    OUTPUT,
    command_line,
    configure,
    search_limits,
    solvers_are_named,
    stderr,
    stdout,
)

BUDGET_MS = 3000.0
"""The default of --budget: the milliseconds that the search for a problem may take."""


@click.command()
@click.argument("names", metavar="[NET|PROBLEM]...", nargs=-1)
@FILES
@CONFIGURE
@click.option("--solver", metavar="GLOB", default=None, help="Only these solvers.")
@click.option("--against", metavar="PEERS", default="", help="torch, onnxruntime; several with commas.")
@click.option("--find/--no-find", "search", default=True, help="Measure every solver, or only the immediate choice.")
@BUDGET(BUDGET_MS)
@ISOLATE
@click.option("--within", "within_s", type=float, default=None, help="Seconds after which no problem is begun.")
@click.option("--json", "json_path", type=OUTPUT, default=None, help="Write JSON there.")
@DEVICE
def bench(names: tuple[str, ...], files: tuple[Path, ...], device: str | None, **options: Any) -> None:
    """Time every solver on each layer, with the device's measured ceilings and other libraries in the same run.

    Nets: convnet, alexnet, overfeat, vgg_a, googlenet, resnet50 (distinct layers), resnet50_full, resnext50,
    mobilenet, mobilenet_v3, efficientnet_b0, convnext_t, densenet121, inception_v3, unet, wavenet, unet3d; cpu10.
    Problems in any dialect. Files: MODEL.onnx, its convolutions as they run.
    """
    json_path = options.pop("json_path")
    if not (names or files):
        net_names = ", ".join(known_nets())
        raise click.UsageError(f"name a net, a problem, a model or a file (--from); nets are {net_names}")
    solvers_are_named(options["solver"])
    changes = {name: options.pop(name) for name in CHANGES}
    options |= search_limits(options.pop("given_ms"), BUDGET_MS) | {"command": command_line()}
    options["against"] = [peer.strip() for peer in options["against"].split(",") if peer.strip()]
    _measure(_nets(names, files, changes), device, json_path, options)


def _measure(layers: dict[str, Any], device: str | None, json_path: Path | None, options: dict[str, Any]) -> None:
    """Measure on a device and show the report; the JSON file is written after each problem, and at the end."""
    from ..benchmark.report import write_json
    from ..benchmark.run import run
    from ..benchmark.terminal import show

    def keep(report: Any) -> None:
        if json_path is not None:
            write_json(replace(report, interrupted=True), json_path)

    report = run(layers, device, console=stderr(), keep=keep, **options)
    show(report, stdout())
    if json_path is not None:
        write_json(report, json_path)


def _nets(names: tuple[str, ...], files: tuple[Path, ...], changes: dict[str, Any]) -> dict[str, Any]:
    """The layers of each net, by the name of its table or file; ``problems`` is the net of those named one by one."""
    nets: dict[str, Any] = {}
    for name in names:
        entries = configure(
            read_entries([name], batch=changes.get("batch"), layout=changes.get("layout") or "nchw"), **changes
        )
        net = name if name in known_nets() else Path(name).stem if is_model(name) else "problems"
        nets.setdefault(net, []).extend(entries)
    for file in files:
        nets.setdefault(file.stem, []).extend(configure(read_entries((), [file]), **changes))
    return nets
