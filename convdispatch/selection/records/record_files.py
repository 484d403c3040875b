"""Files of records: their text, their names, and how they are written so that they are whole or not there."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
from collections.abc import Iterable
from pathlib import Path

from ...device import jsontext
from .record import SCHEMA, Damaged, NewerSchema, Record

_HASHED = re.compile(r"[0-9a-f]{32}\.json")


def file_text(records: Iterable[Record]) -> str:
    """The text of a file of records: one a line, so that a pack under version control shows its changes."""
    lines = ",\n".join(record.text() for record in records)
    return f'{{"schema":{SCHEMA},"records":[\n{lines}\n]}}\n'


def text_name(text: str) -> str:
    """The name that fits a file's text and no other: its hash."""
    return hashlib.sha256(text.encode()).hexdigest()[:32] + ".json"


def read_records(name: str, text: str, source: str = "") -> tuple[list[Record], list[str]]:
    """The records of a file's text, and what was wrong with those left out. Raises Damaged or NewerSchema.

    A name of 32 hexadecimal digits must be the text's hash. Other names are packs that people may edit.
    """
    if _HASHED.fullmatch(name) and text_name(text) != name:
        raise Damaged("its content does not fit its name: truncated or altered")
    try:
        values = jsontext.loads(text)
    except ValueError as error:
        raise Damaged(f"not JSON: {error}") from error
    if not isinstance(values, dict) or not isinstance(values.get("records"), list):
        raise Damaged("no list of records")
    if not isinstance(values.get("schema"), int) or values["schema"] > SCHEMA:
        raise NewerSchema(f"schema {values.get('schema')!r}, this version reads up to {SCHEMA}")
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
    aside = path.parent / f".{path.name}.{os.getpid()}.{os.urandom(4).hex()}.tmp"
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
    # Not every file system supports fsync of a folder.
    with contextlib.suppress(OSError):
        handle = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
