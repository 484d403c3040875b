"""Covering arrays: few rows in which every pair of letters' values stands together at least once, made greedily.

A constraint is a row that cannot be built; a pair that no row of many tries holds counts as impossible. The same seed
gives the same rows on every machine.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

__all__ = ["Array", "cover", "pairs_of"]

Row = dict[str, Any]
Pair = tuple[tuple[str, Any], tuple[str, Any]]

CANDIDATES = 12
"""Rows of which the one that covers most is taken."""
TRIES = 60
"""Rows that are tried for a pair before it counts as impossible."""


class Array(NamedTuple):
    """Rows, and what they cover."""

    rows: list[Row]
    pairs: int
    """Pairs of values that the rows hold: all that are possible."""
    impossible: list[Pair]
    """Pairs that no row holds."""


def pairs_of(row: Mapping[str, Any]) -> Iterator[Pair]:
    """Every pair of a row's letters with their values, letters in the row's order."""
    return itertools.combinations(row.items(), 2)


def cover(
    letters: Mapping[str, Sequence[Any]],
    possible: Callable[[Row], bool],
    strata: Iterable[Mapping[str, Any]] = (),
    seed: int = 0,
) -> Array:
    """Rows that hold every possible pair of ``letters``' values.

    A stratum fixes some letters, as a kernel does that takes 3x3 with stride 1 alone; in it every value of every other
    letter stands at least once.
    """
    maker = _Maker(letters, possible, random.Random(seed))
    for stratum in strata:
        maker.fill_stratum(dict(stratum))
    maker.fill_pairs()
    return Array(maker.rows, maker.total - len(maker.impossible), maker.impossible)


class _Maker:
    def __init__(self, letters: Mapping[str, Sequence[Any]], possible: Callable[[Row], bool], source: random.Random):
        self.letters = {name: list(values) for name, values in letters.items()}
        self.places = {name: place for place, name in enumerate(self.letters)}
        self.possible, self.source = possible, source
        self.rows: list[Row] = []
        self.impossible: list[Pair] = []
        every = itertools.combinations([(name, v) for name, values in self.letters.items() for v in values], 2)
        self.todo: dict[Pair, None] = {pair: None for pair in every if pair[0][0] != pair[1][0]}
        self.total = len(self.todo)

    def fill_stratum(self, fixed: Row) -> None:
        """Every value of each letter that ``fixed`` leaves free, beside it."""
        todo = {(name, v): None for name, values in self.letters.items() if name not in fixed for v in values}
        for row in self.rows:
            if fixed.items() <= row.items():
                self._strike(todo, row.items())
        while todo:
            wanted = next(iter(todo))
            row = self._best(fixed | dict([wanted]), lambda item: 20 * (item in todo))
            if row is None:
                del todo[wanted]
                continue
            self._take(row)
            self._strike(todo, row.items())

    def fill_pairs(self) -> None:
        """Every pair that no row holds yet."""
        while self.todo:
            pair = next(iter(self.todo))
            row = self._best(dict(pair))
            if row is None:
                del self.todo[pair]
                self.impossible.append(pair)
            else:
                self._take(row)

    def _take(self, row: Row) -> None:
        self.rows.append(row)
        self._strike(self.todo, pairs_of(row))

    @staticmethod
    def _strike(todo: dict[Any, None], found: Iterable[Any]) -> None:
        for one in found:
            todo.pop(one, None)

    def _best(self, fixed: Row, worth: Callable[[Any], int] = lambda item: 0) -> Row | None:
        """The possible row of some candidates that covers most of what is left, or None."""
        best, most, found = None, -1, 0
        for turn in range(TRIES):
            row = self._candidate(fixed, worth, greedy=turn < TRIES // 2)
            if not self.possible(row):
                continue
            gain = sum(pair in self.todo for pair in pairs_of(row)) + sum(map(worth, row.items()))
            if gain > most:
                best, most = row, gain
            found += 1
            if found == CANDIDATES:
                break
        return best

    def _candidate(self, fixed: Row, worth: Callable[[Any], int], greedy: bool) -> Row:
        """``fixed``, and the other letters in any order, each with the value that covers most beside those before."""
        row = dict(fixed)
        free = [name for name in self.letters if name not in row]
        self.source.shuffle(free)
        for name in free:
            values = list(self.letters[name])
            self.source.shuffle(values)
            if greedy:
                values.sort(key=lambda value, name=name: -self._gain(name, value, row) - worth((name, value)))
            row[name] = values[0]
        return {name: row[name] for name in self.letters}

    def _gain(self, name: str, value: Any, row: Row) -> int:
        one, here = (name, value), self.places[name]
        pairs = ((one, item) if here < self.places[item[0]] else (item, one) for item in row.items())
        return sum(pair in self.todo for pair in pairs)
