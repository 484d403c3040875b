"""The object that a framework integration's ``enable`` returns."""

from __future__ import annotations

from collections.abc import Callable


class Enabled:
    """The object that ``enable`` returns: already in force; used as a context manager, it ends with the block."""

    def __init__(self, restore: Callable[[], None]) -> None:
        """``restore()`` puts in force what was before."""
        self._restore = restore

    def __enter__(self) -> Enabled:
        return self

    def __exit__(self, *_: object) -> None:
        self._restore()
