"""``classify``: names what pictures show, and times each layer of the net that says so."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from .options import DEVICE, stdout


@click.command()
@click.argument("paths", nargs=-1, type=click.Path(path_type=Path))
@click.option("--top", default=5, show_default=True, help="Names for each picture.")
@click.option("--runs", default=20, show_default=True, help="Timed repetitions of each layer.")
@click.option("--most-pixels", type=click.IntRange(min=1), help="Of a picture; larger ones are refused.")
@click.option("--layout", type=click.Choice(["nchw", "nhwc"]), default=None, help="Layout of the activations.")
@click.option("--model", type=click.Path(path_type=Path), default=None, help="An ONNX file of ImageNet's classes.")
@click.option("--mean", metavar="R,G,B", default=None, help="Of its pictures, of 255. Default: ImageNet's.")
@click.option("--scale", metavar="R,G,B", default=None, help="What the rest is divided by. Default: ImageNet's.")
@DEVICE
def classify(paths: tuple[Path, ...], mean: str | None, scale: str | None, **options: Any) -> None:
    """Name what the pictures at PATHS show (default: scikit-image's), with EfficientNet-lite0 or --model; time each
    layer."""
    from ..classify import classify as run

    options |= {name: _colours(name, text) for name, text in (("mean", mean), ("scale", scale)) if text is not None}
    chosen = {name: value for name, value in options.items() if value is not None}
    stdout().print(run(list(paths), **chosen))


def _colours(name: str, text: str) -> tuple[float, ...]:
    """The option's value as three numbers, one a colour; a single number holds for all three colours."""
    try:
        numbers = tuple(float(part) for part in text.split(","))
    except ValueError:
        numbers = ()
    if len(numbers) not in (1, 3):
        raise click.UsageError(f"--{name} takes a number for each of red, green and blue, or one for all, got {text!r}")
    return numbers * 3 if len(numbers) == 1 else numbers
