"""A table as lines of text: names and numbers are never cut, and a caption names the columns that do not fit.

Every command and ``explain`` print their tables by this module, on a terminal, in a pipe and in a string.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal
from unicodedata import east_asian_width

GAP = 2
"""The number of spaces between two columns of a table."""
UNBOUNDED = 1000
"""The width from which the output is no terminal (a pipe's console is 10,000 wide), so that no column is left out."""
PIPED_WIDTH = 120
"""The width to which sentences are wrapped if the output is no terminal."""
LEAST_WIDTHS = ((16, 24), (12, 18), (8, 12))
"""The least widths of a column of names and of sentences, whose cells may be folded; the later pairs are for very
narrow terminals."""
BREAKS = " ._-,;:/|"
"""The characters after which a word that is longer than its column is folded."""


@dataclass(frozen=True)
class Column:
    """``kind`` says whether cells may be folded. Columns of the highest ``rank`` are left out first; rank 0 stays."""

    title: str
    kind: Literal["name", "number", "sentence"] = "number"
    rank: int = 0


class Table:
    """Rows of cells under titles; ``lines`` lays them out, and rich's ``console.print(table)`` does by its width."""

    def __init__(self, *columns: Column, title: str = "") -> None:
        self.columns, self.title = columns, title
        self.rows: list[tuple[str, ...]] = []

    def add_row(self, *cells: str) -> None:
        """Add a row with a cell for each column, or for the first ones."""
        self.rows.append((*(cell.expandtabs(1) for cell in cells), *[""] * (len(self.columns) - len(cells))))

    def lines(self, width: int) -> Iterator[str]:
        """The lines of the title, the heading, the rows, and the omitted columns."""
        piped = width >= UNBOUNDED
        line_width = PIPED_WIDTH if piped else width
        yield from _wrapped(self.title, line_width)
        shown, widths = self._layout(line_width, piped)
        heading = [self.columns[index].title for index in shown]
        yield from self._row(heading, shown, widths)
        yield (" " * GAP).join("-" * size for size in widths)
        for row in self.rows:
            yield from self._row([row[index] for index in shown], shown, widths)
        absent = dict.fromkeys(column.title for index, column in enumerate(self.columns) if index not in shown)
        if absent:
            yield from _wrapped(f"No room for {', '.join(absent)}: a wider terminal or a file shows them.", line_width)

    def __str__(self) -> str:
        return "\n".join(self.lines(80))

    def __rich_console__(self, console: Any, options: Any) -> Iterator[Any]:
        from rich.text import Text

        style = "bold"
        for line in self.lines(options.max_width):
            style = "" if line.startswith("-") and not line.strip("- ") else style
            yield Text(line, style=style, no_wrap=True, overflow="ignore")

    def _layout(self, room: int, piped: bool) -> tuple[list[int], list[int]]:
        """The indices of the columns that are shown, and their widths."""
        natural = [self._natural_width(index) for index in range(len(self.columns))]
        shown = list(range(len(self.columns)))
        for names, sentences in LEAST_WIDTHS:
            limits = {"name": 10**6 if piped else names, "sentence": sentences, "number": 10**6}
            least = [min(size, limits[column.kind]) for size, column in zip(natural, self.columns, strict=True)]
            while _total(least, shown) > room and not piped:
                removable = [index for index in shown if self.columns[index].rank]
                if not removable:
                    break
                shown.remove(max(removable, key=lambda place: (self.columns[place].rank, place)))
            if piped or _total(least, shown) <= room:
                break
        while _total(least, shown) > room and not piped and len(shown) > 1:
            shown.pop()
        widths = {index: least[index] for index in shown}
        spare = room - _total(least, shown)
        while spare > 0 and (folded := [index for index in shown if widths[index] < natural[index]]):
            widths[min(folded, key=lambda place: widths[place])] += 1
            spare -= 1
        return shown, [widths[index] for index in shown]

    def _natural_width(self, index: int) -> int:
        """The width at which no cell of a column is folded; the title may be folded between words."""
        cells = [line for row in self.rows for line in row[index].split("\n")]
        return max(map(text_width, (*cells, *self.columns[index].title.split())), default=1)

    def _row(self, cells: Sequence[str], shown: Sequence[int], widths: Sequence[int]) -> Iterator[str]:
        folded = [list(fold(cell, size)) for cell, size in zip(cells, widths, strict=True)]
        for number in range(max(map(len, folded), default=0)):
            parts = []
            for index, pieces, size in zip(shown, folded, widths, strict=True):
                piece = pieces[number] if number < len(pieces) else ""
                blank = " " * (size - text_width(piece))
                parts.append(blank + piece if self.columns[index].kind == "number" else piece + blank)
            yield (" " * GAP).join(parts).rstrip()


def _total(sizes: Sequence[int], shown: Sequence[int]) -> int:
    return sum(sizes[index] for index in shown) + GAP * (len(shown) - 1)


def _wrapped(text: str, room: int) -> list[str]:
    return textwrap.wrap(text, room, break_on_hyphens=False)


def text_width(text: str) -> int:
    """Return the columns that a terminal uses for a text: two for a wide East Asian character."""
    return len(text) if text.isascii() else sum(2 if east_asian_width(character) in "WF" else 1 for character in text)


def fold(text: str, room: int) -> Iterator[str]:
    """Break a text into lines of at most ``room`` columns: between words, and a long word after one of BREAKS."""
    for line in text.split("\n"):
        rest = line
        while text_width(rest) > room:
            fits = next(size for size in range(len(rest), 0, -1) if text_width(rest[:size]) <= room or size == 1)
            space = rest.rfind(" ", 0, fits + 1)
            break_at = max((rest.rfind(character, 0, fits) for character in BREAKS), default=-1) + 1
            cut = space if space > 0 else break_at if break_at > fits // 2 else fits
            yield rest[:cut].rstrip()
            rest = rest[cut:].lstrip(" ")
        yield rest


def columns(kind: Literal["name", "number", "sentence"], *titles: str, rank: int = 0) -> Iterable[Column]:
    """Return a column of one kind and rank for each title."""
    return [Column(title, kind, rank) for title in titles]
