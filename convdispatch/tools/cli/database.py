"""``db``: lists, exports and imports the measured records."""

from __future__ import annotations

import json
from pathlib import Path

import click

from ...selection.text_table import Column, Table, columns
from .options import AS_JSON, OUTPUT, settings, stdout
from .output import Group, echo

FILE = click.Path(path_type=Path, dir_okay=False)
KEY = click.option("--device", "key", metavar="KEY", help="A device's key as `db list` prints it; else all devices.")


@click.group(cls=Group)
def db() -> None:
    """The database of measured records: CONVDISPATCH_DB, else the user's data folder, then packs and shipped ones."""


@db.command("list")
@KEY
@AS_JSON
def list_records(key: str | None, as_json: bool) -> None:
    """List the records: best first for each problem, with where each came from and whether it is in doubt."""
    from ...selection.records.perfdb import perfdb

    database = perfdb()
    records = [record for each in ([key] if key else database.devices()) for record in database.all(each)]
    if as_json:
        echo(json.dumps([record.to_json() | {"source": record.source} for record in records], indent=1))
        return
    table = Table(
        Column("device", "name", rank=2),
        *columns("name", "problem", "solver"),
        Column("configuration", "sentence", rank=4),
        Column("ms"),
        Column("95 % interval", rank=3),
        Column("screening", rank=7),
        Column("error", rank=5),
        Column("workspace", rank=6),
        *columns("name", "from", "measured", rank=1),
    )
    for r in records:
        screened = r.screening_ms if r.sure else r.median_ms
        times = [f"{r.median_ms:.4g}", f"{r.ci_ms[0]:.4g} to {r.ci_ms[1]:.4g}"] if r.sure else ["not benchmarked", ""]
        figures = [
            "" if screened is None else f"{screened:.4g}",
            "" if r.error is None else f"{r.error:.1e}",
            str(r.workspace),
        ]
        table.add_row(r.device, r.problem, r.solver, settings(r.config), *times, *figures, r.source, r.created[:10])
    stdout().print(table)
    echo(f"{len(records)} records in {', '.join(str(folder) for folder in database.folders.values())}")


@db.command()
@click.argument("file", type=OUTPUT)
@KEY
def export(file: Path, key: str | None) -> None:
    """Write the records to FILE: a pack that `db import` and a tuning-pack package take."""
    from ...selection.records.packs import export_pack
    from ...selection.records.perfdb import perfdb

    echo(f"{export_pack(perfdb(), file, key)} records written to {file}")


@db.command("import")
@click.argument("file", type=FILE)
def import_records(file: Path) -> None:
    """Store the records of the pack FILE among the user's."""
    from ...selection.records.packs import import_pack
    from ...selection.records.perfdb import perfdb

    echo(f"{import_pack(perfdb(), file)} new records from {file}")
