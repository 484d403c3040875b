"""Where the time of a first call goes: compile, load, template, selection, packing, by layer.

Code that does such work is in a block ``phase``, inside a block ``layer`` that names the layer it works for; ``noting``
collects both in all threads. An outer phase's time excludes its inner phases. Without ``noting`` nothing is recorded.
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
    """How often a phase ran for a layer, and its total seconds without inner phases."""

    count: int = 0
    seconds: float = 0.0


@dataclass
class Notes:
    """The time spent, by (layer, phase); a layer is a problem's text, an operation's name, or empty."""

    spent: dict[tuple[str, str], Spent] = field(default_factory=dict)

    def of(self, phase: str) -> Spent:
        """The time spent in a phase, summed over all layers."""
        entries = [spent for (_, name), spent in self.spent.items() if name == phase]
        return Spent(sum(entry.count for entry in entries), sum(entry.seconds for entry in entries))

    @property
    def layers(self) -> list[str]:
        """The layers, in the order of their first phase."""
        return list(dict.fromkeys(name for name, _ in self.spent))


class _Thread(threading.local):
    layer = ""
    inner = 0.0
    """Seconds of inner phases that have ended inside the phase that runs now."""


_thread = _Thread()
_noting: list[Notes] = []
_lock = threading.Lock()


@contextlib.contextmanager
def phase(name: str) -> Iterator[None]:
    """Measures the block as work of a phase, one of PHASES."""
    if not _noting:
        yield
        return
    outer_seconds, _thread.inner, start = _thread.inner, 0.0, time.perf_counter()
    try:
        yield
    finally:
        phase_seconds = time.perf_counter() - start
        own_seconds, _thread.inner = phase_seconds - _thread.inner, outer_seconds + phase_seconds
        with _lock:
            for notes in _noting:
                spent = notes.spent.setdefault((_thread.layer, name), Spent())
                spent.count, spent.seconds = spent.count + 1, spent.seconds + own_seconds


@contextlib.contextmanager
def layer(name: str) -> Iterator[None]:
    """Inside the block this thread works for a layer; an outer block's layer takes precedence."""
    outer_layer = _thread.layer
    _thread.layer = outer_layer or name
    try:
        yield
    finally:
        _thread.layer = outer_layer


def current_layer() -> str:
    """The layer for which this thread works, to be passed to a thread that works for it."""
    return _thread.layer


@contextlib.contextmanager
def noting() -> Iterator[Notes]:
    """Collect the time that all threads spend in phases inside the block."""
    notes = Notes()
    with _lock:
        _noting.append(notes)
    try:
        yield notes
    finally:
        with _lock:
            _noting[:] = [active for active in _noting if active is not notes]
