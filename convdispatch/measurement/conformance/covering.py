"""Covering arrays: few rows in which every pair of values of two parameters occurs at least once, built greedily.

Constraints are given by rows that are not possible; a pair that no possible row has in many tries counts as impossible.
The same seed gives the same rows on every machine.
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


_STRATUM_GAIN = 20
"""The weight, in pairs, of a value that its stratum still lacks."""


class Array(NamedTuple):
    """The rows of a covering array, and the pairs that they cover."""

    rows: list[Row]
    pairs: int
    """The number of pairs of values that the rows cover: all that are possible."""
    impossible: list[Pair]
    """The pairs of values that are in no possible row."""


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

    A stratum fixes some letters, such as 3x3 with stride 1 for a kernel that takes nothing else; in it every value of
    every other letter occurs at least once.
    """
    builder = _Builder(letters, possible, random.Random(seed))
    for stratum in strata:
        builder.fill_stratum(dict(stratum))
    builder.fill_pairs()
    return Array(builder.rows, builder.total - len(builder.impossible), builder.impossible)


class _Builder:
    """Builds rows. Each value of a letter has a bit, so that sets of values are integers: a row, and the values with
    which a value is not yet paired (``missing``)."""

    def __init__(self, letters: Mapping[str, Sequence[Any]], possible: Callable[[Row], bool], source: random.Random):
        self.letters = {name: list(values) for name, values in letters.items()}
        self.possible, self.source = possible, source
        self.rows: list[Row] = []
        self.impossible: list[Pair] = []
        self.items = {name: [(name, value) for value in values] for name, values in self.letters.items()}
        all_items = [item for items in self.items.values() for item in items]
        self.bits = {item: 1 << number for number, item in enumerate(all_items)}
        self.todo: dict[Pair, None] = {
            pair: None for pair in itertools.combinations(all_items, 2) if pair[0][0] != pair[1][0]
        }
        self.missing = dict.fromkeys(all_items, 0)
        for one, partner in self.todo:
            self.missing[one] |= self.bits[partner]
            self.missing[partner] |= self.bits[one]
        self.total = len(self.todo)

    def fill_stratum(self, fixed: Row) -> None:
        """Add rows until each value of each free letter occurs together with the ``fixed`` ones."""
        todo = {(name, v): None for name, values in self.letters.items() if name not in fixed for v in values}
        for row in self.rows:
            if fixed.items() <= row.items():
                self._strike(todo, row.items())
        while todo:
            item = next(iter(todo))
            row = self._best(fixed | dict([item]), todo)
            if row is None:
                del todo[item]
                continue
            self._add(row)
            self._strike(todo, row.items())

    def fill_pairs(self) -> None:
        while self.todo:
            pair = next(iter(self.todo))
            row = self._best(dict(pair), {})
            if row is None:
                self._close(pair)
                self.impossible.append(pair)
            else:
                self._add(row)

    def _add(self, row: Row) -> None:
        self.rows.append(row)
        for pair in pairs_of(row):
            if pair in self.todo:
                self._close(pair)

    def _close(self, pair: Pair) -> None:
        del self.todo[pair]
        for item, partner in itertools.permutations(pair):
            self.missing[item] &= ~self.bits[partner]

    @staticmethod
    def _strike(todo: dict[Any, None], items: Iterable[Any]) -> None:
        for item in items:
            todo.pop(item, None)

    def _best(self, fixed: Row, wanted: Mapping[Any, None]) -> Row | None:
        """The possible row, of several candidates, that covers most missing pairs and ``wanted`` values; or None."""
        best, best_gain, possible_rows = None, -1, 0
        for turn in range(TRIES):
            row = self._candidate(fixed, wanted, greedy=turn < TRIES // 2)
            if not self.possible(row):
                continue
            row_bits = sum(self.bits[item] for item in row.items())
            pairs = sum((self.missing[item] & row_bits).bit_count() for item in row.items()) // 2
            gain = pairs + _STRATUM_GAIN * sum(item in wanted for item in row.items())
            if gain > best_gain:
                best, best_gain = row, gain
            possible_rows += 1
            if possible_rows == CANDIDATES:
                break
        return best

    def _candidate(self, fixed: Row, wanted: Mapping[Any, None], greedy: bool) -> Row:
        """Complete ``fixed`` by the other letters in random order, each with the value that adds most missing pairs."""
        missing, bits, shuffle = self.missing, self.bits, self.source.shuffle
        row = dict(fixed)
        row_bits = sum(bits[item] for item in row.items())
        free = [name for name in self.letters if name not in row]
        shuffle(free)
        for name in free:
            items = self.items[name].copy()
            shuffle(items)
            chosen, best_gain = items[0], -1
            # Of several values that cover as many pairs the first one is taken.
            for item in items if greedy else ():
                gain = (missing[item] & row_bits).bit_count() + (_STRATUM_GAIN if item in wanted else 0)
                if gain > best_gain:
                    chosen, best_gain = item, gain
            row[name] = chosen[1]
            row_bits |= bits[chosen]
        return {name: row[name] for name in self.letters}
