"""Tasks of a script over several processes, of which any may die or hang: what is lost is said, and the rest goes on.

The processes and their deaths are ``convdispatch.measurement.farm``'s; what a script computes and answers is Python's
objects, so they travel as pickles between a script and its own children.
"""

from __future__ import annotations

import base64
import importlib
import inspect
import pickle
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench import again
from convdispatch.device.child import answer, questions
from convdispatch.measurement.farm import Died, NotStarted, RestartingChild
from convdispatch.measurement.farm import farm as spread

__all__ = ["Lost", "farm"]


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
    source = Path(inspect.getfile(work)).resolve().relative_to(Path(__file__).resolve().parents[1])
    module = ".".join(source.with_suffix("").parts)
    setup = {"module": module, "begin": begin.__name__, "given": _text(given), "work": work.__name__}
    again("")  # children find this package
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


def _text(value: Any) -> str:
    return base64.b64encode(pickle.dumps(value)).decode()


def _value(text: str) -> Any:
    return pickle.loads(base64.b64decode(text))


def _serve() -> None:
    """The child: where the functions are, then a task a line."""
    lines = questions()
    setup = next(lines)
    module = importlib.import_module(setup["module"])
    getattr(module, setup["begin"])(*_value(setup["given"]))
    answer({"ready": True})
    work = getattr(module, setup["work"])
    for request in lines:
        answer({"made": _text(work(_value(request["task"])))})


if __name__ == "__main__":
    _serve()
