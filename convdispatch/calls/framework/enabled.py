"""The object that a framework integration's ``enable`` returns."""

from __future__ import annotations

from collections.abc import Callable


class Enabled:
    """The object that ``enable`` returns. The integration is enabled already; as a context manager, it is disabled at
    the end of the block."""

    def __init__(self, restore: Callable[[], None]) -> None:
        """``restore()`` restores the state before ``enable``."""
        self._restore = restore

    def __enter__(self) -> Enabled:
        return self

    def __exit__(self, *_: object) -> None:
        self._restore()
