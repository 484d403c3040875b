"""``trace``: where the time of a first call goes."""

from __future__ import annotations

import json

import click

from .options import AS_JSON, DEVICE, stdout

__all__ = ["trace"]


@click.command()
@click.argument("what", metavar="NET|MODEL|LOCKFILE|PROBLEM")
@click.option("--batch", type=click.IntRange(min=1), default=None, help="Pictures at once, of a net.")
@DEVICE
@AS_JSON
def trace(what: str, batch: int | None, device: str | None, as_json: bool) -> None:
    """Make ready what a first call needs, and say where the time goes: compile, template, selection, packing, load, by
    layer. ``CONVDISPATCH_KERNEL_CACHE=off`` shows a machine's first time."""
    from ..ready import make_ready

    ready = make_ready(what, device, batch)
    if as_json:
        click.echo(json.dumps(ready.to_dict(), indent=2))
    else:
        stdout().print(ready)
