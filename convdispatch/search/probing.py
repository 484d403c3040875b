"""Runs candidates in a child process first, so that one that crashes or hangs takes only the child with it.

The child is ``python -m convdispatch.search.probing``: it reads one JSON line a candidate, verifies the candidate
as a search does, and answers with one JSON line. Solvers print to standard output as they please; answers are marked.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

__all__ = ["Prober"]

MARK = "\x02convdispatch "
START_S = 60.0
"""Seconds that a child may take to load its plugins and open the device."""
RUN_S = 60.0
"""Seconds that one candidate may take, compilation included, where the budget says nothing."""


class Prober:
    """A child that tries candidates for one problem on one device; started on the first question, and again after a
    death."""

    def __init__(self, problem: Any, device: Any) -> None:
        from .. import runtime

        self._setup = {"problem": str(problem), "device": runtime.devices().index(device)}
        self._child: subprocess.Popen[str] | None = None
        self._answers: queue.Queue[dict[str, Any] | None] = queue.Queue()

    def ask(self, solver: str, config: Mapping[str, Any], timeout_s: float | None = None) -> tuple[str, str]:
        """Try a candidate: ``("right", "")``, or ``wrong``, ``failed`` or ``refused`` with the reason."""
        if self._child is None:
            self._start()
            started = self._answer(START_S)
            if isinstance(started, str):
                return "failed", f"the child process did not start: {started}"
        self._write({"solver": solver, "config": dict(config)})
        answer = self._answer(min(timeout_s or RUN_S, RUN_S))
        return ("failed", f"in a child process: {answer}") if isinstance(answer, str) else tuple(answer)

    def close(self) -> None:
        """End the child."""
        if self._child is not None:
            self._child.kill()
            self._end()

    def _start(self) -> None:
        home = str(Path(__file__).parent.parent)
        paths = [home, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
        self._answers = queue.Queue()  # not the old one: a late word of the last child would answer the wrong question
        self._child = subprocess.Popen(
            [sys.executable, "-m", "convdispatch.search.probing"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        )
        threading.Thread(target=_listen, args=(self._child.stdout, self._answers), daemon=True).start()
        self._write(self._setup)

    def _write(self, message: dict[str, Any]) -> None:
        try:
            self._child.stdin.write(json.dumps(message) + "\n")
            self._child.stdin.flush()
        except OSError:  # it is dead, which its missing answer will tell
            pass

    def _answer(self, timeout_s: float) -> list[str] | str:
        """Status and reason, or in words how the child ended; it is killed where it gives no answer."""
        try:
            answer = self._answers.get(timeout=timeout_s)
        except queue.Empty:
            self._child.kill()
            self._end()
            return f"it gave no answer within {timeout_s:.3g} s"
        return self._end() if answer is None else [answer["status"], answer["reason"]]

    def _end(self) -> str:
        """Wait for the child's end, which is near; how it ended, in words."""
        child, self._child = self._child, None
        child.stdin.close()
        code = child.wait()
        return f"it was killed by {signal.Signals(-code).name}" if code < 0 else f"it ended with status {code}"


def _listen(stream: IO[str], answers: queue.Queue[dict[str, Any] | None]) -> None:
    with stream:
        for line in stream:
            _, mark, text = line.partition(MARK)
            if mark:
                answers.put(json.loads(text))
    answers.put(None)


def _serve() -> None:
    """The child: one setup line, then one candidate a line."""
    from .. import runtime
    from ..api.problem import ConvProblem

    setup = json.loads(sys.stdin.readline())
    problem, device = ConvProblem.parse(setup["problem"]), runtime.devices()[setup["device"]]
    rig: list[Any] = []
    _say({"status": "ready", "reason": ""})
    for line in sys.stdin:
        _say(_try(problem, device, json.loads(line), rig))


def _say(answer: dict[str, str]) -> None:
    sys.stdout.write(f"\n{MARK}{json.dumps(answer)}\n")
    sys.stdout.flush()


def _try(problem: Any, device: Any, candidate: dict[str, Any], rig: list[Any]) -> dict[str, str]:
    import pyopencl as cl

    from .. import dispatch, runtime
    from ..derivation import named
    from ..loader import plugins
    from .trial import Rig, WrongResult

    try:
        solver = named(candidate["solver"], plugins().solvers)
        prepared = dispatch.make(solver, candidate["config"], problem, runtime.context(device))
        if not rig:
            rig.append(Rig(problem, cl.CommandQueue(runtime.context(device))))
        rig[0].verify(prepared)
    except WrongResult as error:
        return {"status": "wrong", "reason": str(error)}
    except Exception as error:  # said to the parent, which decides
        return {"status": "failed", "reason": f"{type(error).__name__}: {error}"}
    return {"status": "right", "reason": ""}


if __name__ == "__main__":
    _serve()
