"""Says whether a machine was quiet: other work's load, and repeats that scatter.

Loads are processors that other processes keep busy. On a busy machine times are too long and ratios mean nothing: a
library whose threads wait for each other in a spin loses far more than one whose threads do not.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from .report import Measured, Report

LOAD = 0.3
"""Other work's load, as a share of the device's compute units, from which on a CPU counts as busy."""
SCATTER = 0.25
"""The width of a median's interval, as a fraction of the median, from which the samples count as disturbed."""
SHARE = 0.25
"""A run with more than this fraction of disturbed layers counts as disturbed."""
STAT = Path("/proc/stat")
LOOK_S = 0.3


def load_now(stat: Path = STAT, sleep: Callable[[float], None] = time.sleep) -> float | None:
    """The number of processors that are busy now; None where the system does not tell.

    The load average would still count, a minute later, processes that have ended.
    """
    other_processes = OtherProcesses(stat, lambda: 0.0)
    sleep(LOOK_S)
    return other_processes.load()


class OtherProcesses:
    """Counts from now on what other processes do: all that the processors were busy with but this process's own time.

    ``own`` returns the seconds of processor time that this process has used.
    """

    def __init__(self, stat: Path = STAT, own: Callable[[], float] = time.process_time) -> None:
        self._stat, self._own = stat, own
        self._first, self._own_first = _ticks(stat), own()

    def load(self) -> float | None:
        """Return the number of processors that other processes kept busy since then; None if that is unknown or no time
        has passed."""
        ticks_now = _ticks(self._stat)
        if self._first is None or ticks_now is None:
            return None
        busy, passed = (seconds_now - seconds_then for seconds_then, seconds_now in zip(self._first, ticks_now))
        if passed <= 0:
            return None
        processors = os.cpu_count() or 1
        elapsed_s = passed / processors
        return round(max(0.0, (busy - (self._own() - self._own_first)) / elapsed_s), 2)


def _ticks(stat: Path) -> tuple[float, float] | None:
    """Seconds that all processors were busy, and all seconds of theirs: user, nice, system, idle, waiting and more."""
    if not stat.exists():
        return None
    ticks = [int(number) for number in stat.read_text(encoding="ascii").split("\n", 1)[0].split()[1:9]]
    rate = os.sysconf("SC_CLK_TCK")
    return (sum(ticks) - ticks[3] - ticks[4]) / rate, sum(ticks) / rate


def loaded(load: float | None, device: Mapping[str, Any]) -> bool:
    """Whether other work's load disturbs the device: a GPU has its own processors."""
    return device["type"] == "cpu" and load is not None and load >= LOAD * device["compute_units"]


def spread(timed: Any) -> float | None:
    """Width of a median's interval as a share of it; None where it is not known."""
    return (timed.ci_ms[1] - timed.ci_ms[0]) / timed.median_ms if timed and timed.ci_ms and timed.median_ms else None


def disturbed(measured: Measured, device: Mapping[str, Any]) -> bool:
    """Whether the load during a problem's measurement, or its intervals, show that other work was running."""
    return loaded(measured.load, device) or (_widest(measured) or 0.0) >= SCATTER


def signs(report: Report) -> list[str]:
    """Return a phrase for each sign that the machine was busy; empty for a quiet run."""
    return list(_signs(report, report.environment["device"]))


def _signs(report: Report, device: Mapping[str, Any]) -> Iterator[str]:
    units, start = device["compute_units"], report.environment.get("load")
    if loaded(start, device):
        yield f"a load of {start:g} on {units} processors at the start"
    measured = list(report.measured.values())
    during = [measurements.load for measurements in measured if loaded(measurements.load, device)]
    if len(during) > SHARE * len(measured):
        yield f"a load of {statistics.median(during):g} by others on {units} processors during the run"
    wide = [s for measurements in measured if (s := _widest(measurements)) is not None]
    scattered = [s for s in wide if s >= SCATTER]
    if len(scattered) > SHARE * len(wide):
        median_spread = statistics.median(scattered)
        yield f"repeats of {len(scattered)} of {len(wide)} problems scatter by {median_spread:.0%} of their median"


def _widest(measured: Measured) -> float | None:
    spreads = (spread(timed) for timed in (measured.best, measured.chosen, *measured.peers))
    return max((each for each in spreads if each is not None), default=None)


def busy(disturbances: Sequence[str]) -> str:
    """A warning that lists the signs; empty if there are none."""
    if not disturbances:
        return ""
    return (
        f"Other work was running: {'; '.join(disturbances)}. Times are too long, and ratios cannot be trusted: a "
        "library whose threads wait for each other in a spin loses far more than others."
    )
