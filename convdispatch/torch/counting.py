"""Counts what was routed: each call of an operator is ours, or left to PyTorch for a reason that is kept."""

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
_ticks: dict[str, list[None]] = {"convolution": [], "convolution_backward": []}
"""One None a call that was not added to the counts yet: to append is one step for Python, so it takes no lock."""
_MOST_TICKS = 4096
_others: list[Callable[[], tuple[int, int, dict[str, int], int]]] = []


def also(counts: Callable[[], tuple[int, int, dict[str, int], int]]) -> None:
    """``counts()`` tells what was computed elsewhere since it was asked last: calls of the two operators here, by
    solver, and those that PyTorch's kernel answered because ours is not compiled."""
    _others.append(counts)


def ours(operator: str) -> None:
    """A call of ``operator`` was computed here."""
    ticks = _ticks[operator]
    ticks.append(None)
    if len(ticks) > _MOST_TICKS:
        with _lock:
            _add_ticks()


def _add_ticks() -> None:
    """Under the lock; calls that come meanwhile stay for the next time."""
    for operator, ticks in _ticks.items():
        count = len(ticks)
        del ticks[:count]
        _counts[operator] += count
    for counts in _others:
        forward, backward, solvers, compiling = counts()
        _counts["compiling"] += compiling
        _counts["convolution"] += forward
        _counts["convolution_backward"] += backward
        _solvers.update(solvers)


def several(operator: str, solvers: Sequence[str]) -> None:
    """Calls of ``operator`` were computed here as parts of one form, by these solvers."""
    with _lock:
        _counts[operator] += len(solvers)
        _solvers.update(solvers)


def left(operator: str, reason: str) -> None:
    """A call of ``operator`` was left to PyTorch."""
    with _lock:
        _counts["left"] += 1
        _reasons[f"{operator}: {reason}"] += 1
    for watcher in _watchers:
        watcher(operator, reason)


def compiling() -> None:
    """A call was answered by PyTorch's kernel, until ours is compiled."""
    with _lock:
        _counts["compiling"] += 1


def watch_left(watcher: Callable[[str, str], None]) -> Callable[[], None]:
    """``watcher(operator, reason)`` for each call that is left, until the answer is called."""
    _watchers.append(watcher)
    return lambda: _watchers.remove(watcher)


def solved(solver: str) -> None:
    """A solver ran; an operator's call runs up to two."""
    _solvers[solver] += 1


def counters() -> dict[str, Any]:
    """What became of the calls so far, in this process.

    ``ours``, ``left`` and ``compiling`` count calls of operators: those computed here, those left to PyTorch for a
    reason, and those that PyTorch's kernel answered while ours was compiled in the background (``policy(tier="full")``
    waits instead). ``convolution``, ``convolution_backward`` say which of ours they were, ``fallback`` counts other
    operators that ran on the CPU for the device "opencl". ``reasons``
    maps a sentence to how many calls were left for it, ``solvers`` a solver's name to how often it ran.
    """
    names = ("left", "compiling", "convolution", "convolution_backward", "fallback")
    with _lock:
        _add_ticks()
        ours = _counts["convolution"] + _counts["convolution_backward"]
        counts: dict[str, Any] = {"ours": ours} | {name: _counts[name] for name in names}
        return counts | {"reasons": dict(_reasons), "solvers": dict(_solvers)}


def fallback(operator: str) -> None:
    """Another operator ran on the CPU for the device "opencl"."""
    with _lock:
        _counts["fallback"] += 1
        _reasons[f"{operator}: on the CPU for the device opencl"] += 1


def _calls_so_far() -> tuple[int, ...]:
    counts = counters()
    return counts["ours"], counts["left"], counts["compiling"]


autotune.calls_elsewhere(_calls_so_far)  # those of the native path are seen by their count alone


def reset_counters() -> None:
    """Count from zero."""
    with _lock:
        _add_ticks()
        for each in (_counts, _reasons, _solvers):
            each.clear()
