"""Ctrl-C and SIGTERM end a command within two seconds and in one line, whatever it is at.

Python raises KeyboardInterrupt only between its own instructions: a kernel or a compiler that never comes back holds it
up for ever. So a second thread hears of the signal too, and ends the process where the first one does not.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterator

import click

from ...measurement.compiling import under_way
from .output import give_up, ours

DEAF_S = 1.5
"""Seconds within which the main thread notices a signal, unless a driver's call blocks it."""
ENDING_S = 8.0
"""Seconds that a command may take to end after a signal: to write a checkpoint or a report."""
_ENDING = (signal.SIGINT, signal.SIGTERM)


INTERRUPTED = 130
"""The exit status after a signal, whatever the command still had to show."""
_heard: list[threading.Event] = []


def interrupted() -> bool:
    """Whether a signal came while the command ran, also where the command showed what it had until then."""
    return bool(_heard) and _heard[-1].is_set()


@contextlib.contextmanager
def ended_by_signals() -> Iterator[None]:
    """Inside the block SIGTERM, by which a time limit ends a process, does as Ctrl-C does: KeyboardInterrupt is raised.

    Where that is not heard, the process ends with a line on standard error and the status 128 + signal. In other
    threads than the main one no signal arrives, and nothing is done.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    heard, left = threading.Event(), threading.Event()
    _heard.append(heard)

    def hear(number: int, frame: object) -> None:
        heard.set()
        raise KeyboardInterrupt

    before = {number: signal.getsignal(number) for number in _ENDING}
    for number in _ENDING:
        # A signal that is ignored, as under nohup or in a background job, stays ignored.
        if before[number] is not signal.SIG_IGN:
            signal.signal(number, hear)
    read, write = os.pipe()
    os.set_blocking(write, False)
    outer = signal.set_wakeup_fd(write, warn_on_full_buffer=False)
    threading.Thread(target=_watch, args=(read, heard, left), name="convdispatch-signals", daemon=True).start()
    try:
        yield
        if heard.is_set():
            sys.exit(INTERRUPTED)
    except SystemExit as ended:
        if heard.is_set():
            ended.code = INTERRUPTED
        raise
    finally:
        _heard.remove(heard)
        left.set()
        signal.set_wakeup_fd(outer)
        for number in _ENDING:
            if before[number] is not None:
                signal.signal(number, before[number])
        os.close(write)  # Closing the pipe ends the thread that reads it.


def _watch(read: int, heard: threading.Event, left: threading.Event) -> None:
    """End the process when a signal arrives and the main thread does not end in time."""
    while number := os.read(read, 1):
        if number[0] not in _ENDING:
            continue
        blocked = not heard.wait(DEAF_S)
        if not left.wait(0 if blocked else ENDING_S):
            what = "a driver held the command" if blocked else "the command did not end in time"
            sys.stderr.write(f"interrupted: {what}, so its process was ended; what was recorded before is kept\n")
            leave(128 + number[0])
    os.close(read)


def leave(status: int) -> None:
    """End the process without what runs at exit: a driver's compiler that is still at work would abort it."""
    with contextlib.suppress(Exception):
        ours().flush()
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(status)


def run(command: click.Command) -> None:
    """The command, as a process of its own: its exit status, also where a compilation is still in flight."""
    try:
        command()
        status: object = 0
    except SystemExit as ended:
        status = ended.code
    give_up()
    if under_way():
        leave(status if isinstance(status, int) else int(status is not None))
    sys.exit(status)  # type: ignore[arg-type]
