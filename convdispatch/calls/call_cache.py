"""The cache of calls: by what decides them, and by the operand that tells them most often."""

from __future__ import annotations

import os
from typing import Any

from ..api.problem import DIRECTIONS
from ..device.programs.kernels import Programs
from ..selection import dispatch

LAST: dict[str, dict[int, Any]] = {direction: {} for direction in DIRECTIONS}
"""By direction and the second operand's id: its last call, whose ``key`` is what decided it. A call that was made twice
in a row is made ``again`` where its arguments are as they were; see ``guarded_replay``. Nothing rests on the id."""
_MOST = 256


def _let_go(gone: list[Any] | None = None) -> None:
    """Forget the calls that went; all without a list."""
    left = set(map(id, gone or ()))
    for known in LAST.values():
        kept = {} if gone is None else {key: call for key, call in known.items() if id(call) not in left}
        known.clear()
        known.update(kept)


def _used(call: Any) -> int:
    """1 where a call is some weights' last one, which its next call then has to look up; else 0."""
    for known in LAST.values():
        for key, each in known.items():
            if each is call:
                del known[key]
                return 1
    return 0


CALLS = Programs(_let_go, _used)
dispatch.on_forget(CALLS.drop)
dispatch.on_forget(_let_go)
if hasattr(os, "register_at_fork"):  # in a forked child calls ask whether they can be made
    os.register_at_fork(after_in_child=_let_go)


def cached_call(direction: str, key: Any, second: Any) -> Any:
    """The kept call; a layer's weights tell it, most often, and comparing is sooner than hashing."""
    known = LAST[direction]
    last = known.get(id(second))
    try:
        if last is not None and last.key == key:
            return last
    except ValueError:  # an array among the options: it has no hash either, which says what to do
        pass
    call = CALLS.get(key)
    if call is not None:
        if len(known) >= _MOST:
            known.clear()
        call.key, known[id(second)] = key, call
    return call
