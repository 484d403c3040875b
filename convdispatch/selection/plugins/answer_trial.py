"""Queries solvers of unproven plugins in a child process first, so that a solver that hangs or crashes ends only the
child.

A plugin that neither came with this package nor was verified on this machine is first queried about each problem in a
child process; the faults and the survived problems are stored by the plugin's version and source hash. The child waits
for the next problem for IDLE_S. ``find --isolate`` repeats the trial of its problem in any case. Afterwards this
process queries the solver in a thread (``watched``), because it may hang here although it did not in the child; then
only the thread is lost.
"""

from __future__ import annotations

import atexit
import contextvars
import os
import queue
import signal
import threading
import time
import typing
from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

from ...api.device import DeviceInfo
from ...api.policy import current_policy
from ...api.problem import ConvProblem
from ...device.background import unlocked
from ...device.child import Child
from . import contract, verdicts
from .loader import plugins

T = TypeVar("T")

LIMIT_S: float | None = 2.0
"""Seconds after which a solver that neither replies nor uses the processor counts as hung; if None, no trial takes
place."""
BUSY_S = 60.0
"""The most seconds that a solver may work on one reply, because it may load a library or compile a probe."""
LOAD_S = 120.0
"""Seconds that a child may take to load the plugin, on a busy machine."""
MAX_ENDED = 6
"""The most child processes that one plugin may end; after that, the rest of its solvers count as failed too."""
IDLE_S = 60.0
"""Seconds after which a child process without a request ends."""
_lock = threading.RLock()


def fault(solver: str, problem: ConvProblem, device: DeviceInfo) -> str | None:
    """How querying a solver ended a child process, or None; a problem that was not tried is tried now."""
    loaded = plugins()
    plugin, version = loaded.provider(solver), loaded.fingerprint(solver)
    if LIMIT_S is None or loaded.proven(solver) or plugin == "?":
        return None
    with _lock:
        faults = verdicts.answers(plugin, version)
        if solver in faults or current_policy().frozen:
            return faults.get(solver)
        survival = verdicts.survival(plugin, version, problem, device)
        if verdicts.ANSWERS.get(survival) is None:
            faults_before, faults = faults, trial(plugin, problem, device, faults)
            verdicts.ANSWERS.put(survival, {"survived": True}, f"asking {plugin} about {problem}")
            if faults != faults_before:
                verdicts.note_answers(plugin, version, faults)
    return faults.get(solver)


class Hang(Exception):
    """A solver does not return; the thread that called it is abandoned."""


def watched(solver: str, work: Callable[[], T]) -> T:
    """Return ``work()``, a solver's reply. Raises Hang if an unproven solver neither replies nor uses the processor."""
    if LIMIT_S is None or plugins().proven(solver):
        return work()
    outcomes: queue.Queue[tuple[T | None, BaseException | None, int]] = queue.Queue()
    process = os.getpid()

    def run() -> None:
        answer, raised = None, None
        try:
            answer = work()
        except BaseException as error:
            raised = error
        contract.end_fork(process)
        outcomes.put((answer, raised, contract.fork_count()))

    thread = threading.Thread(target=contextvars.copy_context().run, args=(run,), name=f"asks {solver}", daemon=True)
    thread.start()
    try:
        with unlocked():
            answer, raised, forked = _wait_for_reply(
                lambda timeout_s: outcomes.get(timeout=timeout_s), process, LIMIT_S, str(thread.native_id)
            )
    except TimeoutError as error:
        raise Hang(str(error)) from None
    contract.add_forks(forked)
    if raised is not None:
        raise raised
    return typing.cast(T, answer)


def note_hang(solver: str, what: str) -> None:
    """Store that a solver hung in this process, for later processes."""
    plugin, version = plugins().provider(solver), plugins().fingerprint(solver)
    with _lock:
        verdicts.note_answers(plugin, version, {**verdicts.answers(plugin, version), solver: what})


def trial(
    plugin: str, problem: ConvProblem, device: DeviceInfo, known: Mapping[str, str] = MappingProxyType({})
) -> dict[str, str]:
    """The faults of a plugin's solvers at a problem, by solver: how querying it ended a child. Solvers in ``known`` are
    not queried, and their faults are included. Empty if every solver replies."""
    with _lock:
        return _child_faults(plugin, problem, device, dict(known))


def _child_faults(plugin: str, problem: ConvProblem, device: DeviceInfo, faults: dict[str, str]) -> dict[str, str]:
    names = {name for name, owner in plugins().plugin_of.items() if owner == plugin}
    for _ in range(MAX_ENDED):
        query_text, how = _query_in_child(plugin, problem, device, faults)
        # The solvers answered everything, or the child did not even load the plugin, which the loader reports.
        if not query_text:
            return faults
        solver, _, method = query_text.partition(" ")
        faults[solver] = f"its {method}() {how}, in a child process"
        if names <= set(faults):
            return faults
    return {name: faults.get(name, f"{MAX_ENDED} solvers of its plugin ended a child process") for name in names}


def _query_in_child(plugin: str, problem: ConvProblem, device: DeviceInfo, without: Collection[str]) -> tuple[str, str]:
    """Return at which query a child ended, and how; two empty texts if it replied to every query."""
    info = asdict(device) | {"extensions": sorted(device.extensions)}
    question = {"problem": str(problem), "device": info, "without": sorted(without)}
    version = plugins().fingerprints.get(plugin, "")
    for _ in range(2):
        child = _children.pop(plugin, None)
        is_new = child is None or not child.answers_for(version)
        try:
            if is_new:
                if child is not None:
                    child.close()
                child = _Child(plugin, version)
            query_text, how = child.try_out(question)
        except OSError:  # The operating system starts no child process, so nothing is learnt of the solvers.
            return "", ""
        if not how:
            _children[plugin] = child
            return "", ""
        child.close()
        # An idle child that ends without a reply ended just as it was asked, by its idle limit: a new child is started.
        if query_text or is_new:
            return query_text, how
    return "", ""


class _Child(Child):
    """A child process that queries one version of a plugin, problem after problem."""

    def __init__(self, plugin: str, version: str) -> None:
        self._version = version
        super().__init__("convdispatch.selection.answer_child", {}, environment={"CONVDISPATCH_PLUGINS": plugin})

    def answers_for(self, version: str) -> bool:
        """Return whether the child runs and has loaded this version of the plugin."""
        return self._version == version and self.alive

    def try_out(self, question: Mapping[str, Any]) -> tuple[str, str]:
        """Return at which query the child ended, and how; two empty texts if it replied to every query."""
        query_text, limit = "", LOAD_S
        self.say(question)
        try:
            while True:
                reply = _wait_for_reply(self.hear, self.pid, limit)
                if reply is None:
                    return query_text, _exit_text(self.exit_code())
                if "done" in reply:
                    return "", ""
                query_text, limit = reply["at"], LIMIT_S or LOAD_S
        except TimeoutError as error:
            return query_text, str(error)


_children: dict[str, _Child] = {}
"""The idle child process of each plugin, by the plugin's name."""


@atexit.register
def _end_all() -> None:
    for child in _children.values():
        child.close()


def _wait_for_reply(hear: Callable[[float], T], process: int, limit_s: float, thread: str = "*") -> T:
    """The next message of a process or one of its threads, from ``hear(seconds)``, which raises queue.Empty if there is
    none yet. Raises TimeoutError if it neither sends a message nor uses the processor."""
    start = last_progress = time.monotonic()
    work_before = _work_done(process, thread)
    while True:
        try:
            return hear(min(0.1, limit_s))
        except queue.Empty:
            now, work_now = time.monotonic(), _work_done(process, thread)
        if work_now is not None and work_now != work_before and now - start < max(BUSY_S, limit_s):
            work_before, last_progress = work_now, now
        elif now - last_progress > limit_s:
            raise TimeoutError(f"hangs: no answer within {now - start:.0f} s")


def _work_done(process: int, thread: str) -> Any:
    """A value that changes while threads work: their processor time, or the time of day if they wait for a processor or
    a disk; None if the system does not tell."""
    tasks = Path(f"/proc/{process}/task")
    try:
        stats = [stat.read_text().rpartition(")")[2].split() for stat in tasks.glob(f"{thread}/stat")]
    except OSError:
        return None
    if any(words[0] in "RD" for words in stats):
        return time.monotonic()
    return sum(int(words[11]) + int(words[12]) for words in stats)


def _exit_text(code: int | None) -> str:
    if code is None:
        return "ended"
    return f"crashes ({signal.Signals(-code).name})" if code < 0 else f"ends the process (exit {code})"
