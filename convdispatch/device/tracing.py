"""Marks the operations that nets are made of, so that a trace can record them instead of running them.

An operation that another operation calls is a part of it, and not recorded.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import threading
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

Function = TypeVar("Function", bound=Callable[..., Any])
Note = Callable[[Callable[..., Any], tuple[Any, ...], dict[str, Any]], Any]


class _Thread(threading.local):
    note: Note | None = None
    source: str = ""


_thread = _Thread()


def operation(function: Function) -> Function:
    """Makes ``function`` an operation: inside ``tracing`` the trace's function is called instead."""

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        note = _thread.note
        return function(*args, **kwargs) if note is None else note(function, args, kwargs)

    return call  # type: ignore[return-value]


_signature = functools.lru_cache(maxsize=256)(inspect.signature)


def named_arguments(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> dict[str, Any] | None:
    """The arguments of an operation's call by their names; None where it takes any number of positional ones."""
    signature, named = _signature(function), dict[str, Any]()
    for name, value in signature.bind(*args, **kwargs).arguments.items():
        kind = signature.parameters[name].kind
        if kind is inspect.Parameter.VAR_POSITIONAL:
            return None
        named |= value if kind is inspect.Parameter.VAR_KEYWORD else {name: value}
    return named


@contextlib.contextmanager
def tracing(note: Note | None) -> Iterator[None]:
    """Inside the block, operations of this thread call ``note(function, args, kwargs)``; None lets them run."""
    outer_note, _thread.note = _thread.note, note
    try:
        yield
    finally:
        _thread.note = outer_note


@contextlib.contextmanager
def naming(name: str) -> Iterator[None]:
    """Inside the block, this thread's operations belong to ``name``, such as a file's node; the outermost name wins."""
    outer_source = _thread.source
    _thread.source = outer_source or name
    try:
        yield
    finally:
        _thread.source = outer_source


def source() -> str:
    """The name for which this thread's operations are called, such as a file's node; empty where none is set."""
    return _thread.source


def map_structure(kinds: Any, change: Callable[[Any], Any], structure: Any) -> Any:
    """An operation's arguments or results with every instance of ``kinds`` in lists, tuples and dicts replaced by
    ``change(instance)``."""
    if isinstance(structure, kinds):
        return change(structure)
    if isinstance(structure, list | tuple):
        return type(structure)(map_structure(kinds, change, part) for part in structure)
    if isinstance(structure, dict):
        return {key: map_structure(kinds, change, part) for key, part in structure.items()}
    return structure
