"""One bounded cache for what is dear to make and large to hold: programs, plans, calls, forms.

A process that meets ever new sizes must not hold them all, and a net with hundreds of layers must hold every one. All
caches of a ``Budget`` share one limit in bytes, and the least recently used entry of them all goes first. An entry
knows which others it was made of (a call its plan, a plan its programs): these go with it, and not before, because
they would free nothing as long as it holds them. Bytes are those of the entry itself, so nothing is counted twice.

Entries that are ``new`` (further sizes of a layer, what is cheap to make) have a small share of the limit for
themselves. An entry that was made again several times after it had gone has shown that it returns, and is not new any
more: after Johnson and Shasha, "2Q: a low overhead high performance buffer management replacement algorithm", 1994.
"""

from __future__ import annotations

import itertools
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any

from ..planning_lock import unlocked

KB, MB = 1 << 10, 1 << 20
RETURNS = 4
"""An evicted entry that was made again so many times no longer counts as new."""
REMEMBERED = 8192
"""The number of evicted keys that are remembered, to count how often each returns."""
LOW_WATER = 0.9
"""Once a bound is exceeded, entries are evicted down to this share of it, because searching for one entry alone takes
too long."""


class _Entry:
    """A value in a cache, its bytes, when it was asked for last, and the entries that it was made of."""

    __slots__ = ("alive", "cache", "key", "nbytes", "new", "parents", "parts", "turn", "value")

    def __init__(self, cache: Bounded, key: Hashable, value: Any, nbytes: int, parts: list[_Entry]) -> None:
        self.cache, self.key, self.value, self.nbytes, self.parts = cache, key, value, nbytes, parts
        self.turn, self.parents, self.new, self.alive = 0, 0, False, True


class _Making(threading.local):
    parts: list[_Entry] | None = None


_making = _Making()
"""The entries that this thread looked up while it makes a value: they are parts of that value."""


class _Pending:
    """A value that one thread is making and that other threads may wait for."""

    def __init__(self) -> None:
        self.done, self.thread, self.dropped = threading.Event(), threading.get_ident(), False


class Budget:
    """The bytes that some caches may hold together: ``limit()`` in all, ``share()`` of what is new."""

    def __init__(self, limit: Callable[[], int], share: Callable[[], int]) -> None:
        self._limit, self._share = limit, share
        self.lock = threading.RLock()
        self.turns = itertools.count()
        self._entries: set[_Entry] = set()
        self.nbytes = self.new_nbytes = 0
        self._returns: OrderedDict[int, int] = OrderedDict()
        """How often each key was evicted, by the key's hash."""

    def add(self, entry: _Entry, new: bool) -> list[_Entry]:
        """Add an entry, and remove those that are evicted for it. The caller holds the lock; a single entry above the
        limit stays."""
        entry.turn = next(self.turns)
        entry.parts = [part for part in entry.parts if part.alive]
        for part in entry.parts:
            part.parents += 1
        entry.new = new and self._returns.get(_name(entry), 0) < RETURNS
        self._entries.add(entry)
        self.nbytes += entry.nbytes
        if entry.new:
            self.new_nbytes += entry.nbytes
        else:
            self._settle(entry)
        return self._shrink(entry)

    def hold(self, entry: _Entry, parts: list[_Entry] | None) -> None:
        """Add an entry to the parts of the value that is being made, so that it is not evicted before that is
        cached."""
        if parts is not None and entry not in parts:
            with self.lock:
                entry.parents += 1
                parts.append(entry)

    def grow(self, entry: _Entry, nbytes: int) -> list[_Entry]:
        """Count more bytes for an entry, such as weights that were packed for a plan. Under the lock."""
        if not entry.alive:
            return []
        entry.nbytes += nbytes
        self.nbytes += nbytes
        if entry.new:
            self.new_nbytes += nbytes
        return self._shrink(entry) if nbytes > 0 else []

    def remove(self, entry: _Entry) -> None:
        """Remove an entry from the budget; its parts stay. Under the lock."""
        entry.alive = False
        if entry.cache._all.get(entry.key) is entry:
            del entry.cache._all[entry.key]
        self._entries.discard(entry)
        self.nbytes -= entry.nbytes
        if entry.new:
            self.new_nbytes -= entry.nbytes
        for part in entry.parts:
            part.parents -= 1

    def _let_go(self, entry: _Entry, gone: list[_Entry]) -> None:
        """Evict an entry, and those of its parts that no other entry uses."""
        self.remove(entry)
        gone.append(entry)
        if entry.new:
            name = _name(entry)
            self._returns[name] = self._returns.pop(name, 0) + 1
            while len(self._returns) > REMEMBERED:
                self._returns.popitem(last=False)
        for part in entry.parts:
            if part.alive and not part.parents:
                self._let_go(part, gone)

    def _settle(self, entry: _Entry) -> None:
        """Mark the parts of an entry that is not new as not new either."""
        for part in entry.parts:
            if part.new:
                part.new = False
                self.new_nbytes -= part.nbytes
                self._settle(part)

    def _shrink(self, added: _Entry) -> list[_Entry]:
        gone: list[_Entry] = []
        share, limit = self._share(), self._limit()
        if self.new_nbytes > share:
            self._evict(added, gone, True, share * LOW_WATER)
        if self.nbytes > limit:
            self._evict(added, gone, False, limit * LOW_WATER)
        return gone

    def _evict(self, added: _Entry, gone: list[_Entry], new: bool, down_to: float) -> None:
        roots = [each for each in self._entries if not each.parents and each.new >= new]
        used = {each: each.cache.used(each.value) for each in roots}
        for entry in sorted((each for each in roots if used[each]), key=lambda each: used[each]):
            entry.turn = next(self.turns)  # a fast path used the entry without asking the cache
        for entry in sorted(roots, key=lambda each: each.turn):
            if (self.new_nbytes if new else self.nbytes) <= down_to:
                return
            if entry is not added and added not in entry.parts and entry.alive:
                self._let_go(entry, gone)


def _name(entry: _Entry) -> int:
    return hash((id(entry.cache), entry.key))


class Families:
    """Which keys came first of those that are alike, as sizes of one layer are: a net's own, most likely."""

    def __init__(self, first: int) -> None:
        self._first = first
        self._known: OrderedDict[Hashable, set[int]] = OrderedDict()

    def further(self, family: Hashable, key: Hashable) -> bool:
        """Whether ``key`` is not among the first few keys of its family."""
        known = self._known.setdefault(family, set())
        if len(known) < self._first:
            known.add(hash(key))
            while len(self._known) > REMEMBERED:
                self._known.popitem(last=False)
        return hash(key) not in known

    def forget(self) -> None:
        """Forget all families: the next key of each counts as its first."""
        self._known.clear()


class Bounded:
    """Values by key within a budget; each is made by one thread.

    No lock is held while a value is made: other keys are served meanwhile. ``evicted(values)`` is called, outside of
    all locks, with what went: whoever holds some beside this lets go of them then, or no bound would hold.
    ``used(value)`` is 0, or grows with the time at which a fast path used a value since this was asked last.
    """

    def __init__(
        self,
        budget: Budget,
        evicted: Callable[[list[Any]], None] = lambda values: None,
        used: Callable[[Any], int] = lambda value: 0,
    ) -> None:
        self._budget, self._evicted, self.used = budget, evicted, used
        self._all: dict[Hashable, _Entry] = {}
        self._pending: dict[Hashable, _Pending] = {}

    def __len__(self) -> int:
        return len(self._all)

    @property
    def nbytes(self) -> int:
        """Bytes of this cache's entries, as passed to ``put`` and ``make``."""
        return sum(entry.nbytes for entry in list(self._all.values()))

    def get(self, key: Hashable) -> Any:
        """The cached value of a key, or None."""
        found = self._all.get(key)
        if found is None:
            return None
        found.turn = next(self._budget.turns)
        return found.value

    def part(self, key: Hashable) -> Any:
        """As ``get``; the value becomes a part of the entry that this thread is making, if any."""
        found = self._all.get(key)
        if found is None:
            return None
        found.turn = next(self._budget.turns)
        self._budget.hold(found, _making.parts)
        return found.value

    def put(self, key: Hashable, value: Any, nbytes: int = 0, new: bool = False) -> None:
        """Cache a value of ``nbytes`` bytes, and evict others where the budget requires it."""
        self._keep(key, value, nbytes, new, [], _making.parts)

    def grow(self, key: Hashable, nbytes: int) -> None:
        """Count ``nbytes`` more for a cached value."""
        found = self._all.get(key)
        if found is not None:
            with self._budget.lock:
                gone = self._budget.grow(found, nbytes)
            _tell(gone)

    def make(self, key: Hashable, make: Callable[[], tuple[Any, int]], new: bool | None = None) -> Any:
        """The cached value; without one, ``make()`` returns the value to cache and its size in bytes.

        ``new``: whether it counts towards the share of what is new; None where what it is made of decides. Threads that
        ask for one key at once wait for the first of them; where it raises, the next one tries.
        """
        while True:
            with self._budget.lock:
                found = self.part(key)
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
            outer, _making.parts = _making.parts, []
            try:
                value, nbytes = make()
                if not pending.dropped:
                    self._keep(key, value, nbytes, new, _making.parts or [], outer)
            finally:
                parts, _making.parts = _making.parts, outer
                with self._budget.lock:
                    for part in parts or ():
                        part.parents -= 1
                    self._pending.pop(key, None)
                pending.done.set()
            return value

    def _keep(
        self,
        key: Hashable,
        value: Any,
        nbytes: int,
        new: bool | None,
        parts: list[_Entry],
        outer: list[_Entry] | None,
    ) -> None:
        with self._budget.lock:
            before = self._all.get(key)
            if before is not None:
                self._budget.remove(before)
            entry = self._all[key] = _Entry(self, key, value, nbytes, parts)
            gone = self._budget.add(entry, any(part.new for part in parts) if new is None else new)
            self._budget.hold(entry, outer)
        _tell(gone)

    def drop(self, which: Callable[[Any], bool] = lambda key: True) -> None:
        """Let go of the values whose keys ``which`` names, and do not hold those that other threads are making. What
        they were made of stays, for those that are made in their place."""
        with self._budget.lock:
            for key, entry in list(self._all.items()):
                if which(key):
                    self._budget.remove(entry)
            for key, pending in self._pending.items():
                pending.dropped |= pending.thread != threading.get_ident() and which(key)


def _tell(gone: list[_Entry]) -> None:
    """Tell each cache which of its entries were evicted."""
    by_cache: dict[Bounded, list[Any]] = {}
    for entry in gone:
        by_cache.setdefault(entry.cache, []).append(entry.value)
    for cache, values in by_cache.items():
        cache._evicted(values)
