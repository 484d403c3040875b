"""Shortens other code's exceptions and texts, such as a plugin's fault or a driver's message, to fit a sentence."""

from __future__ import annotations

import logging
import re
import sys
import traceback

from . import settings

_LOG = logging.getLogger("convdispatch")
"""The logger that gets the whole traceback of each fault, at level DEBUG."""
_LIBRARIES = {
    "convdispatch",
    "numpy",
    "pyopencl",
    "pytools",
    "mako",
    "pluggy",
    "torch",
    "jax",
    *sys.stdlib_module_names,
}
"""Packages that are no plugin; the last frame of another package is the plugin's."""


def words(error: BaseException) -> str:
    """An exception's type, the first line of its message (at most 300 characters) and its line in a plugin, as part of
    a sentence. CONVDISPATCH_TRACEBACK=1 prints the whole traceback too."""
    try:
        lines = str(error)[:100_000].strip().splitlines()
    except BaseException:  # str() of a plugin's exception may itself raise
        lines = ["its message could not be read"]
    first = plain(lines[0], 300) if lines else ""
    kind = plain(type(error).__name__, 100)
    _LOG.debug("%s: %s", kind, first, exc_info=error)
    if settings.TRACEBACK.value():
        traceback.print_exception(error)
    return (f"{kind}: {first}" if first else kind) + _location(error)


def _location(error: BaseException) -> str:
    """The last line of a plugin's code in an exception's traceback, as `` (solver.py:12)``; empty if there is none."""
    location, frame = "", error.__traceback__
    while frame is not None:
        module = str(frame.tb_frame.f_globals.get("__name__", ""))
        if module.partition(".")[0] not in _LIBRARIES:
            name = frame.tb_frame.f_code.co_filename.replace("\\", "/").rpartition("/")[2]
            location = f" ({plain(name, 100)}:{frame.tb_lineno})"
        frame = frame.tb_next
    return location


_CONTROL = re.compile(r"\x1b[\]PX^_].*?(?:\x07|\x1b\\|\x9c|$)|(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]?|\x1b.?", re.DOTALL)
"""Matches a terminal's escape sequences: those with a text (OSC, DCS, ...), those of cursor and colour, any other."""


def plain(text: str, most: int = 500) -> str:
    """Other code's text in one line of at most ``most`` characters, without a terminal's escape sequences."""
    if len(text) <= most and text.isprintable():
        return text.strip()
    cleaned = _CONTROL.sub("", text[: 20 * most])
    cleaned = "".join(c if c.isprintable() else " " for c in cleaned).strip()
    return cleaned if len(cleaned) <= most else cleaned[: most - 3] + "..."
