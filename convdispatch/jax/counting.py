"""Counts of convolutions: calls that ran here, and, when a program is compiled, convolutions left to XLA."""

from __future__ import annotations

import threading
from collections import Counter
from typing import Any

_lock = threading.Lock()
_counts: Counter[str] = Counter()
_reasons: Counter[str] = Counter()
_solvers: Counter[str] = Counter()


def lowered() -> None:
    """Count a convolution of a compiled program that will be computed here."""
    with _lock:
        _counts["lowered"] += 1


def left(reason: str) -> None:
    """Count a convolution of a compiled program that was left to XLA."""
    with _lock:
        _counts["left"] += 1
        _reasons[reason] += 1


def ours(solver: str) -> None:
    """Count a call that was computed here."""
    with _lock:
        _counts["ours"] += 1
        _solvers[solver] += 1


def counters() -> dict[str, Any]:
    """Counts of how this process's convolutions were computed so far.

    ``ours`` counts calls computed here, ``solvers`` by whom. XLA's own calls are seen by nobody, so what is left is
    counted when a program is compiled: ``lowered`` convolutions were compiled to run here, ``left`` were not, and
    ``reasons`` maps a sentence to how many.
    """
    with _lock:
        counts: dict[str, Any] = {name: _counts[name] for name in ("ours", "lowered", "left")}
        return counts | {"reasons": dict(_reasons), "solvers": dict(_solvers)}


def reset_counters() -> None:
    """Set all counts to zero."""
    with _lock:
        for counter in (_counts, _reasons, _solvers):
            counter.clear()
