"""Whether two devices of a kind measure the same: records of one choice whose intervals do not overlap are in doubt."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace

from ..selection.records.record import Record, now
from ..selection.records.timing import TOLERANCE


def is_measured_twice(problem: str, share: float) -> bool:
    """Whether a problem belongs to the ``share`` (0 to 1) that is measured on two devices: the same ones every time."""
    number = int.from_bytes(hashlib.sha256(problem.encode()).digest()[:8], "big")
    return number < share * 2**64


def compare(first: Sequence[Record], second: Sequence[Record]) -> tuple[list[Record], list[Record]]:
    """The records of two searches for one problem on two devices of a kind; where they disagree, both in doubt.

    They disagree where both benchmarked a choice, the intervals (95 %) of its medians do not overlap, and the medians
    differ by more than ``verdict`` takes for a tie. A record in doubt is a new one, dated now, for records do not
    change.
    """
    others = {record.choice: record for record in second if record.sure}
    doubts: dict[tuple[str, str, str], str] = {}
    for record in first:
        other = others.get(record.choice)
        if record.sure and other is not None and _apart(record, other):
            doubts[record.choice] = f"two devices of its kind disagree: {_words(record)}, {_words(other)}"
    date = now()

    def doubted(records: Sequence[Record]) -> list[Record]:
        mine = [(record, doubts.get(record.choice) if record.sure else None) for record in records]
        return [replace(record, doubt=why, created=date) for record, why in mine if why]

    return doubted(first), doubted(second)


def _apart(one: Record, other: Record) -> bool:
    low, high = sorted((one, other), key=lambda record: record.median_ms)
    return high.ci_ms[0] > low.ci_ms[1] and high.median_ms > low.median_ms * (1 + TOLERANCE)


def _words(record: Record) -> str:
    return f"{record.median_ms:.4g} ms ({record.ci_ms[0]:.4g} to {record.ci_ms[1]:.4g}) on {record.worker}"
