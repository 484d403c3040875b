"""``cache``: what this machine decided, made and measured: list it, look into it, and clear it; and ``config``."""

from __future__ import annotations

import json
import time
from typing import Any

import click

from ...api.settings import DB, KERNEL_CACHE
from ...device.cache import store
from ...selection.plugins.verdicts import ANSWERS, VERDICTS
from ...selection.text_table import Column, Table, columns
from ..folders import folders
from .options import AS_JSON, stdout
from .output import Group, echo

TABLES = store.TABLES | {table.name: table for table in (VERDICTS, ANSWERS)}
CLEARABLE = ("all", *TABLES, "pyopencl", "pytools", "records", "rates")


@click.group(cls=Group)
def cache() -> None:
    """What this machine decided, made and measured, where it is stored, and how to clear it."""


@cache.command("list")
@AS_JSON
def list_tables(as_json: bool) -> None:
    """List the tables of the store, and the other folders that are written, with their sizes."""
    rows = {name: dict(zip(("entries", "bytes"), place.size()), folder=str(folder), what=what, variable=variable)
            for name, (place, folder, what, variable) in _places().items()}  # fmt: skip
    if as_json:
        echo(json.dumps(rows, indent=2))
        return
    table = Table(Column("name", "name"), *columns("number", "entries", "MiB"), Column("folder", "sentence"),
                  Column("what", "sentence", rank=1), Column("elsewhere by", "name", rank=2))  # fmt: skip
    for name, row in rows.items():
        mib = f"{row['bytes'] / 2**20:.1f}"
        table.add_row(name, str(row["entries"]), mib, row["folder"], row["what"], row["variable"])
    stdout().print(table)


@cache.command()
@click.argument("table", type=click.Choice(TABLES))
@AS_JSON
def show(table: str, as_json: bool) -> None:
    """List the entries of a table, the last used last: what each is of, its value, its size and its last use."""
    if as_json:
        rows = [{"of": e.label, "value": e.value, "bytes": e.nbytes, "used": e.used} for e in TABLES[table].entries()]
        echo(json.dumps(rows, indent=2))
        return
    listed = Table(Column("of", "name"), Column("value", "sentence"), Column("KiB", rank=2),
                   Column("used", "name", rank=1))  # fmt: skip
    for entry in TABLES[table].entries():
        used = time.strftime("%Y-%m-%d %H:%M", time.localtime(entry.used))
        value = "" if entry.value is None else json.dumps(entry.value, sort_keys=True)
        listed.add_row(entry.label, value, f"{entry.nbytes / 1024:.1f}", used)
    stdout().print(listed)


@cache.command()
@click.argument("names", nargs=-1, required=True, type=click.Choice(CLEARABLE))
def clear(names: tuple[str, ...]) -> None:
    """Remove the entries of tables, or what other folders hold. ``all``: what is made again by itself, which are the
    tables of the store and pyopencl's caches. Processes that run go on, and write anew what they need."""
    made_again = {*store.TABLES, *(folder.name for folder in folders() if folder.cache)}
    for name, (place, folder, _, _) in _places().items():
        if name in names or ("all" in names and name in made_again):
            echo(f"{name} in {folder}: {place.clear() / 2**20:.1f} MiB deleted")


def _places() -> dict[str, tuple[Any, Any, str, str]]:
    """Tables and folders by name: what has size() and clear(), its folder, what it holds, and its variable."""
    tables = {
        name: (table, table.folder() or "off", table.what, KERNEL_CACHE.name) for name, table in store.TABLES.items()
    }
    tables |= {table.name: (table, table.folder(), table.what, DB.name) for table in (VERDICTS, ANSWERS)}
    return tables | {folder.name: (folder, folder.path, folder.what, folder.variable) for folder in folders()}


@click.command(no_args_is_help=True)
@click.option("--include", is_flag=True, help="Print the folder of convdispatch_plugin.h, for a C compiler.")
def config(include: bool) -> None:
    """Print where this installation's files for C compilers are."""
    from ...selection.vendors.discovery import HEADER

    if include:
        echo(str(HEADER.parent))
