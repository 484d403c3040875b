"""How far a long command is: a bar on a terminal, elsewhere a line every ten seconds, so that a log shows it too."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Progress as Bars

EVERY_S = 10.0
"""Seconds between two lines of progress if the output is no terminal."""


class Progress:
    """Counts steps. Calling it with ``(words, advance)`` says what is done now, unless the words are empty, and counts.

    ``changed`` is called after each change.
    """

    def __init__(self, total: int) -> None:
        self.total, self.done, self.words = total, 0, ""
        self.changed: Callable[[], None] = lambda: None
        self._began = time.monotonic()

    def __call__(self, words: str, advance: int) -> None:
        self.words, self.done = words or self.words, self.done + advance
        self.changed()

    def resize(self, total: int) -> None:
        """Set the number of steps, where it was not known at the beginning."""
        self.total = total
        self.changed()

    def line(self, title: str) -> str:
        """The title, the counts, the seconds since the beginning and what is done now, in one line."""
        return f"{title}: {self.done} of {self.total}, {time.monotonic() - self._began:.0f} s: {self.words}"


@contextmanager
def progress(console: Console | None, title: str, total: int) -> Iterator[Progress]:
    """Inside the block a Progress is shown on the console; without a console it only counts."""
    counted = Progress(total)
    if console is None:
        yield counted
    elif console.is_terminal:
        columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn())
        with Bars(*columns, TimeElapsedColumn(), TimeRemainingColumn(), console=console, transient=True) as shown:
            task = shown.add_task(title, total=total)

            def change() -> None:
                words = (counted.words or title)[:60]
                shown.update(task, total=counted.total, completed=counted.done, description=words)

            counted.changed = change
            yield counted
    else:
        ended = threading.Event()
        teller = threading.Thread(target=_print_lines, args=(console, title, counted, ended), daemon=True)
        teller.start()
        try:
            yield counted
        finally:
            ended.set()
            teller.join(1.0)


def _print_lines(console: Console, title: str, counted: Progress, ended: threading.Event) -> None:
    """Print a line every ten seconds, however long a single step takes."""
    while not ended.wait(EVERY_S):
        console.print(counted.line(title), markup=False, highlight=False, soft_wrap=True)
