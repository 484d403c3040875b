"""Covering arrays: few rows in which every pair of values of two parameters occurs at least once, built greedily.

A constraint is a row that cannot be built; a pair that no row of many tries holds counts as impossible. The same seed
gives the same rows on every machine.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

Row = dict[str, Any]
Pair = tuple[tuple[str, Any], tuple[str, Any]]

CANDIDATES = 12
"""The number of random rows from which the one that covers most pairs is taken."""
TRIES = 60
"""The number of rows that are tried for a pair of values before the pair counts as impossible."""


_WANTED = 20
"""The weight, in pairs, of a value that its stratum still lacks."""


class Array(NamedTuple):
    """Rows, and what they cover."""

    rows: list[Row]
    pairs: int
    """The number of pairs of values that the rows cover: all that are possible."""
    impossible: list[Pair]
    """The pairs of values that no possible row has."""


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
    """Each value is a bit: a row is a number then, and so are the values that a value has yet to stand beside."""

    def __init__(self, letters: Mapping[str, Sequence[Any]], possible: Callable[[Row], bool], source: random.Random):
        self.letters = {name: list(values) for name, values in letters.items()}
        self.possible, self.source = possible, source
        self.rows: list[Row] = []
        self.impossible: list[Pair] = []
        self.items = {name: [(name, value) for value in values] for name, values in self.letters.items()}
        every = [item for items in self.items.values() for item in items]
        self.bits = {item: 1 << number for number, item in enumerate(every)}
        self.todo: dict[Pair, None] = {
            pair: None for pair in itertools.combinations(every, 2) if pair[0][0] != pair[1][0]
        }
        self.beside = dict.fromkeys(every, 0)
        for one, other in self.todo:
            self.beside[one] |= self.bits[other]
            self.beside[other] |= self.bits[one]
        self.total = len(self.todo)

    def fill_stratum(self, fixed: Row) -> None:
        """Every value of each letter that ``fixed`` leaves free, beside it."""
        todo = {(name, v): None for name, values in self.letters.items() if name not in fixed for v in values}
        for row in self.rows:
            if fixed.items() <= row.items():
                self._strike(todo, row.items())
        while todo:
            wanted = next(iter(todo))
            row = self._best(fixed | dict([wanted]), todo)
            if row is None:
                del todo[wanted]
                continue
            self._take(row)
            self._strike(todo, row.items())

    def fill_pairs(self) -> None:
        """Every pair that no row holds yet."""
        while self.todo:
            pair = next(iter(self.todo))
            row = self._best(dict(pair), {})
            if row is None:
                self._close(pair)
                self.impossible.append(pair)
            else:
                self._take(row)

    def _take(self, row: Row) -> None:
        self.rows.append(row)
        for pair in pairs_of(row):
            if pair in self.todo:
                self._close(pair)

    def _close(self, pair: Pair) -> None:
        del self.todo[pair]
        for one, other in itertools.permutations(pair):
            self.beside[one] &= ~self.bits[other]

    @staticmethod
    def _strike(todo: dict[Any, None], found: Iterable[Any]) -> None:
        for one in found:
            todo.pop(one, None)

    def _best(self, fixed: Row, wanted: Mapping[Any, None]) -> Row | None:
        """The possible row, of candidates, that covers most that is left, or None; ``wanted`` values count most."""
        best, most, found = None, -1, 0
        for turn in range(TRIES):
            row = self._candidate(fixed, wanted, greedy=turn < TRIES // 2)
            if not self.possible(row):
                continue
            held = sum(self.bits[item] for item in row.items())
            pairs = sum((self.beside[item] & held).bit_count() for item in row.items()) // 2
            gain = pairs + _WANTED * sum(item in wanted for item in row.items())
            if gain > most:
                best, most = row, gain
            found += 1
            if found == CANDIDATES:
                break
        return best

    def _candidate(self, fixed: Row, wanted: Mapping[Any, None], greedy: bool) -> Row:
        """``fixed``, and the other letters in any order, each with the value that covers most beside those before."""
        beside, bits, shuffle = self.beside, self.bits, self.source.shuffle
        row = dict(fixed)
        held = sum(bits[item] for item in row.items())
        free = [name for name in self.letters if name not in row]
        shuffle(free)
        for name in free:
            items = self.items[name].copy()
            shuffle(items)
            chosen, most = items[0], -1
            # Of several values that cover as many pairs the first one is taken.
            for item in items if greedy else ():
                gain = (beside[item] & held).bit_count() + (_WANTED if item in wanted else 0)
                if gain > most:
                    chosen, most = item, gain
            row[name] = chosen[1]
            held |= bits[chosen]
        return {name: row[name] for name in self.letters}
