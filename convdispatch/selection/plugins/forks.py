"""Detects a plugin that forks the process while it is imported or queried.

Two processes would go on from there with the same work, on the same pipes and the same device: the new one ends where
the plugin's code does, and the old one knows whose fault it is. A ``subprocess`` is no fork of this kind.
"""

from __future__ import annotations

import os
import threading

_mine = threading.local()


def count() -> int:
    """Forks that this thread has made."""
    return getattr(_mine, "count", 0)


def end_fork(process: int) -> None:
    """End this process where it is not ``process``, by whose ``os.getpid()`` the plugin was entered."""
    if os.getpid() != process:
        os._exit(0)


def note(forks: int) -> None:
    """Count for this thread what another thread did in its place."""
    _mine.count = count() + forks


def _noted() -> None:
    note(1)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_parent=_noted)
