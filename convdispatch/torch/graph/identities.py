"""Whether many objects of Python's hold the very values that they held, in a few loops of C.

By the compiled module where there is one, a nanosecond or two a value, else by functions of Python's own in C.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Iterator, Sequence
from typing import Any

from ...device.native import loading

__all__ = ["Identities"]

_chain = itertools.chain.from_iterable


class Identities:
    """Of dictionaries, lists and other containers, names in tables and fields of objects: what they hold now."""

    def __init__(
        self, containers: Sequence[Any], named: Sequence[tuple[Any, str]], fields: Sequence[tuple[Any, str]]
    ) -> None:
        self._native = loading.module()
        self._tables = [each for each in containers if isinstance(each, dict)]
        lists = [each for each in containers if isinstance(each, list)]
        self._others = [each for each in containers if not isinstance(each, dict | list)]
        if self._native is None:
            self._others = [*lists, *self._others]
            self._inside = list(self._keys_and_values())
        else:
            self._containers = [*self._tables, *lists]
            self._items = [*(tuple(_chain(dict.items(each))) for each in self._tables), *map(tuple, lists)]
        self._sizes, self._listed = self._lengths(), list(_chain(self._others))
        self._spaces, self._names = [table for table, _ in named], [name for _, name in named]
        self._holders, self._fields = [holder for holder, _ in fields], [field for _, field in fields]
        self._values: list[Any] | None = None
        try:
            self._read = list(map(getattr, self._holders, self._fields))
            self._values = list(map(operator.getitem, self._spaces, self._names))
        except (AttributeError, KeyError, ValueError):  # something is gone: nothing is told from now on
            pass

    def _lengths(self) -> list[int]:
        return list(map(len, self._others if self._native is not None else (*self._tables, *self._others)))

    def _keys_and_values(self) -> Iterator[Any]:
        return itertools.chain(_chain(map(dict.keys, self._tables)), _chain(map(dict.values, self._tables)))

    def hold(self) -> bool:
        """Whether each is that very one; False also where that cannot be told, as of a field that holds nothing."""
        if self._values is None or self._lengths() != self._sizes:
            return False
        try:
            if not all(map(operator.is_, _chain(self._others), self._listed)):
                return False
            if not all(map(operator.is_, map(getattr, self._holders, self._fields), self._read)):
                return False
            if self._native is not None:
                same = self._native.same_items(self._containers, self._items)
                return bool(same and self._native.same_names(self._spaces, self._names, self._values))
            return all(map(operator.is_, self._keys_and_values(), self._inside)) and all(
                map(operator.is_, map(operator.getitem, self._spaces, self._names), self._values)
            )
        except (AttributeError, KeyError, RuntimeError, ValueError):  # gone, or another thread writes
            return False
