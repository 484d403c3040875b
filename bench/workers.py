"""Tasks of a script over several processes, of which any may die or hang: what is lost is said, and the rest goes on.

The processes and their deaths are ``convdispatch.measurement.farm``'s; what a script computes and answers is Python's
objects, so they travel as pickles between a script and its own children.
"""

from __future__ import annotations

import base64
import importlib
import inspect
import json
import pickle
import subprocess
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench import again
from convdispatch.device.child import answer, questions
from convdispatch.measurement.farm import Died, NotStarted, RestartingChild
from convdispatch.measurement.farm import farm as spread

__all__ = ["ChildFailed", "Lost", "Served", "farm", "last_object"]


class ChildFailed(RuntimeError):
    """A command that ended without an object: the end of what it wrote to standard error, or that it took too long."""


def last_object(command: Sequence[str], seconds: float, environment: Mapping[str, str] | None = None) -> dict[str, Any]:
    """The JSON object that a command prints last; ``environment`` instead of this process's. Raises ChildFailed."""
    try:
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=seconds)
    except subprocess.TimeoutExpired:
        raise ChildFailed(f"over {seconds:.0f} s") from None
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode or not lines:
        raise ChildFailed(done.stderr.strip()[-2000:] or f"ended with {done.returncode}")
    return json.loads(lines[-1])  # type: ignore[no-any-return]


@dataclass
class Lost:
    """A task without a result, and why."""

    task: Any
    why: str


def farm(
    jobs: int,
    begin: Callable[..., None],
    given: tuple,
    work: Callable[[Any], Any],
    tasks: Sequence[Any],
    *,
    until: float,
    task_s: float = 60.0,
) -> Iterator[Any]:
    """Results of ``work(task)`` as they come, a ``Lost`` for each task without one.

    ``begin(*given)`` runs once in each process; it and ``work`` are functions of one script or module. After ``until``
    (``time.monotonic``) no result is awaited; a task of more than ``task_s`` seconds is given up with its process.
    """
    setup = _setup(begin, given, work)
    todo, left = deque(enumerate(tasks)), dict(enumerate(tasks))

    def one(child: RestartingChild, task: tuple[int, Any]) -> Any:
        try:
            return _value(child.answer({"task": _text(task[1])}, task_s)["made"])
        except NotStarted:
            raise
        except Died as died:
            return Lost(task[1], str(died))

    why = "out of time"
    try:
        for (place, _), made in spread(todo, jobs, lambda: RestartingChild("bench.workers", setup), one, until):
            del left[place]
            yield made
    except NotStarted as died:
        why = str(died)
    for task in left.values():
        yield Lost(task, why)


class Served:
    """A generator of a script that runs in a process of its own: ``send(request)`` returns what it yields next."""

    def __init__(self, generator: Callable[..., Any], given: tuple, seconds: float) -> None:
        self._child = RestartingChild("bench.workers", _setup(generator, given))
        self._until = time.monotonic() + seconds

    def send(self, request: Any) -> dict[str, Any]:
        """What the generator yields for a request (None begins); ``{"failed": how}`` where its process ended, or took
        more seconds altogether than it has."""
        try:
            task = {"task": _text(request)}
            return _value(self._child.answer(task, max(1.0, self._until - time.monotonic()))["made"])
        except Died as died:
            return {"failed": str(died)}

    def close(self) -> None:
        """End the process."""
        self._child.end()


def _setup(begin: Callable[..., Any], given: tuple, work: Callable[..., Any] | None = None) -> dict[str, str]:
    """What a child needs to find the functions."""
    source = Path(inspect.getfile(begin)).resolve().relative_to(Path(__file__).resolve().parents[1])
    again("")  # children find this package
    names = {"begin": begin.__name__, "work": work.__name__ if work else ""}
    return {"module": ".".join(source.with_suffix("").parts), "given": _text(given), **names}


def _text(value: Any) -> str:
    return base64.b64encode(pickle.dumps(value)).decode()


def _value(text: str) -> Any:
    return pickle.loads(base64.b64decode(text))


def _serve() -> None:
    """The child: where the functions are, then a task a line. A generator takes tasks itself."""
    lines = questions()
    setup = next(lines)
    module = importlib.import_module(setup["module"])
    begun = getattr(module, setup["begin"])(*_value(setup["given"]))
    answer({"ready": True})
    work = getattr(module, setup["work"]) if setup["work"] else begun.send
    for request in lines:
        answer({"made": _text(work(_value(request["task"])))})


if __name__ == "__main__":
    _serve()
