"""Notes reads of a parameter's ``.data``: the reader may write through it, and PyTorch counts no such write.

So ``torch.nn.Parameter`` gets a property over PyTorch's own ``data``, which notes reads of watched parameters. The
property is installed when the first parameter is watched, and costs other parameters a dictionary look-up.
"""

from __future__ import annotations

import weakref
from typing import Any

import torch

_reads: dict[int, int] = {}
"""How often ``.data`` of each watched parameter was read, by the parameter's id."""
_watchers: dict[int, int] = {}
"""How many ``Reads`` watch each parameter, by its id. There is no weak reference: PyTorch swaps no tensor that has
one."""
_aliases: dict[int, Any] = {}
"""Weak references to the tensors that ``.data`` returned last, by the parameter's id. While such a tensor lives, it may
be written any time."""
_total = 0
_DATA: Any = torch._C.TensorBase.data  # type: ignore[attr-defined]


def _read(parameter: torch.Tensor) -> torch.Tensor:
    data: torch.Tensor = _DATA.__get__(parameter)
    key = id(parameter)
    if key in _reads:
        _counted(key)
        _aliases[key] = weakref.ref(data)
    return data


def _replace(parameter: torch.Tensor, data: torch.Tensor) -> None:
    _DATA.__set__(parameter, data)
    if id(parameter) in _reads:
        _counted(id(parameter))


def _counted(key: int) -> None:
    global _total
    _reads[key] += 1
    _total += 1


def count() -> int:
    """How often ``.data`` of any watched parameter was read so far."""
    return _total


class Reads:
    """``since()`` returns whether ``.data`` of a parameter was read since this object was created. It does not hold the
    parameter: a new parameter with a dead one's id at worst counts as read."""

    __slots__ = ("_key", "_seen")

    def __init__(self, parameter: torch.Tensor) -> None:
        if "data" not in torch.nn.Parameter.__dict__:
            torch.nn.Parameter.data = property(_read, _replace, doc=_DATA.__doc__)  # type: ignore[assignment,misc]
        self._key = id(parameter)
        _watchers[self._key] = _watchers.get(self._key, 0) + 1
        self._seen = _reads.setdefault(self._key, 0)

    def __del__(self) -> None:
        watcher_count = _watchers.get(self._key, 0) - 1
        if watcher_count > 0:
            _watchers[self._key] = watcher_count
            return
        for table in (_watchers, _reads, _aliases):
            table.pop(self._key, None)

    def since(self) -> bool:
        """Whether ``.data`` was read since this object was created, or its last result is still alive."""
        if _reads.get(self._key) != self._seen:
            return True
        alias = _aliases.get(self._key)
        return alias is not None and alias() is not None
