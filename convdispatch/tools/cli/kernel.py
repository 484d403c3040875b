"""``kernel``, ``targets``: the kernels of solvers as text, and compiled for devices that need not be there."""

from __future__ import annotations

import json
import time
from dataclasses import asdict
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ...api.errors import InvalidArgument
from ..problems import read_entries
from ..progress import progress
from .interrupts import INTERRUPTED
from .options import DEVICE, FILES, OUTPUT, solvers_are_named, stderr, stdout
from .output import echo

if TYPE_CHECKING:
    from ..targets.compiling import Row, Text

MOST = 200
"""Problems of a solver and a target, unless ``--most`` says otherwise."""


@click.command()
@click.argument("problem")
@click.option("--solver", metavar="NAME", help="Whose kernels; default: the one that would run.")
@click.option("--config", metavar="JSON", help="The solver's configuration; default: its first.")
@DEVICE
@click.option("--described", metavar="KIND", help="A device that need not be there: h200, a100, mi300x, avx512, ...")
def kernel(problem: str, solver: str | None, config: str | None, device: str | None, described: str | None) -> None:
    """Print the kernels that a solver compiles for PROBLEM, as rendered, without compiling them."""
    from ...device import jsontext
    from ...measurement.grammar import read
    from ..rendered import rendered

    try:
        configuration = None if config is None else dict(jsontext.loads(config))
    except (ValueError, TypeError) as error:
        raise click.BadParameter(f"a configuration is a JSON object: {error}", param_hint="--config") from None
    name, used, texts = rendered(read(problem), solver, device=device, described=described, config=configuration)
    count = f"{len(texts)} program{'s' * (len(texts) != 1)}" if texts else "no program of its own: a library's"
    echo(f"// {name} {json.dumps(dict(used))}: {count}")
    for number, text in enumerate(texts, 1):
        echo(f"\n// --- program {number} of {len(texts)} ---")
        echo(text)


@click.command()
@click.argument("names", metavar="[TARGET...]", nargs=-1)
@click.option("--solver", metavar="GLOB", default=None, help="Only these solvers.")
@FILES
@click.option("--most", type=click.IntRange(min=1), default=MOST, show_default=True, help="Problems of each solver.")
@click.option("--within", "within_s", type=float, default=None, help="Most seconds of compiling; what is left is said.")
@click.option("--markdown", "as_markdown", is_flag=True, help="Print the table as Markdown.")
@click.option("--json", "json_path", type=OUTPUT, default=None, help="Write every kernel and error there.")
@click.pass_context
def targets(
    context: click.Context, names: tuple[str, ...], solver: str | None, files: tuple[Path, ...], **options: Any
) -> None:
    """Compile every solver's kernels for TARGETs, by their vendors' own compilers, without a device.

    Without a name: for all targets whose compilers are on this machine. The problems are drawn from the shape tables
    and the conformance kit, and varied by seeds where a solver takes few of them. All are planned, then texts are
    compiled in turns, one of each row, so that a run that ends early is fair to all: first one of each structure (texts
    that are equal but for their numbers have the same one), then the others. Exit status 1 for a kernel that
    does not compile or exceeds a limit of the device.
    """
    from ...selection.plugins.loader import plugins
    from ..targets.compilers import identity, missing
    from ..targets.compiling import compile_all, markdown, plan_all, table, worst
    from ..targets.described import TARGETS

    most, within_s, json_path = options["most"], options["within_s"], options["json_path"]
    solvers_are_named(solver)
    problems = [entry.problem for entry in read_entries((), files)] if files else None
    unknown = [name for name in names if name not in TARGETS]
    if unknown:
        raise InvalidArgument(f"targets are {', '.join(TARGETS)}, got {', '.join(unknown)}")
    console, loaded = stderr(), plugins()
    reasons = {name: missing(name) for name in names or TARGETS}
    for name, reason in reasons.items():
        if reason:
            console.print(f"{name} is left out: it {reason}")
    usable = [name for name, reason in reasons.items() if not reason]
    if not usable:
        raise InvalidArgument("this machine has no compiler for a target that was named")
    solvers = [loaded.solvers[name] for name in sorted(loaded.solvers) if fnmatchcase(name, solver or "*")]
    planned: list[tuple[Row, list[Text]]] = []
    status = 0
    try:
        with progress(console, "targets", len(usable) * len(solvers) * most) as step:
            planned.extend(plan_all(usable, solvers, problems, most, step))
        until = None if within_s is None else time.monotonic() + within_s
        with progress(console, "texts", sum(row.texts for row, _ in planned)) as step:
            compile_all(planned, until, step)
    except KeyboardInterrupt:
        status = INTERRUPTED
    rows = [row for row, _ in planned]
    if json_path is not None:  # Before the tables: an interrupted command is given seconds to end.
        json_path.write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n", encoding="utf-8")
    tables = [table(rows), worst(rows)]
    if options["as_markdown"]:
        echo("\n".join(map(markdown, tables)))
    else:
        for each in tables:
            stdout().print(each)
    for row in rows:
        for problem, message in row.errors.items():
            console.print(f"{row.target} {row.solver} {problem}: {message}", soft_wrap=True)
    for name in usable:
        console.print(f"{name}: {identity(name)}", soft_wrap=True)
    left = sum(row.texts - row.compiled for row in rows)
    if status or left:
        console.print(f"{left} texts are left: what was compiled is cached, and the same command continues there")
    context.exit(status or int(any(row.errors for row in rows)))
