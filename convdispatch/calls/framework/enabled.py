"""What a door's ``enable`` answers."""

from __future__ import annotations

from collections.abc import Callable


class Enabled:
    """What ``enable`` answers: in force already; as a context manager, until the block ends."""

    def __init__(self, restore: Callable[[], None]) -> None:
        """``restore()`` puts in force what was before."""
        self._restore = restore

    def __enter__(self) -> Enabled:
        return self

    def __exit__(self, *_: object) -> None:
        self._restore()
