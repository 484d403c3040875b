"""Detects a plugin that forks the process while it is imported or queried.

After a fork two processes would continue with the same work, on the same pipes and device. So the new process ends as
soon as the plugin's code returns, and the old one reports the plugin. A ``subprocess`` is no fork of this kind.
"""

from __future__ import annotations

import os
import threading

_thread_counts = threading.local()


def count() -> int:
    """The number of forks that this thread has made."""
    return getattr(_thread_counts, "count", 0)


def end_fork(process: int) -> None:
    """End this process if it is a fork: its id is not ``process``, the id from before the plugin's code ran."""
    if os.getpid() != process:
        os._exit(0)


def note(forks: int) -> None:
    """Count forks of another thread, which ran plugin code for this one, for this thread."""
    _thread_counts.count = count() + forks


def _count_fork() -> None:
    note(1)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_parent=_count_fork)
