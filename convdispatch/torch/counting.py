"""Counts convolution calls: each is computed by this package, or left to PyTorch for a recorded reason."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from ..calls.framework import autotune

_lock = threading.Lock()
_counts: Counter[str] = Counter()
_reasons: Counter[str] = Counter()
_solvers: Counter[str] = Counter()
_watchers: list[Callable[[str, str], None]] = []
_others: list[Callable[[], tuple[int, int, dict[str, int], int]]] = []


def also(counts: Callable[[], tuple[int, int, dict[str, int], int]]) -> None:
    """Add a source of counts: ``counts()`` returns what was computed elsewhere since it was last called: our forward
    and backward calls, calls by solver, and calls that PyTorch's kernel computed because ours is not compiled."""
    _others.append(counts)


def ours(operator: str) -> None:
    """Count a call of ``operator`` that this package computed."""
    with _lock:
        _counts[operator] += 1


def _add_others() -> None:
    """Add what the other sources counted; the caller holds the lock."""
    for counts in _others:
        forward, backward, solvers, compiling = counts()
        _counts.update(compiling=compiling, convolution=forward, convolution_backward=backward)
        _solvers.update(solvers)


def several(operator: str, solvers: Sequence[str]) -> None:
    """Count the calls of ``operator`` that one form (a recorded program) made, by these solvers."""
    with _lock:
        _counts[operator] += len(solvers)
        _solvers.update(solvers)


def left(operator: str, reason: str) -> None:
    """Count a call of ``operator`` that was left to PyTorch."""
    with _lock:
        _counts["left"] += 1
        _reasons[f"{operator}: {reason}"] += 1
    for watcher in _watchers:
        watcher(operator, reason)


def compiling() -> None:
    """Count a call that PyTorch's kernel computed while ours is being compiled."""
    with _lock:
        _counts["compiling"] += 1


def watch_left(watcher: Callable[[str, str], None]) -> Callable[[], None]:
    """Call ``watcher(operator, reason)`` for each call left to PyTorch, until the returned function is called."""
    _watchers.append(watcher)
    return lambda: _watchers.remove(watcher)


def solved(solver: str) -> None:
    """Count a run of a solver; one call of an operator runs up to two solvers."""
    _solvers[solver] += 1


def counters() -> dict[str, Any]:
    """The counts of this process: how many calls this package computed, and how many PyTorch did, by reason.

    ``ours``, ``left`` and ``compiling`` count calls of operators: those computed here, those left to PyTorch for a
    reason, and those that PyTorch's kernel answered while ours was compiled in the background (``policy(tier="full")``
    waits instead). ``convolution``, ``convolution_backward`` say which of ours they were, ``fallback`` counts other
    operators that ran on the CPU for the device "opencl". ``reasons``
    maps a sentence to how many calls were left for it, ``solvers`` a solver's name to how often it ran.
    """
    names = ("left", "compiling", "convolution", "convolution_backward", "fallback")
    with _lock:
        _add_others()
        computed_here = _counts["convolution"] + _counts["convolution_backward"]
        counts: dict[str, Any] = {"ours": computed_here} | {name: _counts[name] for name in names}
        return counts | {"reasons": dict(_reasons), "solvers": dict(_solvers)}


def fallback(operator: str) -> None:
    """Count an operator that ran on the CPU on behalf of the device "opencl"."""
    with _lock:
        _counts["fallback"] += 1
        _reasons[f"{operator}: on the CPU for the device opencl"] += 1


def _calls_so_far() -> tuple[int, ...]:
    counts = counters()
    return counts["ours"], counts["left"], counts["compiling"]


autotune.calls_elsewhere(_calls_so_far)  # autotune sees native-path calls only through their counts


def reset_counters() -> None:
    """Reset all counts to zero."""
    with _lock:
        _add_others()
        for each in (_counts, _reasons, _solvers):
            each.clear()
