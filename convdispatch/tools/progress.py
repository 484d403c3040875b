"""How far a long command is and what remains: a bar on a terminal, elsewhere a line every ten seconds, so that a log
shows it too.

What remains is told from the first moment where the caller expects so many seconds a step; what steps really took
replaces the expectation as they end.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, ProgressColumn, Task, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bars
from rich.text import Text

EVERY_S = 10.0
"""Seconds between two lines of progress if the output is no terminal."""


class Progress:
    """Counts steps. Calling it with ``(words, advance)`` says what is done now, unless the words are empty, and counts.

    ``expected_s`` is what a step is thought to take; ``clock`` counts seconds.
    """

    def __init__(self, total: int, expected_s: float | None = None, clock: Callable[[], float] = time.monotonic):
        self.total, self.done, self.words = total, 0, ""
        self._expected_s, self._clock = expected_s, clock
        self.began = self._first = self._last = clock()
        self._given = 0
        self._changed: Callable[[], None] = lambda: None

    def __call__(self, words: str, advance: int) -> None:
        self.words = words or self.words
        if advance:
            self.done, self._last = self.done + advance, self._clock()
        self._changed()

    def begin(self, expected_s: float | None = None, done: int = 0) -> None:
        """Start to measure steps: time until now was preparation, and ``done`` steps needed no work."""
        self._expected_s = self._expected_s if expected_s is None else expected_s
        self._first = self._last = self._clock()
        self.done = self._given = self.done + done
        self._changed()

    def resize(self, total: int) -> None:
        """Set the number of steps, where it was not known at the beginning."""
        self.total = total
        self._changed()

    @property
    def elapsed_s(self) -> float:
        """Seconds since the command began."""
        return self._clock() - self.began

    @property
    def remaining_s(self) -> float | None:
        """Seconds that are left; None while nothing is expected and no step has ended.

        A step takes the mean of those that ended, among which the expectation counts as one. The one at work takes at
        least what it has taken already.
        """
        steps_left, ended = self.total - self.done, self.done - self._given
        if steps_left <= 0:
            return 0.0
        spent = self._last - self._first
        if self._expected_s is not None:
            step_s = (spent + self._expected_s) / (ended + 1)
        elif ended:
            step_s = spent / ended
        else:
            return None
        current_s = self._clock() - self._last
        return max(step_s - current_s, 0.0) + max(step_s, current_s / (ended + 1)) * (steps_left - 1)

    def line(self, title: str) -> str:
        """The title, the counts, the times and what is done now, in one line."""
        return f"{title}: {self.done} of {self.total}, {duration(self.elapsed_s)}, {self.remains}: {self.words}"

    @property
    def remains(self) -> str:
        """Return the remaining time as text."""
        remaining = self.remaining_s
        if remaining is None:
            return "what remains is not known yet"
        # The remaining time is rounded to whole seconds: a step that ends within the second is not late.
        overdue = self.done < self.total and round(remaining) == 0 and self._clock() - self._last >= 1
        return "it takes longer than expected" if overdue else f"about {duration(remaining)} left"


def duration(seconds: float) -> str:
    """``40 s``, ``3:05``, ``2:00:09``."""
    total_s = round(seconds)
    if total_s < 60:
        return f"{total_s} s"
    minutes, last_seconds = divmod(total_s, 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{last_seconds:02}" if hours else f"{minutes}:{last_seconds:02}"


@contextmanager
def progress(console: Console | None, title: str, total: int, expected_s: float | None = None) -> Iterator[Progress]:
    """Inside the block a Progress is shown on the console; without a console it only counts."""
    counted = Progress(total, expected_s)
    if console is None:
        yield counted
    elif console.is_terminal:
        columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn())
        with Bars(*columns, TimeElapsedColumn(), _RemainingColumn(counted), console=console, transient=True) as shown:
            task = shown.add_task(title, total=total)

            def change() -> None:
                shown.update(
                    task, total=counted.total, completed=counted.done, description=(counted.words or title)[:60]
                )

            counted._changed = change
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


class _RemainingColumn(ProgressColumn):
    """A column with the remaining time, which it knows before the second step has ended, unlike rich's own column."""

    def __init__(self, counted: Progress) -> None:
        super().__init__()
        self._counted = counted

    def render(self, task: Task) -> Text:
        is_known = self._counted.remaining_s is not None
        return Text(self._counted.remains.removeprefix("about ") if is_known else "", style="progress.remaining")
