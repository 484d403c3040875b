"""Moves records between databases: packs (many records in one file), differences, and what can be thrown away."""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from .api.errors import InvalidArgument
from .record import SCHEMA, Damaged, NewerSchema, Record

if TYPE_CHECKING:
    from .perfdb import PerfDB

__all__ = ["Change", "diff", "export_pack", "import_pack", "is_pack", "prune", "publish", "read_pack"]

_RECORD_NAME = re.compile(r"[0-9a-f]{32}\.json")
_ABANDONED = 3600.0
"""Seconds after which a file that was being written aside has no writer any more."""


def is_pack(path: Path) -> bool:
    """Whether a file among the records is a pack; a record's own file is named by its hash."""
    return _RECORD_NAME.fullmatch(path.name) is None


def read_pack(text: str, source: str = "") -> tuple[list[Record], list[str]]:
    """The records of a pack's text, and what was wrong with those left out. Raises Damaged or NewerSchema."""
    try:
        values = json.loads(text)
    except json.JSONDecodeError as error:
        raise Damaged(f"not JSON: {error}") from error
    if not isinstance(values, dict) or not isinstance(values.get("records"), list):
        raise Damaged("not a pack: no list of records")
    if values.get("schema", 0) > SCHEMA:
        raise NewerSchema(f"schema {values['schema']}, this version reads up to {SCHEMA}")
    records, faults = [], []
    for place, each in enumerate(values["records"], 1):
        try:
            records.append(Record.from_json(each, source))
        except (Damaged, NewerSchema) as error:
            faults.append(f"record {place}: {error}")
    return records, faults


def publish(path: Path, text: str) -> None:
    """Make ``text`` the content of ``path``, whole or not at all, and durably. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.parent / f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}.tmp"
    try:
        with aside.open("x", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        aside.replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            aside.unlink(missing_ok=True)
        raise
    with contextlib.suppress(OSError):  # not every file system lets a folder be synced
        handle = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def export_pack(db: PerfDB, path: Path | str, device: str | None = None) -> int:
    """Write what a database knows, of one device's key or of all, into one file; answers how many records.

    One record a line, in order, so that a pack under version control shows its changes.
    """
    keys = db.devices() if device is None else [device]
    records = sorted((r for key in keys for r in db.all(key)), key=lambda r: (r.device, r.choice))
    lines = ",\n".join(record.text() for record in records)
    publish(Path(path), f'{{"schema":{SCHEMA},"records":[\n{lines}\n]}}\n')
    return len(records)


def import_pack(db: PerfDB, path: Path | str) -> int:
    """Store a pack's records among the user's; answers how many were not there. Raises InvalidArgument."""
    try:
        records, faults = read_pack(Path(path).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, Damaged, NewerSchema) as error:
        raise InvalidArgument(f"cannot import {path}: {error}") from error
    if faults:
        raise InvalidArgument(f"cannot import {path}: {faults[0]} ({len(faults)} such)")
    fresh = [record for record in records if not (db.folder / record.device / record.name()).exists()]
    for record in fresh:
        db.record(record)
    return len(fresh)


@dataclass(frozen=True)
class Change:
    """The best of one problem on one device in two databases. Times in milliseconds."""

    problem: str
    device: str
    old: Record
    new: Record

    @property
    def ratio(self) -> float:
        """New time over old: above 1 is slower."""
        return self.new.median_ms / self.old.median_ms

    @property
    def certain(self) -> bool:
        """Whether the two confidence intervals lie apart."""
        return self.new.ci_ms[0] > self.old.ci_ms[1] or self.new.ci_ms[1] < self.old.ci_ms[0]


def diff(old: PerfDB, new: PerfDB, ratio: float = 1.05) -> list[Change]:
    """Problems whose best time differs by ``ratio`` or more either way between two databases, the worst loss first."""
    changes = []
    for device in sorted(set(old.devices()) & set(new.devices())):
        before, after = _best(old.all(device)), _best(new.all(device))
        changes += [Change(p, device, before[p], after[p]) for p in before.keys() & after.keys()]
    far = [change for change in changes if change.ratio >= ratio or change.ratio <= 1 / ratio]
    return sorted(far, key=lambda change: (-change.ratio, change.device, change.problem))


def _best(records: Iterable[Record]) -> dict[str, Record]:
    best: dict[str, Record] = {}
    for record in records:
        if record.problem not in best or record.median_ms < best[record.problem].median_ms:
            best[record.problem] = record
    return best


def prune(db: PerfDB, device: str | None = None) -> int:
    """Delete what nobody needs from the user's folder; answers how many files.

    These are records that a newer one of the same choice replaces, files that a killed process left half written more
    than an hour ago, and damaged records that were set aside.
    """
    removed = 0
    for key in db.devices() if device is None else [device]:
        folder = db.folder / key
        if not folder.is_dir():
            continue
        newest: dict[tuple[str, str, str], Record] = {}
        records = db.read_folder(folder)
        for record in records:
            held = newest.get(record.choice)
            if held is None or held.created < record.created:
                newest[record.choice] = record
        keep = {record.name() for record in newest.values()}
        doomed = [folder / record.name() for record in records if record.name() not in keep]
        doomed += [path for path in folder.glob(".*.tmp") if time.time() - path.stat().st_mtime > _ABANDONED]
        doomed += sorted((folder / "damaged").glob("*.json"))
        for path in doomed:
            with contextlib.suppress(OSError):  # gone already, or not ours to delete
                path.unlink()
                removed += 1
        db.refresh(key)
    return removed
