"""Standard output belongs to the command: what plugins, drivers and kernels print meanwhile goes to standard error.

So every ``--json`` parses, whatever a plugin says as it is imported or asked.
"""

from __future__ import annotations

import contextlib
import difflib
import functools
import json
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any, TextIO

import click

from ...api.errors import ConvDispatchError

_streams: list[TextIO] = []


class Group(click.Group):
    """Suggests the command that a mistyped one may have meant."""

    def resolve_command(self, context: click.Context, args: list[str]) -> Any:
        try:
            return super().resolve_command(context, args)
        except click.UsageError as error:
            if similar := difflib.get_close_matches(args[0], self.list_commands(context), 1):
                error.message += f" Did you mean {similar[0]}?"
            raise


def ours() -> TextIO:
    """The stream of the command's own output."""
    return _streams[-1] if _streams else sys.stdout


def echo(message: Any = None, *, err: bool = False, nl: bool = True) -> None:
    """``click.echo`` on the command's own output."""
    click.echo(message, file=None if err else ours(), nl=nl, err=err)


def reserving(command: click.Command) -> click.Command:
    """Wrap the callback of the command, or those of its subcommands, so that standard output is theirs alone."""
    if isinstance(command, click.Group):
        for subcommand in command.commands.values():
            reserving(subcommand)
    elif command.callback is not None and not hasattr(command.callback, "reserves_output"):
        command.callback = _with_reserved_output(command.callback)
    return command


def _with_reserved_output(callback: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(callback)
    def call(*arguments: Any, **options: Any) -> Any:
        with reserved():
            try:
                return callback(*arguments, **options)
            except ConvDispatchError as error:
                # A program that reads the command's JSON output gets an error as JSON, too.
                if options.get("as_json"):
                    echo(json.dumps({"error": str(error)}))
                raise

    call.reserves_output = True  # type: ignore[attr-defined]
    return call


def give_up() -> None:
    """Send to standard error what is printed from now on, while the process of an ended command ends."""
    with contextlib.suppress(Exception):
        sys.stdout.flush()
        sys.stdout = sys.stderr
        os.dup2(2, 1)


@contextlib.contextmanager
def reserved() -> Iterator[None]:
    """Inside the block ``ours()`` is standard output, and ``sys.stdout`` and descriptor 1 are standard error."""
    original = sys.stdout
    stream, descriptor = original, None
    # Where standard output is closed or no file (as in tests), only what Python prints is redirected.
    with contextlib.suppress(Exception):
        if original.fileno() == 1 and sys.stderr.fileno() == 2:
            original.flush()
            descriptor = os.dup(1)
            os.dup2(2, 1)
            line = original.isatty()
            stream = os.fdopen(descriptor, "w", 1 if line else -1, encoding=original.encoding, errors=original.errors)
    _streams.append(stream)
    sys.stdout = sys.stderr
    try:
        yield
    finally:
        sys.stdout = original
        _streams.remove(stream)
        if descriptor is not None:
            try:
                stream.flush()
            finally:
                os.dup2(descriptor, 1)
                with contextlib.suppress(OSError):
                    stream.close()
