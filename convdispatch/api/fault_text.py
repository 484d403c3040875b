"""Somebody else's exceptions and texts, in words that fit a sentence: a plugin's fault, a driver's message."""

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
"""Packages that are no plugin: a plugin's own frame is the last one of another package."""


def words(error: BaseException) -> str:
    """An exception's type, the first line of its message, at most 300 characters, and where in a plugin it came from,
    for a sentence. CONVDISPATCH_TRACEBACK=1 prints the whole traceback too."""
    try:
        lines = str(error)[:100_000].strip().splitlines()
    except BaseException:  # str() of a plugin's exception may itself raise
        lines = ["its message could not be read"]
    first = plain(lines[0], 300) if lines else ""
    kind = plain(type(error).__name__, 100)
    _LOG.debug("%s: %s", kind, first, exc_info=error)
    if settings.TRACEBACK.value():
        traceback.print_exception(error)
    return (f"{kind}: {first}" if first else kind) + _place(error)


def _place(error: BaseException) -> str:
    """The last line of a plugin's that an exception went through, as `` (solver.py:12)``; empty where there is none."""
    place, frame = "", error.__traceback__
    while frame is not None:
        module = str(frame.tb_frame.f_globals.get("__name__", ""))
        if module.partition(".")[0] not in _LIBRARIES:
            name = frame.tb_frame.f_code.co_filename.replace("\\", "/").rpartition("/")[2]
            place = f" ({plain(name, 100)}:{frame.tb_lineno})"
        frame = frame.tb_next
    return place


_CONTROL = re.compile(r"\x1b[\]PX^_].*?(?:\x07|\x1b\\|\x9c|$)|(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]?|\x1b.?", re.DOTALL)
"""A terminal's sequences: those with a text of their own (OSC, DCS, ...), those of cursor and colour, any other."""


def plain(text: str, most: int = 500) -> str:
    """Somebody else's text in one line of at most ``most`` characters, without what steers a terminal."""
    if len(text) <= most and text.isprintable():
        return text.strip()
    found = _CONTROL.sub("", text[: 20 * most])
    found = "".join(c if c.isprintable() else " " for c in found).strip()
    return found if len(found) <= most else found[: most - 3] + "..."
