"""Marks the operations that nets are made of, so that a trace can note them instead of letting them run.

An operation called by another is part of it and not noted.
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
    """Makes ``function`` an operation: where a trace is in force, the trace is called and returns the result."""

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        note = _thread.note
        return function(*args, **kwargs) if note is None else note(function, args, kwargs)

    return call  # type: ignore[return-value]


_signature = functools.lru_cache(maxsize=256)(inspect.signature)


def bound(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> inspect.BoundArguments:
    """The arguments of an operation's call by their names."""
    return _signature(function).bind(*args, **kwargs)


@contextlib.contextmanager
def tracing(note: Note | None) -> Iterator[None]:
    """Inside the block, operations of this thread call ``note(function, args, kwargs)``; None lets them run."""
    outer, _thread.note = _thread.note, note
    try:
        yield
    finally:
        _thread.note = outer


@contextlib.contextmanager
def naming(name: str) -> Iterator[None]:
    """Inside the block, operations of this thread are ``name``'s, such as a file's node; the outermost name holds."""
    outer = _thread.source
    _thread.source = outer or name
    try:
        yield
    finally:
        _thread.source = outer


def source() -> str:
    """The name for which this thread's operations are called, such as a file's node; empty where none is set."""
    return _thread.source


def map_structure(kinds: Any, change: Callable[[Any], Any], structure: Any) -> Any:
    """An operation's arguments or results with everything of ``kinds`` in lists, tuples and dicts replaced by what
    ``change`` answers."""
    if isinstance(structure, kinds):
        return change(structure)
    if isinstance(structure, list | tuple):
        return type(structure)(map_structure(kinds, change, part) for part in structure)
    if isinstance(structure, dict):
        return {key: map_structure(kinds, change, part) for key, part in structure.items()}
    return structure
