"""``config``: what a build system asks of an installation."""

from __future__ import annotations

import click

from .output import echo


@click.command(no_args_is_help=True)
@click.option("--include", is_flag=True, help="Print the folder of convdispatch_plugin.h, for a C compiler.")
def config(include: bool) -> None:
    """Print where this installation's files for C compilers are."""
    from ...selection.vendors.discovery import HEADER

    if include:
        echo(str(HEADER.parent))
