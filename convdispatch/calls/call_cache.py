"""What is kept of calls: by what decides them, by the operand that tells them most often, and as made again."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from ..device.programs.kernels import Programs
from ..selection import dispatch

LAST: dict[int, Any] = {}
"""By the second operand's id, its last call, whose ``key`` is what decided it. Nothing rests on the id."""
REPLAYS: dict[int, Callable[..., Any]] = {}
"""By the same, the call that was made twice in a row; see ``replay``."""
_MOST = 256


def _let_go(gone: list[Any] | None = None) -> None:
    """Forget the calls that went; all without a list."""
    left = set(map(id, gone or ()))
    kept = {} if gone is None else {key: call for key, call in LAST.items() if id(call) not in left}
    LAST.clear()
    LAST.update(kept)
    REPLAYS.clear()


def _used(call: Any) -> bool:
    """Whether a call was found by its weights, or made again, since this was asked last."""
    used, call.used = getattr(call, "used", False), False
    return used  # type: ignore[no-any-return]


CALLS = Programs(_let_go, _used)
dispatch.on_forget(CALLS.drop)
dispatch.on_forget(_let_go)
if hasattr(os, "register_at_fork"):  # in a forked child calls ask whether they can be made
    os.register_at_fork(after_in_child=_let_go)


def cached_call(key: Any, second: Any) -> Any:
    """The kept call; a layer's weights tell it, most often, and comparing is sooner than hashing."""
    last = LAST.get(id(second))
    try:
        if last is not None and last.key == key:
            last.used = True
            return last
    except ValueError:  # an array among the options: it has no hash either, which says what to do
        pass
    call = CALLS.get(key)
    if call is not None:
        if len(LAST) >= _MOST:
            LAST.clear()
        call.key, LAST[id(second)] = key, call
    return call


def cache_replay(second: Any, replay: Callable[..., Any]) -> None:
    """Calls with this second operand ask ``replay`` first."""
    if len(REPLAYS) >= _MOST:
        REPLAYS.clear()
    REPLAYS[id(second)] = replay
