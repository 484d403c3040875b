"""``run``: a model file on arrays or random numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from .options import DEVICE, JOBS, OUTPUT, command_line, processes, stderr, stdout


@click.command()
@click.argument("model", type=click.Path(path_type=Path))
@click.option("--input", "inputs", metavar="[NAME=]FILE", multiple=True, help="A .npy or .npz; else random.")
@click.option("--batch", type=click.IntRange(min=1), default=None, help="Pictures at once, where the file allows it.")
@click.option("--profile", is_flag=True, help="Then each layer: solver, why, error, share of the roofline.")
@click.option("--html", "html_path", type=OUTPUT, default=None, help="Write the profile's page there.")
@click.option("--trace", "trace_path", type=OUTPUT, default=None, help="Write a run's measured timeline there.")
@click.option("--output", type=OUTPUT, default=None, help="Write the results to this .npz.")
@click.option("--math", default="float32", show_default=True, help="float32, ieee, tf32, fast or reproducible.")
@click.option("--dtype", default=None, help="Compute in float16, bfloat16, float32 or float64.")
@click.option("--runs", type=click.IntRange(min=1), default=20, show_default=True, help="Timed runs.")
@JOBS
@DEVICE
def run(model: Path, inputs: tuple[str, ...], output: Path | None, profile: bool, **options: Any) -> None:
    """Run the ONNX file MODEL: what goes in, what comes out, how long it takes."""
    import numpy as np

    from ..run_model import run_model

    html_path, trace_path, jobs = (options.pop(name) for name in ("html_path", "trace_path", "jobs"))
    report, net = run_model(model, inputs, **options)
    stdout().print(report)
    if output is not None:
        np.savez(output, **report.outputs)
    if trace_path is not None:
        from ..benchmark.pages.timeline import write_trace

        if net.latest is None:
            raise click.ClickException("nothing is computed, so there is no timeline: every output is a constant")
        write_trace(net.latest, model.stem, report.device, trace_path)
    if profile or html_path is not None:
        _profile(model, net, options["device"], jobs, html_path)


def _profile(model: Path, net: Any, device: str | None, jobs: int | None, html_path: Path | None) -> None:
    """Each convolution of the form that just ran, timed with the solver that it has."""
    from ...measurement.shapes import Entry
    from ...runtime import device_info, find_device
    from ..benchmark.measuring.run import run as measure
    from ..benchmark.pages.terminal import show

    entries: dict[Any, Entry] = {}
    for number, layer in enumerate(net.latest.layers if net.latest else (), 1):
        if layer.problem is not None:
            equal = entries.get(layer.problem)
            count = 1 if equal is None else equal.count + 1
            entries[layer.problem] = Entry(
                f"{number} {layer.name}" if equal is None else equal.name, layer.problem, count
            )
    if not entries:
        raise click.ClickException("the net has no convolutions to profile")
    report = measure(
        {model.stem: list(entries.values())},
        device,
        search=False,
        console=stderr(),
        jobs=processes(jobs, device_info(find_device(device))),
        command=command_line(),
    )
    show(report, stdout())
    if html_path is not None:
        from ..benchmark.pages.page import write_html

        write_html(report, html_path)
