"""Tiers: a framework's own kernel computes a problem's first calls; ours takes over once it is compiled.

On CUDA a new problem is planned within its call, as long as a burst of new problems takes at most ``BURST_S``. Further
problems, and those that come while another thread creates the device's context, go to child processes, and their calls
to the framework's kernel, counted as ``compiling``. Once a child has planned a problem, a later call loads the plan. A
capture waits for everything before it begins (``drain``); no call changes its tier inside, and what it leaves to the
framework for that reason is noted.

On a CPU a layer's first sizes wait (``sizes``). A further size that has come often enough is planned in the background,
a few at a time and at the lowest priority, because the processors that compile are those that compute.
"""

from __future__ import annotations

import contextlib
import functools
import math
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from concurrent import futures
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from ...api import settings
from ...api.policy import Policy, current_policy
from ...api.problem import ConvProblem
from ...device import background, runtime
from ...device.cuda import machine_code
from ...device.garbage import collection_put_off
from ...selection import dispatch
from ...selection.planpack import from_environment
from ...selection.planpack.decisions import fixed_by_pack
from ..planner_pool.pool import NoHelp, PlannerPool, pool_of
from ..planner_pool.progress_line import WAITED_S, ProgressLine
from .fallback import Fallback

BURST_S = 0.3
"""Seconds that a burst of new problems may take within calls, before further ones are planned in child processes."""
LULL_S = 0.25
"""Seconds without a new problem, after which the next one begins a burst."""
LOAD_SHARE = 0.5
"""The largest share of the wall time that calls spend on loading plans while problems are pending."""
HOST_LOAD_SHARE = 0.1
"""As LOAD_SHARE, on a CPU, where calls are short and loading a plan takes some milliseconds."""
LOAD_S = 0.05
"""Seconds of loading that the first calls may take, and that a CPU's calls may save up."""
WAIT_S = 600.0
"""The most seconds that a capture waits for kernels, so that a compiler that hangs does not hang the program."""
MAX_WAITING = 8
"""The most problems of a CPU that wait for a child process; a further one is requested when its size returns."""
MOST_PENDING = 64
"""The most problems of a CPU that are planned but not loaded, because their sizes have not come again."""
_GPU_FLOPS, _GPU_BANDWIDTH = 20e12, 2e12
"""Rough operations and bytes per second of a GPU: only their ratio affects the order in which problems are planned."""


@dataclass
class Framework:
    """The functions of a framework that this module calls."""

    capturing: Callable[[], bool]
    """Whether a stream's commands are being captured, during which no call changes its tier."""
    note_left: Callable[[ConvProblem, str], None]
    """Notes a problem that a capture under way leaves to the framework's own kernel, and why."""
    several: Callable[[], bool]
    """Whether this process is one of several that must choose alike: then calls wait, so that all run the same."""
    count: Callable[[], None]
    """Counts a call that the framework's own kernel computes while ours is being compiled."""


class Compiling(Fallback):
    """The framework's own kernel computes the call, because the specialised one is not compiled yet."""

    def __init__(self, again: Callable[[str], bool] | None = None) -> None:
        super().__init__("its kernels are being compiled in the background", lasting=False, again=again)


class _Allowance:
    """The seconds of calls that loading of plans may take: a share of the time, of which ``most`` is saved up. Callers
    hold ``_lock``."""

    def __init__(self, share: float, most: float) -> None:
        self.share, self.most, self.saved, self.since = share, most, LOAD_S, 0.0

    def may_load(self, now: float) -> bool:
        self.saved, self.since = min(self.most, self.saved + self.share * (now - self.since)), now
        return self.saved > 0


class _Bursts:
    """The seconds that the present burst of new problems took within calls, and its end. Callers hold ``_lock``."""

    seconds = last = 0.0

    def may_plan(self, now: float) -> bool:
        if pending():
            return False
        if now - self.last > LULL_S:
            self.seconds = 0.0
        return self.seconds < BURST_S


_lock = threading.RLock()
_bursts = _Bursts()
_allowance, _host_allowance = _Allowance(LOAD_SHARE, math.inf), _Allowance(HOST_LOAD_SHARE, LOAD_S)
_pending: dict[Any, Pending] = {}
"""The problems that wait for their plan, by pool, problem and policy."""
_contexts: dict[Any, threading.Thread] = {}
"""The threads that create the contexts of devices."""
_built = threading.Condition()
_builds = 0
"""The number of calls that are being built within calls now."""


def context_is_coming(device: Any) -> bool:
    """Whether another thread creates a device's context now. The first call starts it, unless there is a context."""
    with _lock:
        if device not in _contexts:
            if runtime.has_context(device):
                return False
            _contexts[device] = background.start(functools.partial(_create_context, device), "convdispatch-context")
        return _contexts[device].is_alive()


def _create_context(device: Any) -> None:
    with contextlib.suppress(Exception):  # a later call gets the same error
        runtime.context(device)


def waits(policy: Policy, on_cuda: bool, framework: Framework) -> bool:
    """Whether a first call under a policy waits for its specialised kernel."""
    tier = _tier() or ("ready" if on_cuda else "full")
    return tier != "ready" or _promised(policy, framework)


def by_size(policy: Policy, framework: Framework) -> bool:
    """Whether ``sizes`` decides if a first call on a CPU waits: the caller has set no tier, solver or promise."""
    return _tier() is None and policy.solver is None and not _promised(policy, framework)


def _tier() -> str | None:
    return current_policy().tier or settings.TIER.value()


def _promised(policy: Policy, framework: Framework) -> bool:
    """Whether a policy promises more than correct results, or several processes must run the same."""
    return policy.binds or policy.frozen or framework.several()


class Pending:
    """A problem that a child process plans: ``resolved()`` returns its call once the plan is ready.

    Constant weights of meanwhile calls are remembered weakly, so that ``pack`` can pack them before a capture.
    """

    prepared = None
    shape = None
    backward_ready = True

    def __init__(
        self,
        key: tuple[Any, ConvProblem, Policy],
        pool: PlannerPool,
        build: Callable[[], Any],
        framework: Framework,
        on_cuda: bool = False,
    ) -> None:
        _, self.problem, self.policy = self.key = key
        self.pool, self._framework = pool, framework
        self.call: Any = None
        self.error: Exception | None = None
        """The error of loading the plan."""
        self._build, self._on_cuda = build, on_cuda
        self._promised: dict[int, tuple[Any, Any]] = {}
        self._allowance: Any = _allowance
        self.answer: Future[None] = Future()
        in_pack = fixed_by_pack(self.problem, pool.device, runtime.device_info(pool.device), self.policy) is not None
        # A plan pack contains everything that the call needs, so no child process plans it.
        if in_pack and (not on_cuda or machine_code.carried()):
            self.answer.set_result(None)
        else:
            # The problem that a GPU takes longest for is planned first.
            seconds = max(self.problem.flops / _GPU_FLOPS, self.problem.bytes / _GPU_BANDWIDTH)
            self.answer = pool.ask(self.problem, self.policy, seconds)

    def resolved(self, wait: bool = False) -> Any:
        """The call, loaded now if its plan is ready; None if it is not, or if loading has used up its share of time.

        Raises the errors of loading.
        """
        if self.call is not None:
            return self.call
        if not (wait or self._may_build()) or self._framework.capturing():
            return None
        error = self.answer.exception()
        if error is not None and not isinstance(error, NoHelp):
            raise error
        with _lock:
            begin = time.perf_counter()
            if self.call is not None or not (wait or self._allowance.may_load(begin)):
                return self.call
            try:
                with self.pool.lent(), collection_put_off():
                    self.call = self._build()
            except Exception as error:
                self.error = error
                raise
            finally:
                if self.call is not None or self.error is not None:  # after an interrupt the problem stays pending
                    _pending.pop(self.key, None)
                self._allowance.saved -= time.perf_counter() - begin
        return self.call

    def _may_build(self) -> bool:
        return self.answer.done() and not (self._on_cuda and context_is_coming(self.pool.device))

    def pack(self) -> None:
        """Pack the constant weights of calls that came before the plan was ready."""
        weights_to_pack, self._promised = self._promised, {}
        for constant, w in weights_to_pack.values():
            weights = w()
            if weights is not None and constant() is not None and hasattr(self.call, "pack"):
                self.call.pack(weights, constant())

    def __call__(self, x: Any, w: Any, y: Any, bias: Any = None, constant: Any = None, residual: Any = None) -> Any:
        """Raises Compiling."""
        if constant is not None:
            self._promised[id(constant)] = weakref.ref(constant), weakref.ref(w)
        self._note_capture()
        raise Compiling(self._again)

    def _again(self, _: str) -> bool:
        """Whether ``resolved()`` would still return None; if so, counts the call, which the framework computes."""
        if self.call is not None:
            return False
        if self._may_build() and self._allowance.may_load(time.perf_counter()) and not self._framework.capturing():
            return False
        self._note_capture()
        self._framework.count()
        return True

    def _note_capture(self) -> None:
        if self._framework.capturing():
            failed = self.error is not None and f"its kernels could not be built ({str(self.error).splitlines()[0]})"
            self._framework.note_left(self.problem, failed or "its kernels were still being compiled")


def expect(device: Any) -> None:
    """Start the child processes of an OpenCL device, whose problems will be planned there, on a machine that has
    decided nothing yet."""
    with _lock:
        pool_of(device).expect()


def timed(find: Callable[[], Any]) -> Any:
    """Returns ``find()``; its time, such as that of initialising a device, counts as part of the burst."""
    begin = time.perf_counter()
    try:
        with collection_put_off():
            return find()
    finally:
        now = time.perf_counter()
        with _lock:
            if now - _bursts.last > LULL_S and now - begin > LULL_S:
                _bursts.seconds = 0.0
            _bursts.seconds += now - begin
            if now - begin > LULL_S:
                _bursts.last = now


@collection_put_off()
def first(
    device: Any, problem: ConvProblem, policy: Policy, build: Callable[[], Any], framework: Framework, on_cuda: bool
) -> Any:
    """Returns ``build()`` if the call is planned now, else a ``Pending``, which becomes the call later. Raises the
    errors of ``build``."""
    build = building()(build)
    if problem.mb == 0 or waits(policy, on_cuda, framework):
        return build()
    is_coming = on_cuda and not framework.capturing() and context_is_coming(device)
    if is_coming:
        from_environment()
    elif _is_at_hand(device, problem, policy, framework):
        return build()
    with _lock:
        if (key := (device, problem, policy.selection)) in _pending:
            return _pending[key]
        now, pool = time.perf_counter(), pool_of(device)
        if not is_coming and _bursts.may_plan(now):
            try:
                return build()
            finally:
                _bursts.last = time.perf_counter()
                _bursts.seconds += _bursts.last - now
        if not pending():
            _allowance.since, _allowance.saved = now, LOAD_S
        created = _pending[key] = Pending(key, pool, build, framework, on_cuda)
        return created


@collection_put_off()
def aside(device: Any, problem: ConvProblem, policy: Policy, build: Callable[[], Any], framework: Framework) -> Any:
    """Returns as ``first``, for a further size of a layer on a CPU. Raises Compiling if enough problems wait already,
    and the errors of ``build``."""
    build = building()(build)
    if _is_at_hand(device, problem, policy, framework):
        return build()
    with _lock:
        if (key := (device, problem, policy.selection)) in _pending:
            return _pending[key]
        pool = pool_of(device)
        if pool.left >= MAX_WAITING:
            raise Compiling()
        idle = [planned for planned in _pending.values() if planned.answer.done() and planned.pool is pool]
        for planned in idle[: max(0, len(idle) - MOST_PENDING)]:
            _pending.pop(planned.key, None)
        created = _pending[key] = Pending(key, pool, build, framework)
        created._allowance = _host_allowance
        return created


def _is_at_hand(device: Any, problem: ConvProblem, policy: Policy, framework: Framework) -> bool:
    """Whether a call is built at once: its plan is in the cache, or a stream is being captured."""
    if framework.capturing() or dispatch.planned(problem, runtime.context(device), policy):
        return True
    from_environment()
    return False


def pending() -> int:
    """The number of problems that are being planned in child processes."""
    return sum(not problem.answer.done() for problem in list(_pending.values()))


def drain(timeout_s: float = WAIT_S, purpose: str = "compiling kernels") -> int:
    """Wait until all problems met so far are planned, load the plans, and pack their constant weights; returns how many
    problems were pending.

    A problem that is not planned after ``timeout_s`` seconds stays pending, and so do all that are left after an
    interrupt. After a second a progress line says for which ``purpose`` the caller waits.
    """
    end, problems = time.monotonic() + timeout_s, list(_pending.values())

    def counts() -> tuple[int, int]:
        left = sum(not problem.answer.done() for problem in problems)
        return len(problems) - left, left

    with ProgressLine(purpose, counts, after_s=WAITED_S):
        for problem in problems:
            if futures.wait([problem.answer], max(0.0, end - time.monotonic())).done:
                with contextlib.suppress(Exception):  # the next call of the problem raises the same error
                    problem.resolved(wait=True)
                    problem.pack()
    return len(problems)


def wait_for_builds() -> None:
    """Wait until the other threads' calls that are being built are built, for at most ``WAIT_S``: a program that is
    loaded beside a capture may end that capture."""
    with _built:
        _built.wait_for(lambda: not _builds, WAIT_S)


@contextlib.contextmanager
def building() -> Iterator[None]:
    """``wait_for_builds`` waits for the end of the block, which builds a call or compiles a plan."""
    global _builds
    with _built:
        _builds += 1
    try:
        yield
    finally:
        with _built:
            _builds -= 1
            _built.notify_all()
