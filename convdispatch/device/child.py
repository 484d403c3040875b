"""A child process that answers questions. Work that may crash, hang or take long runs in one: a crash costs one answer.

All children use one protocol: a message is a JSON object and bytes, after a mark, because solvers and drivers print to
standard output too. ``Child`` is the parent's side: it starts the process, sends and receives with a deadline, and ends
it. ``questions`` and ``answer`` are the child's side. A child leaves interrupts to its parent, ends as soon as the
parent has ended, and is the process that Linux kills first when memory runs out.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

FEW_THREADS = {"OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
"""Variables for a child in which NumPy computes nothing: otherwise NumPy starts one thread for each processor."""
SURVIVED = b"\x02survived"
"""What a child writes to standard output at the end of its trial; libraries and plugins may print other text."""
_MARK = b"\x02convdispatch "
_PARENT_DEATH_SIGNAL = 1  # the option PR_SET_PDEATHSIG of prctl
_END_S = 10.0
"""The most seconds that a killed process is waited for; a process that hangs in a driver for longer is abandoned."""
_EXPENDABLE = 500
"""The child's oom_score_adj (-1000 to 1000): Linux kills the process with the highest score when memory runs out."""


def _python_path() -> dict[str, str]:
    """The variable by which a child finds this package."""
    home = str(Path(__file__).parents[2])
    paths = [*filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep)), home]
    return {"PYTHONPATH": os.pathsep.join(paths)}


def trial(arguments: Sequence[str], doing: str, limit_s: float) -> str | None:
    """Run Python in a child process, which writes ``SURVIVED`` at its end; returns how it ended otherwise.

    The text says that the child crashes, hangs or ends ``doing`` something, and is empty if it survived. None: the
    operating system starts no process, so nothing is learnt.
    """
    try:
        child = subprocess.run(
            [sys.executable, *arguments],
            capture_output=True,
            stdin=subprocess.DEVNULL,
            timeout=limit_s,
            env=os.environ | _python_path(),
        )
    except subprocess.TimeoutExpired:
        return f"it hangs as it {doing}: not done within {limit_s:g} s"
    except OSError:
        return None
    if SURVIVED in child.stdout:
        return ""
    if child.returncode < 0:
        return f"it crashes as it {doing} ({signal.Signals(-child.returncode).name})"
    return f"it ends the process as it {doing} (exit {child.returncode})"


class Silent(queue.Empty):
    """The child process did not answer in time."""


class Answer(dict[str, Any]):
    """A child process's message: a JSON object, and the bytes ``content`` that came with it."""

    content: bytes = b""


class Child:
    """``python -m module``, which reads with ``questions`` and writes with ``answer``; ``setup`` is its first question.

    A child in the ``background`` runs, imports included, only while no other process wants the processor.
    ``environment`` is added to the variables of this process.
    """

    def __init__(
        self,
        module: str,
        setup: Mapping[str, Any],
        *,
        background: bool = False,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self._owner = os.getpid()
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 (close() closes the file)
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-m", module],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                env={**os.environ, **(environment or {}), **_python_path()},
                # A group of its own: the system sends SIGHUP to an orphaned process group that has a halted member.
                start_new_session=background,
            )
        except BaseException:
            self._errors.close()
            raise
        self.halted = self.may_halt = False
        if background:
            with contextlib.suppress(OSError, AttributeError):  # SCHED_IDLE exists on Linux only
                os.setpriority(os.PRIO_PROCESS, self._process.pid, 19)
                os.sched_setscheduler(self._process.pid, os.SCHED_IDLE, os.sched_param(0))
        self._answers: queue.Queue[Answer | None] = queue.Queue()
        threading.Thread(target=_listen, args=(self._process.stdout, self._answers), daemon=True).start()
        self.say(setup)

    @property
    def pid(self) -> int:
        """The child's process id."""
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether the child runs and was started by this process, not by one that forked this process."""
        return self._owner == os.getpid() and self._process.poll() is None

    def say(self, values: Mapping[str, Any], content: bytes = b"") -> None:
        """Send a message; if the child has died, only ``hear`` notices it."""
        with contextlib.suppress(OSError, ValueError):
            _send(self._process.stdin, values, content)  # type: ignore[arg-type]

    def hear(self, timeout_s: float | None = None) -> Answer | None:
        """Returns the child's next answer; None when the child has ended. Raises Silent after ``timeout_s`` seconds;
        None waits without limit."""
        try:
            return self._answers.get(timeout=None if timeout_s is None else max(0.0, timeout_s))
        except queue.Empty:
            raise Silent(f"it gave no answer within {timeout_s:.3g} s") from None

    def ask(self, values: Mapping[str, Any], content: bytes = b"") -> Answer:
        """Send a question, and return the child's next answer. Raises EOFError for a child that has ended."""
        self.say(values, content)
        return self.heard()

    def heard(self) -> Answer:
        """The child's next answer. Raises EOFError for a child that has ended."""
        reply = self.hear()
        if reply is None:
            raise EOFError(self.how_it_ended())
        return reply

    def exit_code(self) -> int | None:
        """The exit code of a child that has ended by itself; negative for the signal that killed it, None where it only
        closed its output."""
        try:
            return self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            return None

    def how_it_ended(self) -> str:
        """A sentence on how a child ended by itself."""
        code = self.exit_code()
        if code is None:
            return "it closed its output"
        if code < 0:
            return f"it was killed by {signal.Signals(-code).name}"
        self._errors.seek(max(0, self._errors.seek(0, os.SEEK_END) - 2000))
        error_lines = self._errors.read().decode("utf-8", "replace").strip().splitlines() if code else []
        return f"it ended with status {code}" + (f": {error_lines[-1].strip()}" if error_lines else "")

    def kill(self) -> None:
        """Kill the child, from any thread; a thread that waits in ``hear`` then gets None, and calls ``close``."""
        if self._owner == os.getpid():
            self._process.kill()

    def halt(self) -> None:
        """Halt the child at once. ``close`` ends it later, because freeing its memory takes tens of milliseconds.

        A halted child that called ``ends_with_parent`` still ends with its parent.
        """
        self.halted = True
        with contextlib.suppress(OSError):  # the child process has already ended
            self._process.send_signal(signal.SIGSTOP)

    def close(self) -> None:
        """End the child now, if this process started it."""
        self.kill()
        if self._owner == os.getpid():
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_END_S)
        with contextlib.suppress(OSError):
            self._process.stdin.close()  # type: ignore[union-attr]
        self._errors.close()


def _send(stream: IO[bytes], values: Mapping[str, Any], content: bytes) -> None:
    head = json.dumps(values).encode()
    stream.write(b"\n%b%d %d\n%b%b" % (_MARK, len(head), len(content), head, content))
    stream.flush()


def _messages(stream: IO[bytes]) -> Iterator[Answer]:
    """The messages that the process at the other end sends until it ends; a truncated message is dropped."""
    for line in stream:
        _, mark, sizes = line.partition(_MARK)
        if not mark:
            continue
        head_size, content_size = map(int, sizes.split())
        head, content = stream.read(head_size), stream.read(content_size)
        if len(content) < content_size or len(head) < head_size:
            return
        message = Answer(json.loads(head))
        message.content = content
        yield message


def _listen(stream: IO[bytes], answers: queue.Queue[Answer | None]) -> None:
    # Text that was printed into a message makes all that follows unreadable.
    with stream, contextlib.suppress(ValueError):
        for message in _messages(stream):
            answers.put(message)
    answers.put(None)


# --- functions that run in the child process -------------------------------------------------------------------------


def questions(idle_s: float | None = None) -> Iterator[Answer]:
    """The messages from the parent process, the setup first; ends when none came for ``idle_s`` seconds.

    When the parent has ended, this process ends at once, even inside a kernel.
    """
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(str(_EXPENDABLE))
    with contextlib.suppress(ValueError):  # signal.signal raises outside the main thread
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    _answers()
    messages: queue.Queue[Answer] = queue.Queue()

    def listen() -> None:
        # A duplicate of standard input: at exit the interpreter waits for a thread that reads from sys.stdin.
        for message in _messages(os.fdopen(os.dup(0), "rb")):
            messages.put(message)
        os._exit(0)  # the parent has gone, and the main thread may be waiting for a kernel that never ends

    threading.Thread(target=listen, daemon=True).start()
    while True:
        try:
            yield messages.get(timeout=idle_s)
        except queue.Empty:
            return


def is_child() -> bool:
    """Whether this process reads the questions of a parent, which learns how it ends."""
    return bool(_answers.cache_info().currsize)


@functools.lru_cache(maxsize=1)
def _answers() -> IO[bytes]:
    """The stream to the parent: the former standard output. What drivers and plugins print from now on is discarded."""
    sys.stdout.flush()
    stream, null_file = os.fdopen(os.dup(1), "wb"), os.open(os.devnull, os.O_WRONLY)
    os.dup2(null_file, 1)
    os.close(null_file)
    return stream


def answer(values: Mapping[str, Any], content: bytes = b"") -> None:
    """Send an answer to the parent process."""
    _send(_answers(), values, content)


def ends_with_parent() -> bool:
    """Ask the system to kill this process when the thread that started it ends; returns whether it will."""
    if not sys.platform.startswith("linux"):
        return False
    return ctypes.CDLL(None).prctl(_PARENT_DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0) == 0
