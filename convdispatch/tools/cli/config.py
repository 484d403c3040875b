"""``config``: the folders that are written, their sizes, and how to empty them."""

from __future__ import annotations

import json

import click

from ...selection.text_table import Column, Table
from .options import AS_JSON, stdout
from .output import echo

CLEARABLE_FOLDERS = ("decisions", "kernels", "cache", "pyopencl", "pytools", "records", "rates")


@click.command()
@click.option(
    "--clear",
    "cleared",
    type=click.Choice(["caches", *CLEARABLE_FOLDERS]),
    multiple=True,
    help="Delete a folder's files; caches: all that is made again by itself.",
)
@click.option("--decisions", "shown", is_flag=True, help="List what this machine decided, instead of folders.")
@click.option("--include", is_flag=True, help="Print the folder of convdispatch_plugin.h, for a C compiler.")
@AS_JSON
def config(cleared: tuple[str, ...], shown: bool, include: bool, as_json: bool) -> None:
    """List the folders that convdispatch writes on this machine, and what each takes; empty some with --clear."""
    from ...selection.vendors.discovery import HEADER
    from ..folders import folders

    if include:
        echo(str(HEADER.parent))
        return
    if shown:
        _show_decisions(as_json)
        return

    every = folders()
    for folder in every:
        if folder.name in cleared or ("caches" in cleared and folder.cache):
            echo(f"{folder.path}: {folder.clear() / 2**20:.1f} MiB deleted", err=as_json)
    if as_json:
        listed = {
            f.name: {"path": str(f.path), "bytes": f.size, "variable": f.variable, "cache": f.cache} for f in every
        }
        echo(json.dumps(listed, indent=2))
        return
    table = Table(
        Column("name", "name"), Column("MiB"), Column("folder", "sentence"), Column("what", "sentence", rank=1),
        Column("elsewhere by", "name", rank=2),
    )  # fmt: skip
    for folder in every:
        table.add_row(folder.name, f"{folder.size / 2**20:.1f}", str(folder.path), folder.what, folder.variable)
    stdout().print(table)


def _show_decisions(as_json: bool) -> None:
    """What this machine decided, a line a decision, under the circumstances of each file."""
    from ...selection.decision_store import DecisionStore, decision_files

    tables_by_file = {str(path): DecisionStore(path).tables for path in decision_files()}
    if as_json:
        echo(json.dumps(tables_by_file, indent=2))
        return
    table = Table(Column("table", "name"), Column("of", "name"), Column("decision", "sentence"),
                  Column("why", "sentence", rank=1), Column("file", "name", rank=2))  # fmt: skip
    for path, tables in tables_by_file.items():
        for name, values in tables.items():
            for key, value in values.items():
                fields = dict(value)
                why, solver = str(fields.pop("source", "")), str(fields.pop("solver", ""))
                shown = json.dumps(fields.pop("config", fields), sort_keys=True)
                table.add_row(name, key, f"{solver} {shown}".strip(), why, path)
    stdout().print(table)
