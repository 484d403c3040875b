"""Why a call is the framework's own kernel's."""

from __future__ import annotations

__all__ = ["Fallback"]


class Fallback(Exception):
    """The call is the framework's own kernel's; the text says why. ``lasting`` where each such call will be."""

    def __init__(self, reason: str, lasting: bool = True) -> None:
        super().__init__(reason)
        self.lasting = lasting
