"""The cache of calls by their key, and of the last call of each weights."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import Any

from ..api.problem import DIRECTIONS
from ..device.programs.kernels import Programs
from ..selection import dispatch

MAX_LAST_CALLS = 256
"""The most weights, per direction of convolution, whose last call is remembered."""


class CallCache:
    """Calls by a key of everything that determines them, and the last call of each weights. Weights mostly identify
    the call, and comparing one key is faster than hashing it."""

    def __init__(
        self, parts: Iterable[str], drop: Callable[[Any], Any] | None = None, used: Callable[[Any], int] | None = None
    ) -> None:
        """``drop(call)`` is called with each evicted call. ``used(call)`` returns a number that grows with the time at
        which a fast path last ran the call, 0 if none did since the last query."""
        self.last: dict[str, dict[int, tuple[Any, Any]]] = {part: {} for part in parts}
        """The key of the last call and the call itself, by direction and the id of the weights; a wrong id is
        harmless."""
        self.calls = Programs(self._drop_evicted, self._used)
        self._drop, self._last_fast_use = drop, used
        dispatch.on_forget(self.forget)

    def store(self, part: str, key: Any, weights: Any, call: Any) -> None:
        """Store a call as the last one of these weights, under the ``key`` that decided it."""
        last_calls = self.last[part]
        if len(last_calls) >= MAX_LAST_CALLS:
            last_calls.clear()
        last_calls[id(weights)] = key, call

    def forget(self) -> None:
        """Remove all calls from the cache."""
        self.calls.drop()
        self.forget_last()

    def forget_last(self) -> None:
        """Forget the weights' last calls, so that every call is looked up by its whole key next time."""
        for last_calls in self.last.values():
            last_calls.clear()

    def _drop_evicted(self, evicted: list[Any]) -> None:
        evicted_ids = set(map(id, evicted))
        for last_calls in self.last.values():
            for key in [key for key, (_, call) in last_calls.items() if id(call) in evicted_ids]:
                last_calls.pop(key, None)
        if self._drop is not None:
            for call in evicted:
                self._drop(call)

    def _used(self, call: Any) -> int:
        """A number that grows with the last use by a fast path; else 1 if the call is the last of some weights, whose
        entry is then removed; else 0."""
        last_use = 0 if self._last_fast_use is None else self._last_fast_use(call)
        for last_calls in self.last.values():
            for key, (_, last_call) in last_calls.items():
                if last_call is call:
                    del last_calls[key]
                    return last_use or 1
        return last_use


CACHE = CallCache(DIRECTIONS)
CALLS, LAST = CACHE.calls, CACHE.last
"""The calls of ``conv`` by their key, and the last call of each weights by direction."""
if hasattr(os, "register_at_fork"):  # a forked child must look every call up, because the look-up refuses forked calls
    os.register_at_fork(after_in_child=CACHE.forget_last)


def cached_call(direction: str, key: Any, second: Any) -> Any:
    """The cached call of a key, for weights ``second``; None without one."""
    last = LAST[direction].get(id(second))
    try:
        if last is not None and last[0] == key:
            return last[1]
    except ValueError:
        # Keys with an array among the options cannot be compared; hashing the key below raises the error to report.
        pass
    call = CALLS.get(key)
    if call is not None:
        CACHE.store(direction, key, second, call)
    return call
