"""The one cache of calls: by a key of all that decides them, and by the weights of the last call of each layer."""

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
    """Calls by a key of all that decides them, and the last call of each weights: these mostly identify the call, and
    comparing one key is faster than hashing it."""

    def __init__(
        self, parts: Iterable[str], drop: Callable[[Any], Any] | None = None, used: Callable[[Any], int] | None = None
    ) -> None:
        """``drop(call)`` is called with each evicted call; ``used(call)`` returns when a fast path last ran the call, 0
        if none did since the last query."""
        self.last: dict[str, dict[int, tuple[Any, Any]]] = {part: {} for part in parts}
        """The key of the last call and the call itself, by direction and the id of the weights; a wrong id is
        harmless."""
        self.calls = Programs(self._let_go, self._used)
        self._drop, self._asked = drop, used
        dispatch.on_forget(self.forget)

    def store(self, part: str, key: Any, weights: Any, call: Any) -> None:
        """Store a call as the last one of these weights, under the ``key`` that decided it."""
        known = self.last[part]
        if len(known) >= MAX_LAST_CALLS:
            known.clear()
        known[id(weights)] = key, call

    def forget(self) -> None:
        """Remove all calls from the cache."""
        self.calls.drop()
        self.forget_last()

    def forget_last(self) -> None:
        """Forget the weights' last calls, so that every call is looked up by its whole key next time."""
        for known in self.last.values():
            known.clear()

    def _let_go(self, gone: list[Any]) -> None:
        left = set(map(id, gone))
        for known in self.last.values():
            for key in [key for key, (_, call) in known.items() if id(call) in left]:
                known.pop(key, None)
        if self._drop is not None:
            for call in gone:
                self._drop(call)

    def _used(self, call: Any) -> int:
        """When a fast path last ran a call; 1 if it is the last call of some weights, whose entry is removed; else
        0."""
        used = 0 if self._asked is None else self._asked(call)
        for known in self.last.values():
            for key, (_, each) in known.items():
                if each is call:
                    del known[key]
                    return used or 1
        return used


CACHE = CallCache(DIRECTIONS)
CALLS, LAST = CACHE.calls, CACHE.last
"""A call that was made twice in a row is made ``again`` where its arguments are as before; see ``guarded_replay``."""
if hasattr(os, "register_at_fork"):  # a forked child looks every call up again, and checks there whether it can be made
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
