"""Whether two devices of a kind measure the same: records of one choice whose intervals do not overlap are in doubt."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace

from ..selection.records.record import Record, now
from ..selection.records.timing import TOLERANCE


def is_measured_twice(problem: str, share: float) -> bool:
    """Whether a problem belongs to the ``share`` (0 to 1) that is measured on two devices; decided by a hash."""
    number = int.from_bytes(hashlib.sha256(problem.encode()).digest()[:8], "big")
    return number < share * 2**64


def compare(first: Sequence[Record], second: Sequence[Record]) -> tuple[list[Record], list[Record]]:
    """The doubtful records of two searches for one problem on two devices of a kind: those on which they disagree.

    They disagree if both benchmarked a choice, the 95 % intervals of its medians do not overlap, and the medians differ
    by more than a tie of ``verdict``. Records do not change, so a doubtful record is a new one with the present date.
    """
    rivals = {record.choice: record for record in second if record.sure}
    doubts: dict[tuple[str, str, str], str] = {}
    for record in first:
        rival = rivals.get(record.choice)
        if record.sure and rival is not None and _disagree(record, rival):
            doubts[record.choice] = f"two devices of its kind disagree: {_time_text(record)}, {_time_text(rival)}"
    date = now()

    def doubted(records: Sequence[Record]) -> list[Record]:
        pairs = [(record, doubts.get(record.choice) if record.sure else None) for record in records]
        return [replace(record, doubt=why, created=date) for record, why in pairs if why]

    return doubted(first), doubted(second)


def _disagree(left: Record, right: Record) -> bool:
    low, high = sorted((left, right), key=lambda record: record.median_ms)
    return high.ci_ms[0] > low.ci_ms[1] and high.median_ms > low.median_ms * (1 + TOLERANCE)


def _time_text(record: Record) -> str:
    return f"{record.median_ms:.4g} ms ({record.ci_ms[0]:.4g} to {record.ci_ms[1]:.4g}) on {record.worker}"
