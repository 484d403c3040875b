"""Recognises dialects, and reads files of problems line by line."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

from ...api.errors import InvalidProblem
from ...api.problem import MATHS
from ...device import plainfile
from .. import shapes
from ..shapes import Entry
from . import benchdnn, deepbench, miopen

__all__ = ["DIALECTS", "Entry", "detect", "read_file", "read_line"]

_OWN = re.compile(rf"(fwd|bwd_data|bwd_weights|f32|f64|f16|bf16|nchw|nhwc|{'|'.join(MATHS)})_|[^+]*\+|\S*_r[0-9]")
# Only benchdnn's text has underscores, names, options, output sizes and dilations counted from 0.
_BENCHDNN = re.compile(
    r'(\S*benchdnn\s+)?--|\S*([0-9]_|_[a-z]|n"|o[dhw][0-9]|d[dhw]0(?![0-9]))|[a-z0-9]*[0-9]n[A-Za-z:]'
)
_LETTERS_ALONE = "letters alone"
_TRACE = "convdispatch,1,"
"""The beginning of each line that the trace layer writes."""
_HEADER = "convdispatch,version,"
"""The beginning of a trace file's first line, which names the columns."""
_TRACED = re.compile(r"(?:\([^()]*\)|[^,()])*")
_MAX_LINE = 10_000
"""The most characters of a line."""


def _kind(text: str) -> str:
    text = text.strip()
    # This project's own reader refuses a line that is too long, and reads the lines of a trace file.
    if len(text) > _MAX_LINE or text.startswith((_TRACE, _HEADER)):
        return "convdispatch"
    if deepbench.TEXT.fullmatch(text):
        return "deepbench"
    if miopen.COMMAND.search(text):
        return "miopen"
    first_word = text.split(maxsplit=1)[0] if text else ""
    if not first_word.startswith("-") and _OWN.match(first_word):
        return "convdispatch"
    return "benchdnn" if _BENCHDNN.match(text if first_word.endswith("benchdnn") else first_word) else _LETTERS_ALONE


def detect(text: str) -> str:
    """The dialect of one text; letters alone, which are valid in two dialects, count as this project's."""
    kind = _kind(text)
    return "convdispatch" if kind == _LETTERS_ALONE else kind


def _read_own(line: str) -> list[Entry]:
    """The problem of one line in this project's own text, or of one line of a trace. Raises InvalidProblem."""
    if line.startswith(_HEADER):
        return []
    if line.startswith(_TRACE):
        # The text ends at a comma outside parentheses, because an activation's parameters are separated by commas.
        line = _TRACED.match(line, len(_TRACE))[0]
    return [shapes.read_line(line)]


_READERS: dict[str, Callable[[str], list[Entry]]] = {
    "convdispatch": _read_own,
    "benchdnn": lambda line: benchdnn.read_line(line)[0],
    "miopen": miopen.read_line,
    "deepbench": deepbench.read_line,
}
DIALECTS = tuple(_READERS)


def read_line(line: str, dialect: str) -> list[Entry]:
    """The problems of one line in a dialect. Raises InvalidProblem."""
    if len(line) > _MAX_LINE:
        raise InvalidProblem(f"a line has at most {_MAX_LINE} characters, got {len(line)}: {line[:40]!r}...")
    try:
        return _READERS[dialect](line) if line else []
    except InvalidProblem as error:
        raise InvalidProblem(_shortened(error)) from None


def read_file(path: Path | str, dialect: str | None = None) -> Iterator[Entry]:
    """The problems of a file with their names and counts: one a line, ``#`` begins a comment.

    Lines may differ in dialect; letters alone are benchdnn's where another line of the file is. benchdnn's knobs hold
    from their line on, and its ``--batch`` files are read beside this one. Raises InvalidProblem naming file and line.
    """
    yield from _read_text(Path(path), dialect, benchdnn.Knobs(), ())


def _read_text(path: Path, dialect: str | None, knobs: benchdnn.Knobs, within: tuple[Path, ...]) -> Iterator[Entry]:
    if path in within:
        raise InvalidProblem(f"{path} includes itself")
    try:
        text = plainfile.read_text(path)
        lines = [_uncomment(line) if len(line) <= _MAX_LINE else line for line in text.splitlines()]
    except (OSError, ValueError) as error:  # Text that is not UTF-8, or a NUL character in the path, raises ValueError.
        raise InvalidProblem(f"cannot read {path}: {error}") from error

    def include(name: str, current: benchdnn.Knobs) -> list[Entry]:
        return list(_read_text(path.parent / name, "benchdnn", current, (*within, path)))

    kinds = [dialect or _kind(line) for line in lines]
    default_kind = "benchdnn" if "benchdnn" in kinds else "convdispatch"
    for number, (line, kind) in enumerate(zip(lines, kinds), 1):
        if not line:
            continue
        try:
            kind = default_kind if kind == _LETTERS_ALONE else kind
            if kind == "benchdnn" and len(line) <= _MAX_LINE:
                entries, knobs = benchdnn.read_line(line, knobs, include)
            else:
                entries = read_line(line, kind)
        except InvalidProblem as error:
            raise InvalidProblem(f"{path}:{number}: {_shortened(error)}") from None
        yield from entries


def _shortened(error: InvalidProblem) -> str:
    """The text of an error, shortened, because it may quote a very long line."""
    text = str(error)
    return text if len(text) <= 800 else f"{text[:500]} ... {text[-200:]}"


def _uncomment(line: str) -> str:
    """The line up to a ``#`` or ``//`` that begins it or follows a space, outside quotes."""
    match = re.match(r'((?:"[^"]*"|(?!(?:^|(?<=\s))(?:#|//)).)*)', line)
    return match[0].strip() if match else ""
