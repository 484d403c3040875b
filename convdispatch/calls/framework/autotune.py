"""What could compute a problem is measured in the background, as ``torch.backends.cudnn.benchmark`` asks for.

A child process measures, one problem at a time, each within ``PROBLEM_MS`` and all within
``CONVDISPATCH_TORCH_FIND_MS`` a process, and only while no calls come: it begins after ``QUIET_S`` without any, and
is ended by the next one, after which it waits for twice as long a pause: in a loop with short ones it soon waits for
good. A problem that calls have kept from being measured ``TRIES`` times keeps its choice. What runs now is measured
first and in turns with its rivals; one that is clearly faster is compiled here and taken by calls, with what is found
beside it. Captures see nothing of all this.
"""

from __future__ import annotations

import contextlib
import queue
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from ...api import settings
from ...api.errors import ConvDispatchError, ConvDispatchWarning
from ...api.policy import Policy, policy
from ...api.problem import ConvProblem
from ...device import background, runtime
from ...device.child import Child, Silent
from ...measurement import aside
from ...measurement.find import why_find
from ...selection import dispatch
from ...selection.choice import ranking
from ...selection.plugins import verdicts
from ...selection.prepared import Prepared
from ...selection.records.perfdb import perfdb, scope_of
from ...selection.records.record import Record, choice_text

PROBLEM_MS = 1000.0
QUIET_S = 0.1
"""Seconds without a call after which measuring begins."""
MOST_QUIET_S = 2.0
"""The longest pause that is waited for: most searches end in so long a one."""
POLL_S = 0.002
"""The most seconds for which a search and a new call share the device, before the search is ended."""
TRIES = 3
ADOPT_S = 30.0
"""The most seconds that a finished plan waits for others, so that calls adopt them together."""
IDLE_S = 10.0
"""Seconds without a problem after which the child ends: on a GPU it holds a context."""
START_S, LEAST_S = 180.0, 120.0
"""The most seconds that a child process may take to start, and that a search may take beyond its budget."""


@dataclass
class _Wanted:
    problem: ConvProblem
    device: Any
    policy: Policy
    incumbent: str
    tries: int = 0


_considered: set[Any] = set()
_waiting: queue.SimpleQueue[_Wanted] = queue.SimpleQueue()
_lock = threading.Lock()
_switching = threading.Lock()
"""This lock is held while a plan is made in this process; a capture begins only when it is free."""
_capturing = 0
_spent = 0.0
_busy = 0
_pause = QUIET_S
"""Seconds without a call after which the next search begins."""
_last = 0.0
"""The time of the last call, by ``time.monotonic``."""
_count: Callable[[], Any] = int
_counted: Any = None
_thread: threading.Thread | None = None
_made: list[tuple[float, ConvProblem, Any, Policy, Prepared]] = []
"""Plans that calls are to use, and when each was made; used by the background thread alone."""


def consider(
    problem: ConvProblem, device: Any, chosen: Policy, prepared: Prepared, unless: Callable[[], bool] = bool
) -> None:
    """A call was made: nothing is measured now, but this problem some time, if it was not asked for before.

    ``unless()`` keeps a new problem from it: what one rank of several measures, others would not run.
    """
    global _thread, _busy, _last
    _last = time.monotonic()
    key = (problem, device, chosen)
    if key in _considered or chosen.frozen or chosen.solver is not None or chosen.is_invariant:
        return
    with _lock:
        if key in _considered:
            return
        _considered.add(key)
        if unless():
            return
        _busy += 1
        _waiting.put(_Wanted(problem, device, chosen, choice_text(prepared.solver.name, prepared.config)))
        if _thread is None:
            _thread = threading.Thread(target=_work, name="convdispatch-find", daemon=True)
            _thread.start()


def pending() -> int:
    """Problems that wait to be measured, or are."""
    return _busy


def drain(timeout: float) -> bool:
    """Wait until everything that was asked for is measured; False after ``timeout`` seconds."""
    end = time.monotonic() + timeout
    while _busy and time.monotonic() < end:
        time.sleep(0.02)
    return not _busy


def capture_begins() -> None:
    """The commands of a stream are being captured: nothing is measured, and no plan is made, until all captures end.

    Waits for a plan that is being made.
    """
    global _capturing
    with _switching:
        _capturing += 1


def capture_ends() -> None:
    """Ends what ``capture_begins`` began: measuring and planning go on when no capture is left."""
    global _capturing
    _capturing = max(0, _capturing - 1)


def calls_elsewhere(count: Callable[[], Any]) -> None:
    """Also counts a change of ``count()``'s result as a call, from now on."""
    global _count
    _count = count


# --- the background thread that measures -----------------------------------------------------------------------------


def _work() -> None:
    global _busy
    children: dict[str, Child] = {}
    while True:
        try:
            wanted = _waiting.get(timeout=IDLE_S if children else None)
        except queue.Empty:
            _end(children)
            continue
        again = False
        try:
            with background.at_work():
                again = not _measured(wanted, children) and wanted.tries < TRIES
                if _made and ((_waiting.empty() and not again) or time.monotonic() - _made[0][0] > ADOPT_S):
                    _adopt()
        except (ConvDispatchError, OSError) as error:
            message = f"{wanted.problem} was not measured in the background: {error}"
            warnings.warn(message, ConvDispatchWarning, stacklevel=1)
        finally:
            if again:
                _waiting.put(wanted)
            else:
                with _lock:
                    _busy -= 1


def _end(children: dict[str, Child], only_halted: bool = False) -> None:
    for address, child in list(children.items()):
        if child.halted or not only_halted:
            children.pop(address).close()


def _give_way(children: dict[str, Child]) -> None:
    """A call came: children stop now, and end in the next pause; what would outlast this process ends now."""
    for child in children.values():
        if child.may_halt:
            child.halt()
        else:
            child.kill()
            child.halted = True


def _measured(wanted: _Wanted, children: dict[str, Child]) -> bool:
    """Whether that is done: measured, or known, or beyond the time; False where a call came in between."""
    global _spent, _pause
    chosen = Policy(**wanted.policy.promises).selection
    _until_quiet(_pause)
    _end(children, only_halted=True)
    info, left = runtime.device_info(wanted.device), settings.TORCH_FIND_MS.value() - _spent
    if left <= 0 or why_find(wanted.problem, info, chosen, budget_ms=None) is None:
        return True
    begin, wanted.tries = time.monotonic(), wanted.tries + 1
    try:
        said = _searched(wanted, children, min(PROBLEM_MS, left))
    finally:
        _spent += 1e3 * (time.monotonic() - begin)
    if said is None:
        _give_way(children)
        _pause = min(2 * _pause, MOST_QUIET_S)
        return False
    _take(wanted, info, chosen, said)
    return True


def _searched(wanted: _Wanted, children: dict[str, Child], budget_ms: float) -> dict[str, Any] | None:
    """The child process's measurements of a problem; None where a call came first, also while the child was
    starting."""
    address = runtime.address(wanted.device)
    try:
        if address not in children:
            children[address] = Child(aside.MODULE, {"device": address}, background=True)
            ready = _heard(children[address], START_S)
            if ready is None:
                return None
            children[address].may_halt = ready.get("may_halt", False)
        question = {"problem": str(wanted.problem), "incumbent": wanted.incumbent, "budget_ms": budget_ms}
        children[address].say(question | {"promises": wanted.policy.promises})
        return _heard(children[address], LEAST_S + 3e-3 * budget_ms)
    except ConvDispatchError:
        children.pop(address).close()
        raise


@contextlib.contextmanager
def _out_of_captures() -> Iterator[None]:
    """Inside the block no stream is being captured, and no capture begins."""
    while True:
        _until_quiet()
        with _switching:
            if not _capturing:
                yield
                return


def _last_call() -> float:
    """The time of the last call; calls of the native path are noticed by their count only."""
    global _last, _counted
    found = _count()
    if found != _counted:
        _counted, _last = found, max(_last, time.monotonic())
    return _last


def _until_quiet(pause: float = QUIET_S) -> None:
    while time.monotonic() - _last_call() < pause or _capturing:
        time.sleep(QUIET_S / 4)


def _heard(child: Child, seconds: float) -> dict[str, Any] | None:
    """The child process's answer; None where a call came first. Raises ConvDispatchError for one that ended or is
    silent."""
    begin = time.monotonic()
    while time.monotonic() - begin < seconds:
        try:
            said = child.hear(POLL_S)
        except Silent:
            if _last_call() > begin or _capturing:
                return None
            continue
        if said is None:
            raise ConvDispatchError(f"the process that measures was lost: {child.how_it_ended()}")
        return said
    raise ConvDispatchError(f"the process that measures said nothing for {seconds:g} s")


def _take(wanted: _Wanted, info: Any, chosen: Policy, said: dict[str, Any]) -> None:
    """Record what a child measured; where something else is to run now, make its plan before calls look for it."""
    for solver, (fingerprint, what) in said["unsound"].items():
        verdicts.note(wanted.problem, info, solver, fingerprint, what)
    if said["records"]:
        perfdb().record(*map(Record.from_json, said["records"]), scope=scope_of(chosen))
    with policy(**chosen.promises):
        first = ranking.rank(wanted.problem, info, chosen)[0]
        if choice_text(first.solver.name, first.config) == wanted.incumbent:
            return
        context = runtime.context(wanted.device)
        with _out_of_captures():
            made = dispatch.make(first.solver, first.config, wanted.problem, context, chosen, first)
            _made.append((time.monotonic(), wanted.problem, context, wanted.policy, made))


def _adopt() -> None:
    """Put all plans that were made into use together: the next calls are built anew, those of other layers too."""
    with _out_of_captures():
        for _, problem, context, chosen, made in _made:
            dispatch.adopt(problem, context, chosen, made)
    _made.clear()
