"""The exception that leaves a call to the framework's own kernel, with the reason."""

from __future__ import annotations

from collections.abc import Callable


class Fallback(Exception):
    """Leaves the call to the framework's own kernel; the message is the reason. ``lasting``: all such calls are left.

    ``again(operator)`` is called before each further call like it: it returns whether that call is left to the
    framework too, and then counts it.
    """

    def __init__(self, reason: str, lasting: bool = True, again: Callable[[str], bool] | None = None) -> None:
        super().__init__(reason)
        self.lasting, self.again = lasting, again
