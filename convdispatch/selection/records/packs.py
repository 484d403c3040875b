"""Packs: many records in one file."""

from __future__ import annotations

from pathlib import Path

from ...api.errors import ConvDispatchError, InvalidArgument
from ...api.problem import ConvProblem
from ...device import plainfile
from .perfdb import PerfDB
from .record import file_text, read_records


def export_pack(db: PerfDB, path: Path | str, device: str | None = None) -> int:
    """Write all records of a database, or those of one device's key, into one file; returns their number.

    Raises InvalidArgument where the file cannot be written.
    """
    keys = db.devices() if device is None else [device]
    records = sorted((r for key in keys for r in db.all(key)), key=lambda r: (r.device, r.choice))
    try:
        plainfile.publish(path, file_text(records), durable=True)
    except (OSError, ValueError) as error:  # A path that contains a NUL character raises ValueError.
        raise InvalidArgument(f"cannot write {path}: {error}") from None
    return len(records)


def import_pack(db: PerfDB, path: Path | str) -> int:
    """Store a pack's records among the user's; returns the number of new ones.

    Raises InvalidArgument for a pack with an invalid record, and if the records cannot be stored.
    """
    try:
        records, faults = read_records("", plainfile.read_text(path))
    except (OSError, ValueError) as error:  # ``read_records`` raises Damaged and NewerSchema, which are ValueErrors.
        raise InvalidArgument(f"cannot import {path}: {error}") from error
    bad = {problem: fault for problem in {record.problem for record in records} if (fault := _no_problem(problem))}
    faults += [f"record {number}: {bad[each.problem]}" for number, each in enumerate(records, 1) if each.problem in bad]
    if faults:
        raise InvalidArgument(f"cannot import {path}: {faults[0]} ({len(faults)} such)")
    count = 0
    for device in sorted({record.device for record in records}):
        known = {record.text() for record in db.read_folder(db.folder_of(device))}
        fresh = [record for record in records if record.device == device and record.text() not in known]
        if fresh:
            try:
                db.store(*fresh)
            except OSError as error:
                raise InvalidArgument(f"cannot import into {db.folder}: {error.strerror or error}") from None
        count += len(fresh)
    return count


def _no_problem(problem: str) -> str | None:
    """Why a record's text of a problem is invalid, or None."""
    try:
        ConvProblem.parse(problem)
    except ConvDispatchError as error:
        return str(error)
    return None
