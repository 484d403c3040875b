"""Measures a problem's candidates in the background, as ``torch.backends.cudnn.benchmark`` requests.

A child process measures one problem at a time, each within ``PROBLEM_MS`` and all within
``CONVDISPATCH_TORCH_FIND_MS`` a process, and only while no calls come: a search begins after ``QUIET_S`` without calls,
and the next call ends it, after which the next search waits for twice the pause. A problem whose search was ended
``TRIES`` times keeps its choice. The present solver is measured first, and in turns with the others; a candidate that
is clearly faster is compiled in this process, and later calls use it. Nothing changes while a stream is captured.
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
from .tiers import building

PROBLEM_MS = 1000.0
"""The most milliseconds of one problem's search."""
QUIET_S = 0.1
"""Seconds without a call after which measuring begins."""
MOST_QUIET_S = 2.0
"""The longest pause without calls that a search waits for; most searches end within a pause of this length."""
POLL_S = 0.002
"""The most seconds for which a search and a new call share the device, before the search is ended."""
TRIES = 3
"""The most searches of one problem, if calls end them."""
ADOPT_S = 30.0
"""The most seconds that a finished plan waits for others, so that calls adopt them together."""
IDLE_S = 10.0
"""Seconds without a problem after which the child ends, because it holds a context on a GPU."""
START_S = 180.0
"""The most seconds that a child process may take to start."""
LEAST_S = 120.0
"""The most seconds that a search may take beyond its budget."""


@dataclass
class _Request:
    problem: ConvProblem
    device: Any
    policy: Policy
    incumbent: str
    tries: int = 0


_considered: set[Any] = set()
_requests: queue.SimpleQueue[_Request] = queue.SimpleQueue()
_lock = threading.Lock()
_capturing = 0
_spent = 0.0
_busy = 0
_pause = QUIET_S
"""Seconds without a call after which the next search begins."""
_last = 0.0
"""The time of the last call, by ``time.monotonic``."""
_count: Callable[[], Any] = int
_last_count: Any = None
_thread: threading.Thread | None = None
_compiled: list[tuple[float, ConvProblem, Any, Policy, Prepared]] = []
"""The plans that calls will use, and the time of each; only the background thread uses the list."""


def consider(
    problem: ConvProblem, device: Any, chosen: Policy, prepared: Prepared, unless: Callable[[], bool] = bool
) -> None:
    """Note a call: no search runs now, and its problem will be measured if it is new.

    A problem is never measured if ``unless()`` is true, for example for one rank of several, which must agree.
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
        _requests.put(_Request(problem, device, chosen, choice_text(prepared.solver.name, prepared.config)))
        if _thread is None:
            _thread = threading.Thread(target=_work, name="convdispatch-find", daemon=True)
            _thread.start()


def pending() -> int:
    """The number of problems that wait to be measured or are being measured."""
    return _busy


def drain(timeout: float) -> bool:
    """Wait until all requested problems are measured; returns False after ``timeout`` seconds."""
    end = time.monotonic() + timeout
    while _busy and time.monotonic() < end:
        time.sleep(0.02)
    return not _busy


def capture_begins() -> None:
    """Note that a stream's commands are captured: until all captures end, nothing is measured and no plan compiled. Who
    captures then waits for a plan that is being compiled (``tiers.wait_for_builds``)."""
    global _capturing
    _capturing += 1


def capture_ends() -> None:
    """Note the end of a capture: measuring and compiling go on when no capture is left."""
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
            request = _requests.get(timeout=IDLE_S if children else None)
        except queue.Empty:
            _end(children)
            continue
        retries = False
        try:
            with background.at_work():
                retries = not _measured(request, children) and request.tries < TRIES
                if _compiled and ((_requests.empty() and not retries) or time.monotonic() - _compiled[0][0] > ADOPT_S):
                    _adopt()
        except (ConvDispatchError, OSError) as error:
            message = f"{request.problem} was not measured in the background: {error}"
            warnings.warn(message, ConvDispatchWarning, stacklevel=1)
        finally:
            if retries:
                _requests.put(request)
            else:
                with _lock:
                    _busy -= 1


def _end(children: dict[str, Child], only_halted: bool = False) -> None:
    for address, child in list(children.items()):
        if child.halted or not only_halted:
            children.pop(address).close()


def _halt_children(children: dict[str, Child]) -> None:
    """Halt the children because a call came, to be ended in the next pause; kill those that would outlive this
    process."""
    for child in children.values():
        if child.may_halt:
            child.halt()
        else:
            child.kill()
            child.halted = True


def _measured(request: _Request, children: dict[str, Child]) -> bool:
    """Whether a request is finished: measured, not needed, or beyond the budget; False if a call ended the search."""
    global _spent, _pause
    chosen = Policy(**request.policy.promises).selection
    _until_quiet(_pause)
    _end(children, only_halted=True)
    info, budget_ms = runtime.device_info(request.device), settings.TORCH_FIND_MS.value() - _spent
    if budget_ms <= 0 or why_find(request.problem, info, chosen, budget_ms=None) is None:
        return True
    begin, request.tries = time.monotonic(), request.tries + 1
    try:
        answer = _searched(request, children, min(PROBLEM_MS, budget_ms))
    finally:
        _spent += 1e3 * (time.monotonic() - begin)
    if answer is None:
        _halt_children(children)
        _pause = min(2 * _pause, MOST_QUIET_S)
        return False
    _record_and_compile(request, info, chosen, answer)
    return True


def _searched(request: _Request, children: dict[str, Child], budget_ms: float) -> dict[str, Any] | None:
    """The child process's measurements of a problem; None if a call came first, or while the child was starting."""
    address = runtime.address(request.device)
    try:
        if address not in children:
            children[address] = Child(aside.MODULE, {"device": address}, background=True)
            ready = _answer(children[address], START_S)
            if ready is None:
                return None
            children[address].may_halt = ready.get("may_halt", False)
        question = {"problem": str(request.problem), "incumbent": request.incumbent, "budget_ms": budget_ms}
        children[address].say(question | {"promises": request.policy.promises})
        return _answer(children[address], LEAST_S + 3e-3 * budget_ms)
    except ConvDispatchError:
        children.pop(address).close()
        raise


@contextlib.contextmanager
def _out_of_captures() -> Iterator[None]:
    while True:
        _until_quiet()
        with building():
            if not _capturing:
                yield
                return


def _last_call() -> float:
    """The time of the last call; calls of the native path are noticed when their count changes."""
    global _last, _last_count
    count = _count()
    if count != _last_count:
        _last_count, _last = count, max(_last, time.monotonic())
    return _last


def _until_quiet(pause: float = QUIET_S) -> None:
    while time.monotonic() - _last_call() < pause or _capturing:
        time.sleep(QUIET_S / 4)


def _answer(child: Child, seconds: float) -> dict[str, Any] | None:
    """The child process's answer; None if a call came first. Raises ConvDispatchError for a child that has ended or
    does not answer."""
    begin = time.monotonic()
    while time.monotonic() - begin < seconds:
        try:
            answer = child.hear(POLL_S)
        except Silent:
            if _last_call() > begin or _capturing:
                return None
            continue
        if answer is None:
            raise ConvDispatchError(f"the process that measures was lost: {child.how_it_ended()}")
        return answer
    raise ConvDispatchError(f"the process that measures said nothing for {seconds:g} s")


def _record_and_compile(request: _Request, info: Any, chosen: Policy, answer: dict[str, Any]) -> None:
    """Record a child's measurements; if they change the choice, compile the new plan before calls need it."""
    for solver, (fingerprint, what) in answer["unsound"].items():
        verdicts.note(request.problem, info, solver, fingerprint, what)
    if answer["records"]:
        perfdb().record(*map(Record.from_json, answer["records"]), scope=scope_of(chosen))
    with policy(**chosen.promises):
        best = ranking.rank(request.problem, info, chosen)[0]
        if choice_text(best.solver.name, best.config) == request.incumbent:
            return
        context = runtime.context(request.device)
        with _out_of_captures():
            prepared = dispatch.make(best.solver, best.config, request.problem, context, chosen, best)
            _compiled.append((time.monotonic(), request.problem, context, request.policy, prepared))


def _adopt() -> None:
    """Put all compiled plans into use together, because each change rebuilds the next calls of all layers."""
    with _out_of_captures():
        for _, problem, context, chosen, prepared in _compiled:
            dispatch.adopt(problem, context, chosen, prepared)
    _compiled.clear()
