"""Warns of a plugin's faults once for each kind of fault, not once for each problem."""

from __future__ import annotations

import warnings

from ...api.errors import ConvDispatchWarning
from .loader import plugins

_reported: set[tuple[str, str]] = set()


def say(solver: str, kind: str, message: str, *, stacklevel: int) -> None:
    """Warn of a solver's fault, unless this process has warned of that kind of fault of its plugin."""
    key = plugins().provider(solver), kind
    if key in _reported:
        return
    _reported.add(key)
    warnings.warn(message, ConvDispatchWarning, stacklevel=stacklevel + 1)


def forget() -> None:
    """Forget which faults were reported, so that they are reported again."""
    _reported.clear()
