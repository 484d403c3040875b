"""A cache of what is dear to make and large to keep: programs, plans, calls.

A process that meets ever new sizes must not keep them all, and a net with hundreds of layers must keep every one. So
values come in two parts, after Johnson and Shasha, "2Q: a low overhead high performance buffer management replacement
algorithm", 1994: new ones wait in a short line, first in, first out; what is asked for again after it left the line
(its key is remembered, the value is made anew) has shown that it returns, and joins the long one, whose least recently
used goes first.
"""

from __future__ import annotations

import itertools
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any, NamedTuple

from ..planning_lock import unlocked

KB, MB = 1 << 10, 1 << 20


class Bounds(NamedTuple):
    """The most values and bytes of a line."""

    count: int
    nbytes: int


class _Entry:
    """A value that is kept, its bytes, and when it was asked for last."""

    __slots__ = ("nbytes", "turn", "value")

    def __init__(self, value: Any, nbytes: int, turn: int) -> None:
        self.value, self.nbytes, self.turn = value, nbytes, turn


class _Line(OrderedDict):
    """Keys to entries in the order in which they came; ``recent`` lines let go who was asked for longest ago."""

    def __init__(self, bounds: Bounds, recent: bool) -> None:
        super().__init__()
        self.bounds, self.recent, self.nbytes = bounds, recent, 0

    def put(self, key: Hashable, entry: _Entry) -> list[Hashable]:
        """Add an entry; the keys of those that went for it. One that is too large alone stays alone."""
        self.discard(key)
        self[key] = entry
        self.nbytes += entry.nbytes
        gone = []
        while len(self) > 1 and (len(self) > self.bounds.count or self.nbytes > self.bounds.nbytes):
            old = min(self, key=lambda each: self[each].turn) if self.recent else next(iter(self))
            self.discard(old)
            gone.append(old)
        return gone

    def discard(self, key: Hashable) -> None:
        found = self.pop(key, None)
        self.nbytes -= found.nbytes if found else 0


class _Pending:
    """A value that a thread is making, for the others that want it."""

    def __init__(self) -> None:
        self.done, self.thread, self.dropped = threading.Event(), threading.get_ident(), False


class Bounded:
    """Values by key. ``probation`` bounds those asked for once, ``protected`` those that came back; each is made by one
    thread.

    No lock is held while a value is made: other keys are served meanwhile. ``evicted()`` is called, outside of all
    locks, when values went for others: whoever holds some beside this lets go of them then, or no bound would hold.
    """

    def __init__(
        self,
        probation: Bounds,
        protected: Bounds,
        remembered: int = 8192,
        evicted: Callable[[], None] = lambda: None,
    ) -> None:
        self._evicted = evicted
        self._probation, self._protected = _Line(probation, False), _Line(protected, True)
        self._all: dict[Hashable, _Entry] = {}
        """What both lines hold: a value is found by one look-up."""
        self._turns = itertools.count()
        self._left: OrderedDict[int, None] = OrderedDict()
        """Hashes of keys that left the short line."""
        self._remembered = remembered
        self._pending: dict[Hashable, _Pending] = {}
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._probation) + len(self._protected)

    @property
    def nbytes(self) -> int:
        """Bytes of all values, as ``put`` was told."""
        return self._probation.nbytes + self._protected.nbytes

    def get(self, key: Hashable) -> Any:
        """The value, or None."""
        found = self._all.get(key)
        if found is None:
            return None
        found.turn = next(self._turns)
        return found.value

    def put(self, key: Hashable, value: Any, nbytes: int = 0) -> None:
        """Keep a value of ``nbytes``, and let others go for it."""
        with self._lock:
            entry = self._all[key] = _Entry(value, nbytes, next(self._turns))
            if key in self._protected or self._left.pop(hash(key), self) is None:
                self._probation.discard(key)
                went = self._protected.put(key, entry)
            else:
                went = self._probation.put(key, entry)
                self._left.update(dict.fromkeys(map(hash, went)))
                while len(self._left) > self._remembered:
                    self._left.popitem(last=False)
            for gone in went:
                del self._all[gone]
        if went:
            self._evicted()

    def make(self, key: Hashable, make: Callable[[], tuple[Any, int]]) -> Any:
        """The value, or else the first of what ``make()`` answers, which is kept; the second is its size in bytes.

        Threads that ask for one key at once wait for the first of them; where it raises, the next one tries.
        """
        while True:
            with self._lock:
                found = self.get(key)
                if found is not None:
                    return found
                pending = self._pending.get(key)
                mine = pending is None or pending.thread == threading.get_ident()
                if mine:
                    pending = self._pending[key] = _Pending()
            if not mine:
                with unlocked():
                    pending.done.wait()
                continue
            try:
                value, nbytes = make()
            finally:
                with self._lock:
                    self._pending.pop(key, None)
                pending.done.set()
            if not pending.dropped:
                self.put(key, value, nbytes)
            return value

    def drop(self, which: Callable[[Any], bool] = lambda key: True) -> None:
        """Let go of the values whose keys ``which`` names, and do not keep those that other threads are making."""
        with self._lock:
            for line in (self._probation, self._protected):
                for key in [key for key in line if which(key)]:
                    line.discard(key)
                    del self._all[key]
            for key, pending in self._pending.items():
                pending.dropped |= pending.thread != threading.get_ident() and which(key)
