"""Files of records: their text and their names."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable

from ...device import jsontext
from .record import SCHEMA, Damaged, NewerSchema, Record

_HASHED = re.compile(r"[0-9a-f]{32}\.json")


def file_text(records: Iterable[Record]) -> str:
    """The text of a file of records, one record on each line, so that version control shows changes of a pack."""
    lines = ",\n".join(record.text() for record in records)
    return f'{{"schema":{SCHEMA},"records":[\n{lines}\n]}}\n'


def text_name(text: str) -> str:
    """The name of a file with this text, which is the text's hash."""
    return hashlib.sha256(text.encode()).hexdigest()[:32] + ".json"


def read_records(name: str, text: str, source: str = "") -> tuple[list[Record], list[str]]:
    """The valid records of a file's text, and a sentence for each invalid one. Raises Damaged or NewerSchema.

    A name of 32 hexadecimal digits must be the text's hash. Files with other names are packs, which people may edit.
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
    for number, values_of_record in enumerate(values["records"], 1):
        try:
            records.append(Record.from_json(values_of_record, source))
        except (Damaged, NewerSchema) as error:
            faults.append(f"record {number}: {error}")
    return records, faults
