"""``translate``: problems in another tool's words, so that what is seen here can be run there."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from ...api.errors import InvalidArgument
from ...measurement import grammar
from ..problems import read_entries
from .options import CONFIGURE, configure
from .output import echo


@click.command()
@click.argument("names", metavar="[NET|PROBLEM]...", nargs=-1)
@click.option("--from", "files", type=click.Path(path_type=Path), multiple=True, help="A file of problems or a trace.")
@click.option("--to", "dialect", type=click.Choice(grammar.DIALECTS), default="convdispatch", show_default=True)
@CONFIGURE
def translate(names: tuple[str, ...], files: tuple[Path, ...], dialect: str, **changes: Any) -> None:
    """Write problems in another dialect, one a line; what it cannot say goes to standard error, exit status 1."""
    refused = False
    for entry in configure(read_entries(names, files), **changes):
        try:
            echo(grammar.write(entry.problem, dialect, entry.name))
        except InvalidArgument as error:
            refused = True
            echo(f"{entry.problem}: {error}", err=True)
    sys.exit(int(refused))
