"""``classify``: the main job."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from .options import DEVICE, stdout

__all__ = ["classify"]


@click.command()
@click.argument("paths", nargs=-1, type=click.Path(path_type=Path))
@click.option("--top", default=5, show_default=True, help="Names for each picture.")
@click.option("--runs", default=20, show_default=True, help="Timed repetitions of each layer.")
@click.option("--layout", type=click.Choice(["nchw", "nhwc"]), default=None, help="Layout of the activations.")
@DEVICE
def classify(paths: tuple[Path, ...], top: int, runs: int, layout: str | None, device: str | None) -> None:
    """Name what the pictures at PATHS show (default: scikit-image's), with EfficientNet-lite0; time each layer."""
    from ..classify import classify as run

    options: dict[str, Any] = {} if layout is None else {"layout": layout}
    run(list(paths), top=top, runs=runs, device=device, **options).show(stdout())
