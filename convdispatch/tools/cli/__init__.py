"""The ``convdispatch`` command: each subcommand reads its options and calls one function elsewhere.

A new subcommand is a function in a module here, named in ``COMMANDS``; options that several share go into ``options``.

- ``options``: options and arguments that several commands share.
- ``output``: standard output for the command alone; what plugins and drivers print goes to standard error.
- ``interrupts``: Ctrl-C and SIGTERM end a command soon and in one line.
- ``inspect``: ``info``, ``doctor``, ``explain``.
- ``find``: ``find``.
- ``bench``: ``bench``.
- ``verify``: ``verify``.
- ``pack``: ``trace``, ``pack``.
- ``kernel``: ``kernel``, ``targets``.
- ``database``: ``db``.
- ``cache``: ``cache list``, ``cache show``, ``cache clear``; ``config``.
- ``calibrate``: ``calibrate``.
- ``new_plugin``: ``new-plugin``.
"""

from __future__ import annotations

import importlib
import os
import traceback
from typing import Any

import click

from ...api import settings
from ...api.errors import ConvDispatchError
from .output import Group, reserving

__all__ = ["main", "run"]

COMMANDS = {
    "bench": ".bench",
    "cache": ".cache",
    "calibrate": ".calibrate",
    "config": ".cache",
    "db": ".database",
    "doctor": ".inspect",
    "explain": ".inspect",
    "find": ".find",
    "info": ".inspect",
    "kernel": ".kernel",
    "new-plugin": ".new_plugin",
    "pack": ".pack",
    "targets": ".kernel",
    "trace": ".pack",
    "verify": ".verify",
}
"""The module of each subcommand, which is imported when the subcommand runs."""


class _Group(Group):
    """Loads subcommands on demand, and turns this package's errors into one line and exit status 1."""

    def list_commands(self, context: click.Context) -> list[str]:
        return sorted(COMMANDS)

    def get_command(self, context: click.Context, name: str) -> click.Command | None:
        if name not in COMMANDS:
            return None
        command: click.Command = getattr(importlib.import_module(COMMANDS[name], __name__), name.replace("-", "_"))
        return reserving(command)

    def invoke(self, context: click.Context) -> Any:
        from .interrupts import INTERRUPTED, ended_by_signals

        try:
            with ended_by_signals():
                return super().invoke(context)
        except ConvDispatchError as error:
            if settings.TRACEBACK.value():
                traceback.print_exception(error)
            raise click.ClickException(str(error)) from error
        except OSError as error:
            # The error is not about a file, but about a closed pipe or a process that did not start, for instance.
            if error.filename is None:
                raise
            raise click.ClickException(f"{error.filename}: {error.strerror or error}") from error
        except KeyboardInterrupt:
            click.echo("interrupted: nothing was lost that was recorded before", err=True)
            context.exit(INTERRUPTED)


@click.group(cls=_Group, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="convdispatch")
@click.option("--traceback", "tracebacks", is_flag=True, help="Print the whole traceback of each fault of a plugin.")
@click.pass_context
def main(context: click.Context, tracebacks: bool) -> None:
    """One conv() call, many engines: see what is there, what would run and why, and how fast it is."""
    # ``doctor`` itself reports what is wrong with the environment variables.
    if context.invoked_subcommand != "doctor":
        settings.check()
    if tracebacks:
        os.environ[settings.TRACEBACK.name] = "1"  # Child processes inherit the environment variable.


def run() -> None:
    """The installed command."""
    from .interrupts import run as run_as_process

    run_as_process(main)
