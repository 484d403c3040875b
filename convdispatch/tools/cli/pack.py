"""``trace`` and ``pack``: where the time of a first call goes, and a file that spares it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from .options import AS_JSON, DEVICE, OUTPUT, stdout
from .output import echo


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
        echo(json.dumps(ready.to_dict(), indent=2))
    else:
        stdout().print(ready)


@click.command()
@click.argument("what", metavar="NET|MODEL|LOCKFILE|PROBLEM")
@click.option("-o", "--output", type=OUTPUT, required=True, help="The pack, such as net.cdpack.")
@click.option("--batch", type=click.IntRange(min=1), default=None, help="Pictures at once, of a net.")
@click.option("--all-weights", is_flag=True, help="Also packed weights that take longer to read than to make.")
@DEVICE
def pack(what: str, output: Path, device: str | None, **options: Any) -> None:
    """Write decisions, configurations, compiled kernels and packed constant weights for a device into one file.

    ``convdispatch.load_pack(FILE)`` or CONVDISPATCH_PACK=FILE puts it in force, here and on machines of the same kind.
    """
    from ..ready import make_pack

    echo(make_pack(what, output, device, **options))
