"""A child process that answers questions: a JSON line for each question, marked JSON lines back.

What may crash or hang runs in one, so that its death costs one question. Answers are marked, because solvers and
drivers print on standard output as they please. A child ends itself when its parent has gone, whatever it is at.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any

__all__ = ["Child", "Silent", "answer", "ends_with_parent", "questions"]

_MARK = "\x02convdispatch "
_PARENT_DEATH_SIGNAL = 1  # prctl's PR_SET_PDEATHSIG
_END_S = 10.0
"""Seconds in which a killed process has ended; one that a driver holds longer is left behind."""


class Silent(Exception):
    """The child said nothing in time."""


class Child:
    """``python -m module``, which reads with ``questions`` and writes with ``answer``; ``setup`` is its first line.

    One in the ``background`` runs, from its imports on, where no other process wants the processor.
    """

    def __init__(self, module: str, setup: Mapping[str, Any], *, background: bool = False) -> None:
        home = str(Path(__file__).parents[2])
        paths = [*filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep)), home]
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 (closed with the child)
        self._process = subprocess.Popen(
            [sys.executable, "-m", module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            encoding="utf-8",
            errors="replace",
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
            start_new_session=background,  # the system hangs up on the whole group of a halted child that is left alone
        )
        self.halted = self.may_halt = False
        if background:
            _last_in_line(self._process.pid)
        self._answers: queue.Queue[dict[str, Any] | None] = queue.Queue()
        threading.Thread(target=_listen, args=(self._process.stdout, self._answers), daemon=True).start()
        self.say(setup)

    def say(self, values: Mapping[str, Any]) -> None:
        """Send one line. That the child is dead, its missing answer tells."""
        stream: IO[str] = self._process.stdin  # type: ignore[assignment]
        try:
            stream.write(json.dumps(values) + "\n")
            stream.flush()
        except (OSError, ValueError):
            pass

    def hear(self, timeout_s: float) -> dict[str, Any] | None:
        """The next answer; None when the child has ended. Raises Silent."""
        try:
            return self._answers.get(timeout=max(0.0, timeout_s))
        except queue.Empty:
            raise Silent(f"it gave no answer within {timeout_s:.3g} s") from None

    def how_it_ended(self) -> str:
        """Of a child that has ended by itself, in words."""
        try:
            code = self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            return "it closed its output"
        if code < 0:
            return f"it was killed by {signal.Signals(-code).name}"
        self._errors.seek(max(0, self._errors.seek(0, os.SEEK_END) - 2000))
        said = self._errors.read().decode("utf-8", "replace").strip().splitlines() if code else []
        return f"it ended with status {code}" + (f": {said[-1].strip()}" if said else "")

    def kill(self) -> None:
        """End it, from any thread; who waits for it hears that it has ended, and closes it."""
        self._process.kill()

    def halt(self) -> None:
        """Stop it where it is, at once: its end, which takes tens of milliseconds of memory's, is for ``close``.

        A child that called ``ends_with_parent`` does not outlast its parent so.
        """
        self.halted = True
        with contextlib.suppress(OSError):  # it has ended
            self._process.send_signal(signal.SIGSTOP)

    def close(self) -> None:
        """End it now."""
        self._process.kill()
        try:
            self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            return
        self._process.stdin.close()  # type: ignore[union-attr]
        self._errors.close()


def _last_in_line(pid: int) -> None:
    with contextlib.suppress(OSError, AttributeError):  # Linux has it
        os.sched_setscheduler(pid, os.SCHED_IDLE, os.sched_param(0))
        return
    with contextlib.suppress(OSError, AttributeError):
        os.setpriority(os.PRIO_PROCESS, pid, 19)


def _listen(stream: IO[str], answers: queue.Queue[dict[str, Any] | None]) -> None:
    with stream:
        for line in stream:
            _, mark, text = line.partition(_MARK)
            if mark:
                answers.put(json.loads(text))
    answers.put(None)


# --- in the child ----------------------------------------------------------------------------------------------------


def questions() -> Iterator[dict[str, Any]]:
    """What the parent says, the setup first. When the parent is gone the process ends, whatever it is at."""
    heard: queue.Queue[dict[str, Any]] = queue.Queue()

    def listen() -> None:
        for line in sys.stdin:
            heard.put(json.loads(line))
        os._exit(0)  # nobody reads on, and the main thread may be waiting for a kernel that never ends

    threading.Thread(target=listen, daemon=True).start()
    while True:
        yield heard.get()


def ends_with_parent() -> bool:
    """Whether the system ends this process with the thread that started it, from now on, also where it is halted."""
    if not sys.platform.startswith("linux"):
        return False
    return ctypes.CDLL(None).prctl(_PARENT_DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0) == 0


def answer(values: Mapping[str, Any]) -> None:
    """Say something to the parent."""
    sys.stdout.write(f"\n{_MARK}{json.dumps(values)}\n")
    sys.stdout.flush()
