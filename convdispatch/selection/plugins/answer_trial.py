"""Queries solvers of unproven plugins in a child process first, so that a solver that hangs or crashes ends only the
child.

A plugin that neither came with this package nor was verified on this machine is asked about each problem there first;
how that ended, and which problems it survived, is kept by its version and text. The child stays for the next problem,
and leaves when none has come for a while. ``find --isolate`` asks it about its problem whatever is known. What a solver
is asked here afterwards it answers in a thread of its own (``watched``), for it may do otherwise than in the child:
where it hangs, the thread alone is lost.
"""

from __future__ import annotations

import atexit
import contextlib
import contextvars
import os
import queue
import signal
import threading
import time
import typing
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

from ...api.device import DeviceInfo
from ...api.policy import current_policy
from ...api.problem import ConvProblem
from ...device.child import Child
from ...device.planning_lock import unlocked
from . import forks, verdicts
from .loader import plugins

T = TypeVar("T")

LIMIT_S: float | None = 2.0
"""Seconds after which a solver that neither replies nor uses the processor counts as hung; if None, no trial takes
place."""
BUSY_S = 60.0
"""The most seconds that a solver may work on one reply, because it may load a library or compile a probe."""
LOAD_S = 120.0
"""Seconds that a child may take to load the plugin, on a busy machine."""
MOST = 6
"""The most child processes that one plugin may end; after that, the rest of its solvers count as failed too."""
IDLE_S = 60.0
"""Seconds after which a child process without a request ends."""
_lock = threading.RLock()
_listeners: list[Callable[[str], None]] = []


@contextlib.contextmanager
def reporting(listener: Callable[[str], None]) -> Iterator[None]:
    """Inside the block ``listener`` is told, in words, when a child is asked, which may take a minute, and when not."""
    _listeners.append(listener)
    try:
        yield
    finally:
        _listeners.remove(listener)


def fault(solver: str, problem: ConvProblem, device: DeviceInfo) -> str | None:
    """Return how querying a solver ended a child process, or None; an untried plugin is tried now."""
    loaded = plugins()
    plugin, version = loaded.provider(solver), loaded.fingerprint(solver)
    if LIMIT_S is None or loaded.proven(solver) or plugin == "?":
        return None
    with _lock:
        known = verdicts.answers(plugin, version)
        if (
            solver not in known
            and not current_policy().frozen
            and not verdicts.survived(plugin, version, problem, device)
        ):
            before, known = known, trial(plugin, problem, device, known)
            verdicts.note_survived(plugin, version, problem, device)
            if known != before:
                verdicts.note_answers(plugin, version, known)
    return known.get(solver)


class Hang(Exception):
    """A solver does not return; the thread that called it is abandoned."""


def watched(solver: str, work: Callable[[], T]) -> T:
    """What ``work``, a solver's answer, comes to. Raises Hang where that of an unproven one neither ends nor works."""
    if LIMIT_S is None or plugins().proven(solver):
        return work()
    ended: queue.Queue[tuple[T | None, BaseException | None, int]] = queue.Queue()
    process = os.getpid()

    def run() -> None:
        answer, raised = None, None
        try:
            answer = work()
        except BaseException as error:
            raised = error
        forks.end_fork(process)
        ended.put((answer, raised, forks.count()))

    thread = threading.Thread(target=contextvars.copy_context().run, args=(run,), name=f"asks {solver}", daemon=True)
    thread.start()
    try:
        with unlocked():
            answer, raised, forked = _next(
                lambda timeout_s: ended.get(timeout=timeout_s), process, LIMIT_S, str(thread.native_id)
            )
    except TimeoutError as error:
        raise Hang(str(error)) from None
    forks.note(forked)
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
    """By solver, how asking it about a problem ended a child, those ``known`` before, who are not asked, among them;
    empty where all answer, in whatever words."""
    with _lock:
        child = _children.get(plugin)
        if child is not None and child.answers_for(plugins().fingerprints.get(plugin, "")):
            return _ended_by(plugin, problem, device, dict(known))
        _tell(f"asking the plugin {plugin}, which was not verified here, in a child process: {problem}")
        try:
            return _ended_by(plugin, problem, device, dict(known))
        finally:
            _tell(str(problem))


def _tell(words: str) -> None:
    for listener in list(_listeners):
        listener(words)


def _ended_by(plugin: str, problem: ConvProblem, device: DeviceInfo, found: dict[str, str]) -> dict[str, str]:
    names = {name for name, owner in plugins().plugin_of.items() if owner == plugin}
    for _ in range(MOST):
        at, how = _try(plugin, problem, device, found)
        # The solvers answered everything, or the child did not even load the plugin, which the loader reports.
        if not at:
            return found
        solver, _, method = at.partition(" ")
        found[solver] = f"its {method}() {how}, in a child process"
        if names <= set(found):
            return found
    return {name: found.get(name, f"{MOST} solvers of its plugin ended a child process") for name in names}


def _try(plugin: str, problem: ConvProblem, device: DeviceInfo, without: Collection[str]) -> tuple[str, str]:
    """Return at which query a child ended, and how; two empty texts if it replied to every query."""
    info = asdict(device) | {"extensions": sorted(device.extensions)}
    question = {"problem": str(problem), "device": info, "without": sorted(without)}
    version = plugins().fingerprints.get(plugin, "")
    for _ in range(2):
        child = _children.pop(plugin, None)
        fresh = child is None or not child.answers_for(version)
        try:
            if fresh:
                if child is not None:
                    child.close()
                child = _Child(plugin, version)
            at, how = child.try_out(question)
        except OSError:  # The operating system starts no child process, so nothing is learnt of the solvers.
            return "", ""
        if not how:
            _children[plugin] = child
            return "", ""
        child.close()
        # An idle child that ends without a reply ended just as it was asked, by its idle limit: a new child is started.
        if at or fresh:
            return at, how
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
        at, limit = "", LOAD_S
        self.say(question)
        try:
            while True:
                said = _next(self.hear, self.pid, limit)
                if said is None:
                    return at, _ended(self.exit_code())
                if "done" in said:
                    return "", ""
                at, limit = said["at"], LIMIT_S or LOAD_S
        except TimeoutError as error:
            return at, str(error)


_children: dict[str, _Child] = {}
"""The idle child process of each plugin, by the plugin's name."""


@atexit.register
def _end_all() -> None:
    for child in _children.values():
        child.close()


def _next(hear: Callable[[float], T], process: int, limit_s: float, thread: str = "*") -> T:
    """What a process, or one of its threads, says next: what ``hear(seconds)`` returns, which raises queue.Empty
    meanwhile. Raises TimeoutError where it neither speaks nor works."""
    began = last = time.monotonic()
    spent = _work(process, thread)
    while True:
        try:
            return hear(min(0.1, limit_s))
        except queue.Empty:
            now, done = time.monotonic(), _work(process, thread)
        if done is not None and done != spent and now - began < max(BUSY_S, limit_s):
            spent, last = done, now
        elif now - last > limit_s:
            raise TimeoutError(f"hangs: no answer within {now - began:.0f} s")


def _work(process: int, thread: str) -> Any:
    """What changes while threads are at work, where that can be known: their time, or that they wait for a processor or
    a disk."""
    tasks = Path(f"/proc/{process}/task")
    try:
        stats = [stat.read_text().rpartition(")")[2].split() for stat in tasks.glob(f"{thread}/stat")]
    except OSError:
        return None
    if any(words[0] in "RD" for words in stats):
        return time.monotonic()
    return sum(int(words[11]) + int(words[12]) for words in stats)


def _ended(code: int | None) -> str:
    if code is None:
        return "ended"
    return f"crashes ({signal.Signals(-code).name})" if code < 0 else f"ends the process (exit {code})"
