"""Bounded caches of values that are slow to build and large in memory: programs, plans, calls, forms of nets.

A process that sees ever new sizes must not cache them all, but a net with hundreds of layers needs every one. All
caches of a ``Budget`` share one limit in bytes, and evict the least recently used entry of them all first. An entry
knows its parts, the entries that it was built from (a call's plan, a plan's programs): they are evicted with it, not
before, because that would free nothing. An entry counts its own bytes only, so nothing is counted twice.

Entries that are ``new`` (further sizes of a layer, values that are cheap to build) may use only a small share of the
limit. An entry that was rebuilt several times after its eviction is wanted again and again, and no longer counts as
new: after Johnson and Shasha, "2Q: a low overhead high performance buffer management replacement algorithm", 1994.
"""

from __future__ import annotations

import itertools
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any

from ..background import unlocked

KB, MB = 1 << 10, 1 << 20
MIN_RETURNS = 4
"""An entry that was evicted and rebuilt this many times no longer counts as new."""
REMEMBERED = 8192
"""The number of evicted keys that are remembered, to count how often each returns."""
LOW_WATER = 0.9
"""Once a limit is exceeded, entries are evicted down to this share of it: evicting one at a time takes too long."""


class _Entry:
    """A value in a cache, its bytes, the turn of its last use, and its parts, the entries that it was built from."""

    __slots__ = ("alive", "cache", "key", "nbytes", "new", "parents", "parts", "turn", "value")

    def __init__(self, cache: Bounded, key: Hashable, value: Any, nbytes: int, parts: list[_Entry]) -> None:
        self.cache, self.key, self.value, self.nbytes, self.parts = cache, key, value, nbytes, parts
        self.turn, self.parents, self.new, self.alive = 0, 0, False, True


class _Building(threading.local):
    parts: list[_Entry] | None = None


_building = _Building()
"""The entries that this thread looked up while it builds a value: they are parts of that value."""


class _Pending:
    """A value that one thread is building and that other threads may wait for."""

    def __init__(self) -> None:
        self.done, self.thread, self.dropped = threading.Event(), threading.get_ident(), False


class Budget:
    """The bytes that some caches may hold together: ``limit()`` in all, ``share()`` for new entries."""

    def __init__(self, limit: Callable[[], int], share: Callable[[], int]) -> None:
        self._limit, self._share = limit, share
        self.lock = threading.RLock()
        self.turns = itertools.count()
        self._entries: set[_Entry] = set()
        self.nbytes = self.new_nbytes = 0
        self._returns: OrderedDict[int, int] = OrderedDict()
        """How often each key was evicted, by the key's hash."""

    def add(self, entry: _Entry, new: bool) -> list[_Entry]:
        """Add an entry, and return those evicted for it. The caller holds the lock; an entry that alone exceeds the
        limit stays."""
        entry.turn = next(self.turns)
        entry.parts = [part for part in entry.parts if part.alive]
        for part in entry.parts:
            part.parents += 1
        entry.new = new and self._returns.get(_key_hash(entry), 0) < MIN_RETURNS
        self._entries.add(entry)
        self.nbytes += entry.nbytes
        if entry.new:
            self.new_nbytes += entry.nbytes
        else:
            self._mark_parts_not_new(entry)
        return self._shrink(entry)

    def hold(self, entry: _Entry, parts: list[_Entry] | None) -> None:
        """Add an entry to the parts of the value that is being built, so that it is not evicted before the value is."""
        if parts is not None and entry not in parts:
            with self.lock:
                entry.parents += 1
                parts.append(entry)

    def grow(self, entry: _Entry, nbytes: int) -> list[_Entry]:
        """Count more bytes for an entry, such as weights that were packed for a plan. The caller holds the lock."""
        if not entry.alive:
            return []
        entry.nbytes += nbytes
        self.nbytes += nbytes
        if entry.new:
            self.new_nbytes += nbytes
        return self._shrink(entry) if nbytes > 0 else []

    def remove(self, entry: _Entry) -> None:
        """Remove an entry from the budget; its parts stay. The caller holds the lock."""
        entry.alive = False
        if entry.cache._all.get(entry.key) is entry:
            del entry.cache._all[entry.key]
        self._entries.discard(entry)
        self.nbytes -= entry.nbytes
        if entry.new:
            self.new_nbytes -= entry.nbytes
        for part in entry.parts:
            part.parents -= 1

    def _evict_with_parts(self, entry: _Entry, evicted: list[_Entry]) -> None:
        """Evict an entry, and those of its parts that no other entry uses."""
        self.remove(entry)
        evicted.append(entry)
        if entry.new:
            name = _key_hash(entry)
            self._returns[name] = self._returns.pop(name, 0) + 1
            while len(self._returns) > REMEMBERED:
                self._returns.popitem(last=False)
        for part in entry.parts:
            if part.alive and not part.parents:
                self._evict_with_parts(part, evicted)

    def _mark_parts_not_new(self, entry: _Entry) -> None:
        """Mark the parts of an entry that is not new as not new either."""
        for part in entry.parts:
            if part.new:
                part.new = False
                self.new_nbytes -= part.nbytes
                self._mark_parts_not_new(part)

    def _shrink(self, added: _Entry) -> list[_Entry]:
        evicted: list[_Entry] = []
        share, limit = self._share(), self._limit()
        if self.new_nbytes > share:
            self._evict(added, evicted, True, share * LOW_WATER)
        if self.nbytes > limit:
            self._evict(added, evicted, False, limit * LOW_WATER)
        return evicted

    def _evict(self, added: _Entry, evicted: list[_Entry], new: bool, down_to: float) -> None:
        roots = [root for root in self._entries if not root.parents and root.new >= new]
        last_use = {root: root.cache.used(root.value) for root in roots}
        for entry in sorted((root for root in roots if last_use[root]), key=lambda each: last_use[each]):
            entry.turn = next(self.turns)  # a fast path used the entry without a lookup in the cache
        for entry in sorted(roots, key=lambda each: each.turn):
            if (self.new_nbytes if new else self.nbytes) <= down_to:
                return
            if entry is not added and added not in entry.parts and entry.alive:
                self._evict_with_parts(entry, evicted)


def _key_hash(entry: _Entry) -> int:
    return hash((id(entry.cache), entry.key))


class Families:
    """Remembers the first few keys of each family, such as a layer's sizes: most likely the net's own."""

    def __init__(self, first: int) -> None:
        self._first = first
        self._known: OrderedDict[Hashable, set[int]] = OrderedDict()

    def further(self, family: Hashable, key: Hashable) -> bool:
        """Whether ``key`` is not among the first few keys of its family."""
        known_keys = self._known.setdefault(family, set())
        if len(known_keys) < self._first:
            known_keys.add(hash(key))
            while len(self._known) > REMEMBERED:
                self._known.popitem(last=False)
        return hash(key) not in known_keys

    def forget(self) -> None:
        """Forget all families: the next key of each counts as its first."""
        self._known.clear()


class Bounded:
    """A cache of values by key within a budget; each value is built by one thread.

    No lock is held while a value is built, so other keys are served meanwhile. ``evicted(values)`` is called outside of
    all locks, so that other owners of the values can drop them too. ``used(value)`` returns 0 if no fast path used the
    value since the last such query, else a number that grows with the time of its last use.
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
        entry = self._all.get(key)
        if entry is None:
            return None
        entry.turn = next(self._budget.turns)
        return entry.value

    def part(self, key: Hashable) -> Any:
        """As ``get``; the value becomes a part of the entry that this thread is building, if any."""
        entry = self._all.get(key)
        if entry is None:
            return None
        entry.turn = next(self._budget.turns)
        self._budget.hold(entry, _building.parts)
        return entry.value

    def put(self, key: Hashable, value: Any, nbytes: int = 0, new: bool = False) -> None:
        """Cache a value of ``nbytes`` bytes, and evict others where the budget requires it."""
        self._store(key, value, nbytes, new, [], _building.parts)

    def grow(self, key: Hashable, nbytes: int) -> None:
        """Count ``nbytes`` more for a cached value."""
        entry = self._all.get(key)
        if entry is not None:
            with self._budget.lock:
                evicted = self._budget.grow(entry, nbytes)
            _report_evicted(evicted)

    def make(self, key: Hashable, make: Callable[[], tuple[Any, int]], new: bool | None = None) -> Any:
        """The cached value; without one, ``make()`` returns the value to cache and its size in bytes.

        ``new``: whether the entry counts as new; with None it does if one of its parts does. Threads that ask for a key
        that is being built wait for its thread; if that raises, the next thread builds.
        """
        while True:
            with self._budget.lock:
                cached = self.part(key)
                if cached is not None:
                    return cached
                pending = self._pending.get(key)
                builds = pending is None or pending.thread == threading.get_ident()
                if builds:
                    pending = self._pending[key] = _Pending()
            if not builds:
                with unlocked():
                    pending.done.wait()
                continue
            outer_parts, _building.parts = _building.parts, []
            try:
                value, nbytes = make()
                if not pending.dropped:
                    self._store(key, value, nbytes, new, _building.parts or [], outer_parts)
            finally:
                parts, _building.parts = _building.parts, outer_parts
                with self._budget.lock:
                    for part in parts or ():
                        part.parents -= 1
                    self._pending.pop(key, None)
                pending.done.set()
            return value

    def _store(
        self,
        key: Hashable,
        value: Any,
        nbytes: int,
        new: bool | None,
        parts: list[_Entry],
        outer_parts: list[_Entry] | None,
    ) -> None:
        with self._budget.lock:
            replaced = self._all.get(key)
            if replaced is not None:
                self._budget.remove(replaced)
            entry = self._all[key] = _Entry(self, key, value, nbytes, parts)
            evicted = self._budget.add(entry, any(part.new for part in parts) if new is None else new)
            self._budget.hold(entry, outer_parts)
        _report_evicted(evicted)

    def drop(self, which: Callable[[Any], bool] = lambda key: True) -> None:
        """Remove the values whose keys satisfy ``which``, and do not cache those that other threads are building. Their
        parts stay, for the values that replace them."""
        with self._budget.lock:
            for key, entry in list(self._all.items()):
                if which(key):
                    self._budget.remove(entry)
            for key, pending in self._pending.items():
                pending.dropped |= pending.thread != threading.get_ident() and which(key)


def _report_evicted(evicted: list[_Entry]) -> None:
    """Call each cache's ``evicted`` with the values of its evicted entries."""
    by_cache: dict[Bounded, list[Any]] = {}
    for entry in evicted:
        by_cache.setdefault(entry.cache, []).append(entry.value)
    for cache, values in by_cache.items():
        cache._evicted(values)
