"""Plugins, verdicts, records and decisions as another process would see them."""

from __future__ import annotations

from convdispatch.selection import dispatch
from convdispatch.selection.plugins import loader, verdicts
from convdispatch.selection.records import perfdb


def read_anew() -> None:
    """What this process has read of them is forgotten."""
    verdicts.refresh()
    perfdb.perfdb.cache_clear()
    loader.plugins.cache_clear()
    dispatch.forget()
