"""What a module's code may read beside its arguments, parameters and buffers, and whether it is what it was.

Attributes of its parts, what lists, dicts and plain objects in them hold (a configuration's fields), attributes of its
classes, and the globals that its methods name. A look compares identities first: about 0.1 ms for a hundred layers.
Not seen: what lies deeper, in other objects' methods or in C.
"""

from __future__ import annotations

import collections
import random
import types
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import fx, nn

__all__ = ["PythonState", "drawn_numbers", "drawn_since"]

_DEPTH = 3
"""Of containers and objects in an attribute."""
_MOST = 50_000
"""Values that are compared at each call; a module with more is refused."""
_PLAIN = (bool, int, float, complex, str, bytes, type(None), tuple, torch.dtype, torch.device)
_ATOMS = (*_PLAIN[:-3], torch.dtype, torch.device, type, np.ndarray)
_FIXED = {*vars(nn.Module())} - {"training"}
"""What PyTorch itself keeps with a module: ``State`` looks at its tensors, parts and hooks."""
_GONE = object()


class PythonState:
    """Made of a module; ``changed()`` answers what is another value since, in words, or None."""

    def __init__(self, root: nn.Module) -> None:
        self.modules: list[nn.Module] = []
        """The module's parts, also those that lists in attributes hold, which PyTorch does not know."""
        self.tensors: list[torch.Tensor] = []
        """Tensors in attributes."""
        self._dicts: list[tuple[Any, dict[Any, Any], list[tuple[Any, Any]], str]] = []
        self._lists: list[tuple[Any, list[Any], str]] = []
        self._named: list[tuple[Any, str, Any, str]] = []
        self._seen: dict[int, Any] = {}
        functions: list[Any] = []
        self.size = 0
        self._walk(root, functions)
        for kind in {type(each) for each in self.modules}:
            self._of_class(kind, functions)
        self._of_functions(functions)

    @property
    def too_large(self) -> bool:
        """Whether to compare it at each call would cost more than a record saves."""
        return self.size > _MOST

    def _walk(self, root: nn.Module, functions: list[Any]) -> None:
        waiting = collections.deque([(root, 0, "")])
        while waiting and not self.too_large:
            value, depth, name = waiting.popleft()
            if isinstance(value, _ATOMS) or id(value) in self._seen:
                continue
            self._seen[id(value)] = value  # held, so that no other gets its id
            if isinstance(value, nn.Module):
                self.modules.append(value)
                waiting.extend((child, 0, key) for key, child in value._modules.items() if child is not None)
                if isinstance(value, fx.GraphModule):  # its code alone is its own
                    self._named.append((vars(value), "_code", value._code, name))
                    continue
                inside: Any = self._table(vars(value), type(value).__name__)
            elif isinstance(value, torch.Tensor):
                self.tensors.append(value)
                continue
            elif isinstance(value, types.FunctionType | types.MethodType):
                functions.append(value)
                continue
            elif depth > _DEPTH:
                continue
            elif isinstance(value, dict):
                inside = self._table(value, name)
            elif isinstance(value, list | collections.deque):
                self._lists.append((value, list(value), name))
                inside = list(enumerate(value))
            elif isinstance(value, tuple | set | frozenset):
                inside = list(enumerate(value))
                if isinstance(value, set):
                    self._lists.append((value, list(value), name))
            elif _is_plain_object(value):
                inside = self._table(vars(value), f"{name} of type {type(value).__name__}")
            else:
                continue
            self.size += len(inside)
            waiting.extend((each, depth + 1, f"{name}.{key}" if name else str(key)) for key, each in inside)

    def _table(self, table: dict[Any, Any], name: str) -> list[tuple[Any, Any]]:
        self._dicts.append((table, dict(table), [each for each in table.items() if each[0] not in _FIXED], name))
        return [(key, value) for key, value in table.items() if key not in _FIXED]

    def _of_class(self, kind: type, functions: list[Any]) -> None:
        """Plain attributes of a class; its methods go to ``functions``."""
        for each in kind.__mro__:
            if each.__module__.partition(".")[0] in ("torch", "builtins", "convdispatch"):
                continue
            for name, value in list(vars(each).items()):
                value = value.__func__ if isinstance(value, staticmethod | classmethod) else value
                if isinstance(value, property):
                    functions.append(value.fget)
                elif isinstance(value, types.FunctionType):
                    functions.append(value)
                elif isinstance(value, _PLAIN) and name[:2] != "__":
                    self._named.append((vars(each), name, value, each.__name__))

    def _of_functions(self, functions: list[Any]) -> None:
        """Plain globals that functions name, and the functions of the same package that they call."""
        while functions:
            function = functions.pop()
            function = function.__func__ if isinstance(function, types.MethodType) else function
            while hasattr(function, "__wrapped__") and isinstance(function, types.FunctionType):
                self._of_function(function, functions)
                function = function.__wrapped__
            if isinstance(function, types.FunctionType):
                self._of_function(function, functions)

    def _of_function(self, function: Any, functions: list[Any]) -> None:
        if id(function.__code__) in self._seen:
            return
        self._seen[id(function.__code__)] = function
        home, space = function.__module__ or "", function.__globals__
        for name in set(_names(function.__code__)):
            value = space.get(name, _GONE)
            if isinstance(value, types.FunctionType) and _kin(home, value.__module__ or ""):
                functions.append(value)
            elif isinstance(value, _PLAIN) and name[:2] != "__":
                self._named.append((space, name, value, home))
        for cell in function.__closure__ or ():
            try:
                value = cell.cell_contents
            except ValueError:  # nothing yet
                continue
            if isinstance(value, types.FunctionType):
                functions.append(value)

    def changed(self) -> str | None:
        """What has another value, is new or gone, in words; None where all is as it was."""
        for table, copy, items, name in self._dicts:
            if len(table) != len(copy):
                return f"attributes of {name}"
            for key, value in items:
                found = table.get(key, _GONE)
                if found is not value and not _same(found, value):
                    return f"{name}.{key}"
        for values, held, name in self._lists:
            if len(values) != len(held) or not all(map(_same, values, held)):
                return name
        for table, key, value, name in self._named:
            found = table.get(key, _GONE)
            if found is not value and not _same(found, value):
                return f"{name}.{key}"
        return None

    def restored(self) -> str | None:
        """As ``changed``; what was written is put back as it was."""
        changed = self.changed()
        if changed is None:
            return None
        for table, copy, _, _ in self._dicts:
            if len(table) != len(copy) or any(table.get(key, _GONE) is not value for key, value in copy.items()):
                table.clear()
                table.update(copy)
        for values, held, _ in self._lists:
            if len(values) != len(held) or not all(map(_same, values, held)):
                values.clear()
                (values.update if isinstance(values, set) else values.extend)(held)
        for table, key, value, _ in self._named:
            if isinstance(table, dict):
                table[key] = value
        return changed


def _same(one: Any, other: Any) -> bool:
    return one is other or (type(one) is type(other) and isinstance(one, _PLAIN) and _equal(one, other))


def _equal(one: Any, other: Any) -> bool:
    if isinstance(one, tuple):  # which may hold tensors
        return len(one) == len(other) and all(map(_same, one, other))
    return bool(one == other)


def _is_plain_object(value: Any) -> bool:
    """Whether a value is an object with fields of Python's, and no function, module or part of PyTorch."""
    if isinstance(value, types.FunctionType | types.ModuleType | types.MethodType | type):
        return False
    return hasattr(value, "__dict__") and type(value).__module__.partition(".")[0] not in ("torch", "convdispatch")


def _names(code: Any) -> Iterator[str]:
    yield from code.co_names
    for each in code.co_consts:
        if isinstance(each, types.CodeType):
            yield from _names(each)


def _kin(one: str, other: str) -> bool:
    return one.partition(".")[0] == other.partition(".")[0]


def drawn_numbers() -> tuple[Any, Any]:
    """Where Python's and NumPy's random numbers stand; who draws moves them."""
    return random.getstate(), np.random.get_state()


def drawn_since(numbers: tuple[Any, Any]) -> bool:
    """Whether somebody drew; where so, the next draws are those again."""
    python, numpy = drawn_numbers()
    known = numbers[1]
    if python == numbers[0] and numpy[2] == known[2] and np.array_equal(numpy[1], known[1]):
        return False
    random.setstate(numbers[0])
    np.random.set_state(known)
    return True
