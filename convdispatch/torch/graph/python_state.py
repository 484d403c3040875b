"""What a module's code may read beside its arguments, parameters and buffers, and whether it is what it was.

Attributes of its parts, what lists, dicts, arrays and plain objects in them hold (a configuration's fields), attributes
and methods of its classes, the globals that its methods name, what their defaults and closures hold, and what they name
of other modules. A look compares identities first, all of them in a few loops of C. Not seen: what lies deeper, in
other objects' methods, in C, in files or in the environment.
"""

from __future__ import annotations

import argparse
import collections
import functools
import itertools
import operator
import random
import sys
import types
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import torch
from torch import fx, nn

from .identities import Identities

__all__ = ["PythonState", "drawn_numbers", "drawn_since"]

_DEPTH = 3
"""Of containers and objects in an attribute."""
_MOST = 200_000
"""Values that are compared at each call; a module with more is refused."""
_BYTES = 64
"""Of an array, which count as one value."""
_PLAIN = (bool, int, float, complex, str, bytes, type(None), tuple, torch.dtype, torch.device)
_ATOMS = (*_PLAIN[:-3], torch.dtype, torch.device)
_FIELDS = (types.SimpleNamespace, argparse.Namespace)
_HOLDERS = (
    *(dict, list, set, frozenset, tuple, collections.deque, functools.partial, np.ndarray),
    *(torch.Tensor, nn.Module, *_FIELDS),
)
_FOREIGN = ("torch", "numpy", "builtins", "convdispatch")
_FIXED = {*vars(nn.Module())} - {"training"}
"""What PyTorch itself keeps with a module: ``State`` looks at its tensors, parts and hooks."""
_TABLES = ("_parameters", "_buffers", "_modules")
_HOOKS = tuple(name for name, value in vars(nn.Module()).items() if isinstance(value, dict) and name not in _TABLES)
_GONE = object()


class PythonState:
    """Made of a module; ``changed()`` answers what is another value since, in words, or None."""

    def __init__(self, root: nn.Module) -> None:
        self.modules: list[nn.Module] = []
        """The module's parts, also those that lists in attributes hold, which PyTorch does not know."""
        self.tensors: list[torch.Tensor] = []
        """Tensors in attributes, globals and closures."""
        self._dicts: list[tuple[Any, dict[Any, Any], list[Any], list[Any], str]] = []
        """With what they held, and the keys and values of it that are compared."""
        self._lists: list[tuple[Any, list[Any], str]] = []
        self._named: dict[int, tuple[Any, str, dict[str, Any]]] = {}
        """Names and their values in modules and classes, by the table's id."""
        self._fields: list[tuple[Any, str, Any, str]] = []
        """Of objects without a dict; a closure's cell has one field."""
        self._arrays: list[tuple[np.ndarray, bytes, str]] = []
        self._tables: list[tuple[dict[str, Any], dict[str, Any]]] = []
        self._hooks: list[dict[Any, Any]] = []
        self._hooks_before: list[tuple[dict[Any, Any], dict[Any, Any]]] = []
        self._seen: dict[int, Any] = {}
        self._classes: set[tuple[type, bool]] = set()
        self._owners: dict[int, type] = {}
        """Of classes' tables, by id: tables cannot be written."""
        self.size = 0
        self._waiting = collections.deque[tuple[Any, int, str]]([(root, 0, "")])
        self._functions: list[Any] = []
        while (self._waiting or self._functions) and not self.too_large:
            if self._waiting:
                self._walk(*self._waiting.popleft())
            else:
                self._of_function(self._functions.pop())
        self._absent = [(holder, field) for holder, field, value, _ in self._fields if value is _GONE]
        self._flat = self._identities()

    @property
    def too_large(self) -> bool:
        """Whether to compare it at each call would cost more than a record saves."""
        return self.size > _MOST

    def _new(self, value: Any) -> bool:
        if id(value) in self._seen:
            return False
        self._seen[id(value)] = value  # held, so that no other gets its id
        return True

    def _walk(self, value: Any, depth: int, name: str) -> None:
        if isinstance(value, types.FunctionType | types.MethodType):
            self._functions.append(value)
        elif not isinstance(value, _ATOMS) and self._new(value):
            self._look(value, depth, name)

    def _look(self, value: Any, depth: int, name: str) -> None:
        inside: list[tuple[Any, Any]] = []
        if isinstance(value, nn.Module):
            self.modules.append(value)
            self._waiting.extend((child, 0, key) for key, child in value._modules.items() if child is not None)
            self._tables += ((table, dict(table)) for table in (vars(value)[each] for each in _TABLES))
            self._hooks += (vars(value)[each] for each in _HOOKS if each in vars(value))
            if isinstance(value, fx.GraphModule):  # its code alone is its own
                self._name(vars(value), "_code", value._code, name)
                return
            self._of_class(type(value), methods=True)
            inside = self._table(vars(value), type(value).__name__)
        elif isinstance(value, torch.Tensor):
            self.tensors.append(value)
        elif isinstance(value, np.ndarray):
            self._arrays.append((value, value.tobytes(), name))
            self.size += value.nbytes // _BYTES
        elif isinstance(value, type):
            self._of_class(value, methods=False)
        elif depth > _DEPTH:
            return
        elif isinstance(value, dict):
            inside = self._table(value, name)
        elif isinstance(value, list | collections.deque | set):
            self._lists.append((value, list(value), name))
            inside = list(enumerate(value))
        elif isinstance(value, tuple | frozenset):
            inside = list(enumerate(value))
        elif isinstance(value, functools.partial):
            inside = [("func", value.func), ("args", value.args), ("keywords", value.keywords)]
        elif _is_plain_object(value):
            words = f"{name} of type {type(value).__name__}"
            self._of_class(type(value), methods=callable(value))
            inside = self._table(vars(value), words) if hasattr(value, "__dict__") else []
            inside += ((each, self._field(value, each, words)) for each in _slots(type(value)))
        self.size += len(inside)
        self._waiting.extend((each, depth + 1, f"{name}.{key}" if name else str(key)) for key, each in inside)

    def _table(self, table: dict[Any, Any], name: str) -> list[tuple[Any, Any]]:
        found = [each for each in dict.items(table) if each[0] not in _FIXED]
        self._dicts.append(
            (table, dict(dict.items(table)), [key for key, _ in found], [value for _, value in found], name)
        )
        return found

    def _name(self, table: Any, name: str, value: Any, words: str) -> None:
        known = self._named.setdefault(id(table), (table, words, {}))[2]
        self.size += name not in known
        known.setdefault(name, value)

    def _field(self, holder: Any, field: str, name: str) -> Any:
        value = _at(holder, field)
        self._fields.append((holder, field, value, name))
        return value

    def _of_class(self, kind: type, methods: bool) -> None:
        """Attributes of a class and of those that it derives from; with ``methods``, these and what they read."""
        for each in kind.__mro__:
            if _foreign(each.__module__) or (each, methods) in self._classes:
                continue
            self._classes.add((each, methods))
            table = vars(each)
            self._owners[id(table)] = each
            for name, value in list(table.items()):
                plain = value.__func__ if isinstance(value, staticmethod | classmethod) else value
                function = plain.fget if isinstance(plain, property) else plain
                function = plain.func if isinstance(plain, functools.cached_property) else function
                if isinstance(function, types.FunctionType):
                    if methods:
                        self._name(table, name, value, each.__name__)
                        self._functions.append(function)
                elif name[:2] != "__":
                    self._read(table, name, plain, each.__module__, each.__name__)

    def _read(self, table: Any, name: str, value: Any, home: str, words: str) -> None:
        """A global or a class's attribute that code of the module ``home`` reads; objects and functions of the same
        package are looked into."""
        if isinstance(value, types.FunctionType):
            if _kin(home, value.__module__):
                self._functions.append(value)
        elif isinstance(value, type):
            if not _kin(home, value.__module__):
                return
            self._waiting.append((value, 1, name))
        elif isinstance(value, _HOLDERS) or (_is_plain_object(value) and _kin(home, type(value).__module__)):
            self._waiting.append((value, 1, name))
        elif not isinstance(value, _PLAIN):
            return
        self._name(table, name, value, words)

    def _of_function(self, function: Any) -> None:
        """What a function's defaults and closure hold, and globals that it names, here and in other modules."""
        function = function.__func__ if isinstance(function, types.MethodType) else function
        if not isinstance(function, types.FunctionType) or not self._new(function):
            return
        self._functions.append(getattr(function, "__wrapped__", None))
        name, space = function.__name__, function.__globals__
        self._waiting.extend((each, 1, name) for each in (function.__defaults__, function.__kwdefaults__) if each)
        home = str(space.get("__name__"))
        for free, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
            value = _at(cell, "cell_contents")
            if value is _GONE or free == "__class__":
                continue
            self._field(cell, "cell_contents", f"{name}.{free}")
            if isinstance(value, types.FunctionType):
                self._functions.append(value)
            elif isinstance(value, _HOLDERS) or (_is_plain_object(value) and _kin(home, type(value).__module__)):
                self._waiting.append((value, 1, free))
        if not _foreign(home):
            self._of_names(set(_names(function.__code__)), space, home)

    def _of_names(self, names: set[str], space: dict[str, Any], home: str) -> None:
        spaces, known = [(space, home)], {id(space)}
        while spaces:
            space, words = spaces.pop()
            for name in names:
                value = space.get(name, _GONE)
                if value is _GONE or name[:2] == "__":
                    continue
                if not isinstance(value, types.ModuleType):
                    self._read(space, name, value, home, words)
                elif not _foreign(value.__name__) and id(vars(value)) not in known:
                    known.add(id(vars(value)))
                    spaces.append((vars(value), value.__name__))

    def changed(self) -> str | None:
        """What has another value, is new or gone, in words; None where all is as it was."""
        if not self._flat.hold() or any(_at(holder, field) is not _GONE for holder, field in self._absent):
            found = self._other_value()
            if found is not None:
                return found
            self._flat = self._identities()  # equal values, or what no code reads
        return next((name for array, held, name in self._arrays if array.tobytes() != held), None)

    def _identities(self) -> Identities:
        named = [(table, name) for table, _, known in self._named.values() for name in known]
        containers = [each[0] for each in (*self._dicts, *self._lists)]
        fields = [(holder, field) for holder, field, value, _ in self._fields if value is not _GONE]
        return Identities(containers, named, fields)

    def _other_value(self) -> str | None:
        """As ``changed``, one value after the other, but for arrays."""
        for table, copy, keys, values, name in self._dicts:
            if len(table) != len(copy):
                return f"attributes of {name}"
            # A class of its own may answer ``get`` otherwise.
            key = _other(dict.get, table, keys, values)
            if key is not None:
                return f"{name}.{key}"
        for listed, held, name in self._lists:
            if len(listed) != len(held) or not _alike(listed, held):
                return name
        for table, name, known in self._named.values():
            key = _other(type(table).get, table, known, known.values())
            if key is not None:
                return f"{name}.{key}"
        for holder, field, value, name in self._fields:
            if not _same(_at(holder, field), value):
                return f"{name}.{field}"
        return None

    def begin(self) -> None:
        """Before a call whose writes ``restored`` takes back: hooks come and go, and no record ends for them."""
        self._hooks_before = [(table, dict(table)) for table in self._hooks]

    def restored(self) -> str | None:
        """As ``changed``, also of tensors, parts and hooks; what was written since ``begin`` is put back as it was."""
        changed = self.changed()
        tables = [each for each in (*self._tables, *self._hooks_before) if not _is_copy(*each)]
        self._hooks_before = []
        if changed is None and not tables:
            return None
        for table, copy in (*tables, *((each[0], each[1]) for each in self._dicts)):
            if not _is_copy(table, copy):
                table.clear()
                table.update(copy)
        for values, held, _ in self._lists:
            if len(values) != len(held) or not _alike(values, held):
                values.clear()
                (values.update if isinstance(values, set) else values.extend)(held)
        for space, _, known in self._named.values():
            for name, value in known.items():
                if space.get(name, _GONE) is value:
                    continue
                if isinstance(space, dict):
                    space[name] = value
                else:
                    setattr(self._owners[id(space)], name, value)
        for holder, field, value, _ in self._fields:
            if _at(holder, field) is not value and value is not _GONE:
                object.__setattr__(holder, field, value)
        for array, bits, _ in self._arrays:
            if array.flags.writeable and not array.dtype.hasobject:
                array[...] = np.frombuffer(bits, array.dtype).reshape(array.shape)
        return changed or "a buffer, a weight, a part or a hook"


def _at(holder: Any, field: str) -> Any:
    try:
        return getattr(holder, field)
    except (AttributeError, ValueError):  # a slot, a cell that holds nothing
        return _GONE


def _other(get: Callable[..., Any], table: Any, keys: Iterable[Any], values: Iterable[Any]) -> str | None:
    """The first key whose value is another."""
    if all(map(operator.is_, map(get, itertools.repeat(table), keys), values)):
        return None
    return next(
        (str(key) for key, value in zip(keys, values, strict=True) if not _same(get(table, key, _GONE), value)), None
    )


def _alike(listed: Any, held: list[Any]) -> bool:
    return all(map(operator.is_, listed, held)) or all(map(_same, listed, held))


def _is_copy(table: dict[Any, Any], copy: dict[Any, Any]) -> bool:
    return len(table) == len(copy) and all(dict.get(table, key, _GONE) is value for key, value in copy.items())


def _slots(kind: type) -> Iterator[str]:
    for each in kind.__mro__:
        given = vars(each).get("__slots__", ())
        yield from (name for name in ((given,) if isinstance(given, str) else given) if name[:2] != "__")


def _same(one: Any, other: Any) -> bool:
    return one is other or (type(one) is type(other) and isinstance(one, _PLAIN) and _equal(one, other))


def _equal(one: Any, other: Any) -> bool:
    if isinstance(one, tuple):  # which may hold tensors
        return len(one) == len(other) and all(map(_same, one, other))
    return bool(one == other) and (bool(one) or repr(one) == repr(other))  # zeros have a sign


def _is_plain_object(value: Any) -> bool:
    """Whether a value is an object with fields of Python's, and no function, module or part of PyTorch."""
    if isinstance(value, types.FunctionType | types.ModuleType | types.MethodType | type):
        return False
    if not hasattr(value, "__dict__") and not any(True for _ in _slots(type(value))):
        return False
    return isinstance(value, _FIELDS) or not _foreign(type(value).__module__)


def _names(code: Any) -> Iterator[str]:
    yield from code.co_names
    for each in code.co_consts:
        if isinstance(each, types.CodeType):
            yield from _names(each)


def _foreign(home: str) -> bool:
    """Whether a module is no model's code: Python's own, PyTorch's, NumPy's, ours."""
    package = home.partition(".")[0]
    return package in _FOREIGN or package in sys.stdlib_module_names


def _kin(one: str, other: str | None) -> bool:
    return one.partition(".")[0] == (other or "").partition(".")[0]


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
