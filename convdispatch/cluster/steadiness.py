"""Says whether a device's times can be trusted: how far the repeats of its last searches lay apart."""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Iterable
from typing import Any

SCATTER = 0.25
"""An interval of a median so wide, as a share of it, says that the repeats were disturbed."""
LAST, MOST = 5, 2
"""Of the last so many searches, more than so many disturbed ones make a device unsteady."""


class Steadiness:
    """Hears of each search on one device."""

    def __init__(self) -> None:
        self._last: deque[float] = deque(maxlen=LAST)

    def hear(self, records: Iterable[dict[str, Any]]) -> str:
        """What is wrong with the device's times, after one more search's records; empty while nothing is.

        Only benchmarking counts, for screening gives no interval.
        """
        benchmarked = [r for r in records if r["benchmarked"]]
        if benchmarked:
            self._last.append(statistics.median((r["ci_ms"][1] - r["ci_ms"][0]) / r["median_ms"] for r in benchmarked))
        wild = [scatter for scatter in self._last if scatter >= SCATTER]
        if len(wild) <= MOST:
            return ""
        return (
            f"its times are unsteady: in {len(wild)} of its last {len(self._last)} searches the repeats of a "
            f"candidate scatter by {statistics.median(wild):.0%} of their median. Does other work run there?"
        )
