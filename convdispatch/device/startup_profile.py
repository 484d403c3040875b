"""Where the time of a first call goes: compile, load, template, selection, packing, by layer.

Code that does such work says so by ``phase``, and for whom by ``layer``; ``noting`` collects both, in all threads.
Nested phases count once: the time of an inner one is taken out of the outer one. Without ``noting`` nothing is kept.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

PHASES = {
    "plugins": "find and import plugins",
    "selection": "ask solvers, rank them",
    "template": "render kernel text",
    "compile": "compile kernel text",
    "waiting": "wait for compilers that work for several layers",
    "load": "load compiled kernels",
    "assemble": "have a driver make machine code, for CUDA's streams or of what is loaded next",
    "plan": "make plans of programs",
    "packing": "pack constant weights",
}
"""The names of the phases, and a description of each."""


@dataclass
class Spent:
    """How often a phase ran for a layer, and its own seconds in all."""

    count: int = 0
    seconds: float = 0.0


@dataclass
class Notes:
    """The time spent, by (layer, phase); a layer is a problem's text, an operation's name, or empty."""

    spent: dict[tuple[str, str], Spent] = field(default_factory=dict)

    def of(self, phase: str) -> Spent:
        """A phase over all layers."""
        found = [spent for (_, name), spent in self.spent.items() if name == phase]
        return Spent(sum(one.count for one in found), sum(one.seconds for one in found))

    @property
    def layers(self) -> list[str]:
        """The layers, in the order of their first phase."""
        return list(dict.fromkeys(name for name, _ in self.spent))


class _Thread(threading.local):
    layer = ""
    inner = 0.0
    """Seconds of the inner phases that ended inside the present phase."""


_thread = _Thread()
_noting: list[Notes] = []
_lock = threading.Lock()


@contextlib.contextmanager
def phase(name: str) -> Iterator[None]:
    """The block is work of a phase, one of PHASES."""
    if not _noting:
        yield
        return
    outer, _thread.inner, start = _thread.inner, 0.0, time.perf_counter()
    try:
        yield
    finally:
        whole = time.perf_counter() - start
        own, _thread.inner = whole - _thread.inner, outer + whole
        with _lock:
            for notes in _noting:
                spent = notes.spent.setdefault((_thread.layer, name), Spent())
                spent.count, spent.seconds = spent.count + 1, spent.seconds + own


@contextlib.contextmanager
def layer(name: str) -> Iterator[None]:
    """Inside the block this thread works for a layer; an outer block's layer takes precedence."""
    outer = _thread.layer
    _thread.layer = outer or name
    try:
        yield
    finally:
        _thread.layer = outer


def current_layer() -> str:
    """The layer for which this thread works, to be passed to a thread that works for it."""
    return _thread.layer


@contextlib.contextmanager
def noting() -> Iterator[Notes]:
    """Collect what all threads spend inside the block."""
    notes = Notes()
    with _lock:
        _noting.append(notes)
    try:
        yield notes
    finally:
        with _lock:
            _noting[:] = [other for other in _noting if other is not notes]
