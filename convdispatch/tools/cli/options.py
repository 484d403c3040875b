"""Options and arguments that several commands share."""

from __future__ import annotations

import difflib
import errno
import os
import shlex
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, TypeVar

import click
from rich.console import Console

from ...api.device import DeviceInfo
from ...api.problem import DIRECTIONS, ConvProblem
from ...measurement.shapes import Entry
from .output import ours

Command = TypeVar("Command", bound="Callable[..., Any] | click.Command")


class OutputFile(click.Path):
    """A file that the command will write. The path is tried as the options are read, so that a missing folder does
    not lose what took minutes to measure."""

    def __init__(self) -> None:
        super().__init__(path_type=Path)

    def convert(self, value: Any, param: click.Parameter | None, context: click.Context | None) -> Any:
        path = super().convert(value, param, context)
        if not path.parent.is_dir():
            self.fail(f"there is no folder {path.parent} for {path.name}: make it first", param, context)
        try:
            _try_place(path)
        except (OSError, ValueError) as error:
            self.fail(f"{path} cannot be written: {getattr(error, 'strerror', None) or error}", param, context)
        return path


def _try_place(path: Path) -> None:
    """Raise OSError or ValueError where no file of this name could be written now; nothing is left behind."""
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    with tempfile.NamedTemporaryFile("wb", dir=path.parent, prefix=f".{path.name}.", suffix=".part") as file:
        file.write(b"\0" * 4096)
        file.flush()
        os.fsync(file.fileno())


OUTPUT = OutputFile()
DEVICE = click.option("--device", metavar="NAME", help="A device's name, vendor, type, or platform:device.")
_BUDGET_HELP = "Milliseconds a problem; by default longer, until every solver's first configuration was measured once."
FILES = click.option(
    "--from", "files", type=click.Path(path_type=Path), multiple=True, help="A file of problems, a net or a trace."
)
ISOLATE = click.option(
    "--isolate/--no-isolate",
    default=None,
    help="Try each candidate in a child process first. Default: those of plugins that were not verified here.",
)
AS_JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON instead of text.")
JOBS = click.option(
    "--jobs",
    type=click.IntRange(min=0),
    default=None,
    help="Compile ahead in so many processes. Default: none on a CPU.",
)
_CHANGES = (
    click.option("--direction", default=None, help="fwd, bwd_data, bwd_weights; several with commas, or all."),
    click.option("--batch", type=click.IntRange(min=1), default=None, help="Images, instead of the table's."),
    click.option("--dtype", default=None, help="float32, float64, float16 or bfloat16."),
    click.option("--layout", default=None, help="nchw or nhwc."),
    click.option("--math", default=None, help="float32, ieee, tf32, fast or reproducible."),
    click.option("--constant/--no-constant", default=None, help="Whether weights may be packed once."),
)


CHANGES = ("direction", "batch", "dtype", "layout", "math", "constant")
"""The names of the command arguments that change problems after they are read."""


def CONFIGURE(command: click.Command) -> click.Command:
    """The options that change problems after they are read."""
    for option in reversed(_CHANGES):
        command = option(command)
    return command


def BUDGET(default_ms: float) -> Callable[[Command], Command]:
    """The option of a search's budget, whose argument is None where the default holds (``search_limits``)."""
    return click.option(
        "--budget", "given_ms", type=float, default=None, show_default=f"{default_ms:g}", help=_BUDGET_HELP
    )


def search_limits(given_ms: float | None, default_ms: float) -> dict[str, Any]:
    """The limits of a search. A given budget is hard; the default one is exceeded until each solver has a time."""
    return {"budget_ms": default_ms if given_ms is None else given_ms, "every_solver": given_ms is None}


def stdout() -> Console:
    """Standard output, as wide as the terminal; where it is piped, as wide as its lines, so that nothing is cut.

    Brackets are text here and on ``stderr()``: plugins, drivers and files say what they please.
    """
    return Console(file=ours(), width=None if ours().isatty() else 10_000, markup=False, emoji=False)


def stderr() -> Console:
    """Standard error, for progress and messages that must not mix with the result."""
    return Console(stderr=True, markup=False, emoji=False)


def settings(config: Mapping[str, Any]) -> str:
    """The settings of a configuration as text."""
    return " ".join(f"{name}={value}" for name, value in config.items())


def command_line() -> str:
    """The command that runs, to be run again, without the folders of this machine."""
    arguments = [Path(argument).name if "/" in argument else argument for argument in sys.argv[1:]]
    return "convdispatch " + " ".join(shlex.quote(argument) for argument in arguments)


def processes(jobs: int | None, device: DeviceInfo) -> int:
    """The value of --jobs; by default all processors for a GPU, whose compilers do not use the device, up to 16."""
    return jobs if jobs is not None else 0 if device.type == "cpu" else min(16, os.cpu_count() or 1)


def solvers_are_named(pattern: str | None) -> None:
    """Raise a usage error for a pattern that no solver's name matches; derived solvers have a plus in theirs."""
    from ...selection.plugins.loader import plugins

    if pattern is None or "+" in pattern:
        return
    names = sorted(plugins().solvers)
    if not any(fnmatchcase(name, pattern) for name in names):
        similar = difflib.get_close_matches(pattern, names, 1)
        meant = f"; did you mean {similar[0]}?" if similar else ""
        raise click.UsageError(f"no solver's name matches {pattern!r}; `convdispatch info` lists them{meant}")


def records_are_writable() -> None:
    """Raise a usage error where the records of a measurement could not be written."""
    from ...selection.records.perfdb import perfdb

    folder = perfdb().folders["user"]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise click.UsageError(
            f"records cannot be written to {folder}: {error.strerror or error}; CONVDISPATCH_DB names another folder"
        ) from None


def configure(entries: Iterable[Entry], direction: str | None = None, **changes: Any) -> list[Entry]:
    """The entries with CHANGES made where they are not None, one for each direction; equal ones are merged."""
    fields = {"batch": "mb", "constant": "constant_weights"}
    fields_changed = {fields.get(name, name): value for name, value in changes.items() if value is not None}
    merged: dict[ConvProblem, Entry] = {}
    for entry in entries:
        directions = [entry.problem.direction] if direction is None else direction.split(",")
        for direction_name in DIRECTIONS if direction == "all" else directions:
            epilogue = {"bias": False, "residual": False, "activation": None} if direction_name == "bwd_weights" else {}
            problem = entry.problem.replace(**fields_changed, **epilogue, direction=direction_name.strip())
            equal = merged.get(problem)
            merged[problem] = Entry(entry.name, problem, entry.count + (equal.count if equal else 0))
    return list(merged.values())
