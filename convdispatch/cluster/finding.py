"""find_many: a cluster's workers search for each problem on each kind of device; results are recorded on arrival."""

from __future__ import annotations

import contextlib
import signal
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..api.device import DeviceInfo
from ..api.errors import ConvDispatchError, ConvDispatchWarning, InvalidArgument
from ..api.policy import Policy, current_policy, forbid_when_frozen
from ..api.problem import ConvProblem
from ..api.results import Results
from ..measurement.find import why_find
from ..selection import dispatch
from ..selection.choice.ranking import rank
from ..selection.plugins import verdicts
from ..selection.records.perfdb import perfdb, scope_of
from ..selection.records.record import Record, choice_text
from .measuring import from_json
from .running import Failed, Run, Task, cluster_run
from .worker import measure


def _warn(words: str) -> None:
    warnings.warn(words, ConvDispatchWarning, stacklevel=4)


def find_many(
    problems: Iterable[ConvProblem | str],
    client: Any = None,
    devices: Sequence[str] | str | None = None,
    *,
    budget_ms: float | None = 5000.0,
    every_solver: bool = False,
    workspace_limit: int | None = None,
    memory_limit: int | None = None,
    again: bool = False,
    store: bool = True,
    security: Any = None,
    each: Callable[[Results], None] = lambda results: None,
    start: Callable[[int, int, int], None] = lambda total, known, devices: None,
    tell: Callable[[str], None] = _warn,
) -> list[Results]:
    """``find`` for every problem on every kind of device that a cluster's workers offer; returns the searches' results.

    ``client`` is a ``distributed.Client``, a scheduler's address, or None for this machine's devices. ``devices`` are
    globs or parts of kinds' names, vendors or types; None for all. What is known here of a kind of device and not in
    doubt is left out unless ``again``, so a call that was interrupted goes on when it is made again: each search is
    recorded as it comes, with its worker's provenance and device.

    ``start`` hears, once, of how many searches there are, how many are known already, and on how many devices; ``each``
    of every search as it ends; ``tell`` of what went wrong, such as problems that could not be searched.

    Raises InvalidArgument, NoDevice where no worker offers a device that is asked for, ConvDispatchError where no
    scheduler can be used or it goes away, and Frozen inside ``frozen()``.
    """
    listed = [ConvProblem.parse(each) if isinstance(each, str) else each for each in problems]
    listed = list(dict.fromkeys(problem for problem in listed if problem.mb))
    if budget_ms is not None and not budget_ms > 0:
        raise InvalidArgument(f"budget_ms must be above 0, got {budget_ms!r}")
    if scope_of(current_policy()) is not None:
        raise InvalidArgument("find_many measures for everybody: under a policy use find on the device itself")
    forbid_when_frozen("measure")
    limits = {
        "budget_ms": budget_ms,
        "every_solver": every_solver,
        "workspace_limit": workspace_limit,
        "memory_limit": memory_limit,
    }
    with cluster_run(client, devices, security=security, tell=tell) as run:
        return _ClusterSearch(run, limits, again, store, tell).run(listed, each, start)


@dataclass
class _ClusterSearch:
    _run: Run
    _limits: dict[str, Any]
    _again: bool
    _store: bool
    _tell: Callable[[str], None]

    def run(self, problems: list[ConvProblem], each: Any, start: Any) -> list[Results]:
        """Search for every problem and kind of device without trusted records, and record the results."""
        for words in sorted(self._run.other_versions):
            self._tell(f"{words}: it gets no tasks")
        self._kinds = dict(self._run.kinds)
        for kind in self._kinds.values():
            drivers = {offer.info["driver"] for offer in kind.workers.values()}
            if len(drivers) > 1:
                self._tell(f"devices of one kind, {kind.key}, have different drivers: {', '.join(sorted(drivers))}")
        known_limits = {name: self._limits[name] for name in ("budget_ms", "workspace_limit")}
        every_search: list[Results] = []
        tasks = [
            self._task(problem, key)
            # Every kind of device gets the first problem, then the second, and so on.
            for problem in problems
            for key, kind in self._kinds.items()
            if self._again or not self._store or why_find(problem, kind.device, Policy(), here=False, **known_limits)
        ]
        count_known = len(problems) * len(self._kinds) - len(tasks)
        start(len(tasks), count_known, sum(len(kind.workers) for kind in self._kinds.values()))
        self._run.add(*tasks)
        for task, answer in self._run.answers():
            # Interrupts are deferred, so that each search that is recorded is also reported.
            with interrupts_deferred():
                results = self._record_answer(task, answer)
                if results is not None:
                    every_search.append(results)
                    each(results)
        return every_search

    def _task(self, problem: ConvProblem, key: str) -> Task:
        text = str(problem)
        limits = self._limits | {"incumbent": self._incumbent(problem, self._kinds[key].device)}
        return Task(text, key, measure, (text, limits, self._again))

    def _incumbent(self, problem: ConvProblem, device: DeviceInfo) -> str | None:
        """Return the choice for such a device by this machine's records; None if no plugin here supports the device."""
        try:
            candidate = rank(problem, device, Policy(workspace_limit=self._limits["workspace_limit"]))[0]
        except ConvDispatchError:
            return None
        return choice_text(candidate.solver.name, candidate.config)

    def _record_answer(self, task: Task, answer: Any) -> Results | None:
        """Store the records of a search's results. None for a failure."""
        if isinstance(answer, Failed) or "failure" in answer:
            why = answer if isinstance(answer, Failed) else f"{answer['failure']} (on {answer['place']})"
            self._tell(f"{task.words} was not measured on {task.kind}: {why}")
            return None
        place = answer["place"]
        records = [replace(Record.from_json(each), worker=place) for each in answer["records"]]
        results = from_json(answer["results"])
        results.device, results.worker = self._kinds[task.kind].device, place
        if self._store:
            self._record(results.problem, results.device, records, answer["unsound"])
        return results

    def _record(
        self, problem: ConvProblem, device: DeviceInfo, records: list[Record], unsound: dict[str, list[str]]
    ) -> None:
        for solver, (fingerprint, what) in unsound.items():
            verdicts.note(problem, device, solver, fingerprint, what)
        if records:
            perfdb().record(*records)
            dispatch.forget(problem)


_SIGNALS = (signal.SIGINT, signal.SIGTERM)


@contextlib.contextmanager
def interrupts_deferred() -> Iterator[None]:
    """Inside the block SIGINT and SIGTERM are only noted; their handlers are called at its end.

    For short blocks that must run completely, such as recording a result and reporting it. Handlers run only in the
    main thread, so in other threads nothing is changed; nor is a handler that is no Python function.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    noted: list[tuple[int, Any]] = []
    handlers = {number: handler for number in _SIGNALS if callable(handler := signal.getsignal(number))}
    for number in handlers:
        signal.signal(number, lambda number, frame: noted.append((number, frame)))
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        for number, frame in noted[:1]:
            handlers[signal.Signals(number)](number, frame)
