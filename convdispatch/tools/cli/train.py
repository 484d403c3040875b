"""``train``: a small net on pictures, with a progress bar, a loss curve and checkpoints."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from ...api.errors import InvalidArgument
from .options import AS_JSON, DEVICE, OUTPUT, stderr, stdout
from .output import echo


@click.command()
@click.argument("data", default="fashion-mnist")
@click.option("--images", type=click.IntRange(min=1), help="Only the first so many pictures.")
@click.option("--test-images", type=click.IntRange(min=1), help="Only the first so many for testing.")
@click.option("--epochs", default=2, show_default=True, type=click.IntRange(min=1))
@click.option("--batch", default=64, show_default=True, type=click.IntRange(min=1), help="Pictures of one step.")
@click.option("--optimizer", default="sgd", show_default=True, type=click.Choice(["sgd", "adam"]))
@click.option("--lr", type=float, help="Learning rate; default 0.05 for sgd, 0.001 for adam.")
@click.option("--momentum", default=0.9, show_default=True)
@click.option("--weight-decay", default=0.0, show_default=True)
@click.option("--dropout", default=0.0, show_default=True, help="Probability of dropping a feature.")
@click.option("--seed", default=0, show_default=True, help="Decides first weights, order and dropout.")
@click.option(
    "--precision",
    default="float32",
    show_default=True,
    type=click.Choice(["float32", "float16", "bfloat16"]),
    help="Of products; weights and sums stay float32.",
)
@click.option("--checkpoint", type=OUTPUT, help="File to write, and to go on from.")
@click.option("--resume", is_flag=True, help="Go on from the checkpoint, if there is one.")
@click.option("--every", default=200, show_default=True, type=click.IntRange(min=1), help="Steps between checkpoints.")
@click.option("--curve", type=OUTPUT, help="Write the losses there as CSV.")
@click.option("--most-pixels", type=click.IntRange(min=1), help="Of a picture file; larger ones are refused.")
@AS_JSON
@DEVICE
def train(curve: Path | None, as_json: bool, device: str | None, every: int, **options: Any) -> None:
    """Train a small net on DATA: digits (scikit-learn's), fashion-mnist (Debian's), or a folder of pictures."""
    from ...train import Settings
    from ...train import train as run
    from ...train.data import load
    from ...train.run import curve as plot

    checkpoint, resume, most_pixels = (options.pop(name) for name in ("checkpoint", "resume", "most_pixels"))
    data = {} if most_pixels is None else {"data": load(options["data"], most_pixels=most_pixels)}
    if options["lr"] is None:
        options["lr"] = 0.05 if options["optimizer"] == "sgd" else 0.001
    settings = Settings(**options)
    console = stderr() if as_json else stdout()
    columns = (TextColumn("training"), BarColumn(), MofNCompleteColumn(), TextColumn("loss {task.fields[loss]:.4f}"))
    bar = Progress(*columns, TimeElapsedColumn(), TimeRemainingColumn(), console=console)
    task = bar.add_task("training", total=None, loss=float("nan"))

    steps = [0]

    def tell(done: int, total: int, loss: float) -> None:
        steps.append(done)
        # The progress bar starts here, so that an error before the first step leaves no bar on the terminal.
        bar.start()
        bar.update(task, completed=done, total=total, loss=loss)

    try:
        report = run(settings, device=device, checkpoint=checkpoint, resume=resume, every=every, progress=tell, **data)
    except KeyboardInterrupt:
        bar.stop()
        advice = f"{checkpoint} holds it: go on with --resume" if checkpoint else "no --checkpoint was named to keep it"
        echo(f"interrupted after {steps[-1]} steps; {advice}", err=True)
        sys.exit(130)
    finally:
        bar.stop()
    if curve is not None:
        _write_curve(curve, report.losses)
    if as_json:
        echo(json.dumps(report.to_dict()))
        return
    console.print(f"\nloss\n{plot(report.losses)}\n", highlight=False)
    speed = f", {report.images_per_second:.0f} images/s" if report.images_per_second else ""
    console.print(
        f"accuracy {report.accuracy:.2%} on {report.device}; {report.steps} steps in {report.seconds:.1f} s{speed}"
    )


def _write_curve(path: Path, losses: Sequence[float]) -> None:
    try:
        with path.open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(["step", "loss"])
            writer.writerows((step, f"{loss:.9g}") for step, loss in enumerate(losses, 1))
    except OSError as error:
        raise InvalidArgument(f"the curve {path} cannot be written: {error.strerror or error}") from None
