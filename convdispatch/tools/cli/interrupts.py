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
    """Whether a signal came while the command ran, even if the command went on to show its results."""
    return bool(_heard) and _heard[-1].is_set()


@contextlib.contextmanager
def ended_by_signals() -> Iterator[None]:
    """Inside the block SIGTERM, by which a time limit ends a process, does as Ctrl-C does: KeyboardInterrupt is raised.

    If the main thread does not notice the signal, the process ends with a line on standard error and the status
    128 + signal. In other threads than the main one no signal arrives, and nothing is done.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    heard, block_ended = threading.Event(), threading.Event()
    _heard.append(heard)

    def hear(number: int, frame: object) -> None:
        heard.set()
        raise KeyboardInterrupt

    handlers = {number: signal.getsignal(number) for number in _ENDING}
    for number in _ENDING:
        # A signal that is ignored, as under nohup or in a background job, stays ignored.
        if handlers[number] is not signal.SIG_IGN:
            signal.signal(number, hear)
    read, write = os.pipe()
    os.set_blocking(write, False)
    outer_wakeup_fd = signal.set_wakeup_fd(write, warn_on_full_buffer=False)
    threading.Thread(target=_watch, args=(read, heard, block_ended), name="convdispatch-signals", daemon=True).start()
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
        block_ended.set()
        signal.set_wakeup_fd(outer_wakeup_fd)
        for number in _ENDING:
            if handlers[number] is not None:
                signal.signal(number, handlers[number])
        os.close(write)  # Closing the pipe ends the thread that reads it.


def _watch(read: int, heard: threading.Event, block_ended: threading.Event) -> None:
    """End the process when a signal arrives and the main thread does not end in time."""
    while number := os.read(read, 1):
        if number[0] not in _ENDING:
            continue
        blocked = not heard.wait(DEAF_S)
        if not block_ended.wait(0 if blocked else ENDING_S):
            reason = "a driver held the command" if blocked else "the command did not end in time"
            sys.stderr.write(f"interrupted: {reason}, so its process was ended; what was recorded before is kept\n")
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
    """Run the command as the process's work and exit with its status, even while a compilation is in flight."""
    try:
        command()
        status: object = 0
    except SystemExit as ended:
        status = ended.code
    give_up()
    if under_way():
        leave(status if isinstance(status, int) else int(status is not None))
    sys.exit(status)  # type: ignore[arg-type]
