"""The exception that leaves a call to the framework's own kernel, with the reason."""

from __future__ import annotations

from collections.abc import Callable


class Fallback(Exception):
    """Leaves the call to the framework's own kernel; the text says why. ``lasting`` where each such call will be.

    ``again(operator)``, where it is given, is asked before each further call like it: whether that is the framework's
    too, and then it is counted.
    """

    def __init__(self, reason: str, lasting: bool = True, again: Callable[[str], bool] | None = None) -> None:
        super().__init__(reason)
        self.lasting, self.again = lasting, again
