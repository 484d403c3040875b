"""How far a long command is: a bar on a terminal, elsewhere a line every few seconds, so that a log shows it too."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

__all__ = ["EVERY_S", "progress"]

EVERY_S = 10.0
"""Seconds between lines where there is no terminal."""


@contextmanager
def progress(console: Console | None, title: str, total: int) -> Iterator[Callable[[str, int], None]]:
    """``step(words, advance)`` says what is done now, unless the words are empty, and counts; None shows nothing."""
    if console is None:
        yield lambda words, advance: None
    elif console.is_terminal:
        columns = (
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
        )
        with Progress(*columns, TimeRemainingColumn(), console=console, transient=True) as shown:
            task = shown.add_task(title, total=total)

            def step(words: str, advance: int) -> None:
                shown.update(task, advance=advance, **({"description": words[:60]} if words else {}))

            yield step
    else:
        yield _Lines(console, title, total)


class _Lines:
    def __init__(self, console: Console, title: str, total: int) -> None:
        self._console, self._title, self._total = console, title, total
        self._began = self._last = time.monotonic()
        self._done, self._words = 0, ""

    def __call__(self, words: str, advance: int) -> None:
        self._done, self._words = self._done + advance, words or self._words
        now = time.monotonic()
        if now - self._last >= EVERY_S:
            self._last = now
            said = f"{self._title}: {self._done} of {self._total}, {now - self._began:.0f} s: {self._words}"
            self._console.print(said, markup=False, highlight=False)
