"""Tuning on real calls: ``policy(tune="online", share=0.05)`` tries candidates on the caller's own data.

Each problem has a tuner. The plan that answers is first held against float64 at sampled places, on a caller's data.
Then, after a call has been answered and as long as trials took less than their share of the calls' time, a candidate
runs on the same operands into memory of its own: once to be compared with what the verified plan writes, and in turn
with that plan to be timed. Both are recorded. Only one that was right may win; calls change to it when they
look for their plan anew. Candidates compile in the background, one at a time. A trial that raises ends its candidate.
"""

from __future__ import annotations

import statistics
import threading
import time
from collections import deque
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ..api.policy import Policy
from ..api.problem import ConvProblem
from ..api.results import Result, Results
from ..device import background, runtime
from ..device.commands.host_memory import HostMemory
from ..device.commands.queues import commands_of
from ..selection import dispatch
from ..selection.generic_solver import GenericSolver
from ..selection.prepared import Constant, Prepared
from ..selection.records.perfdb import perfdb
from ..selection.records.record import LEAST_SAMPLES
from ..selection.records.timing import summarise
from ..selection.solver_query import query
from .reference import relative_error
from .sampled import sampled_fault
from .search.answer import record_of
from .search.candidates import Entry, candidates
from .search.trialdata import error_limit, numpy_dtype

if TYPE_CHECKING:
    import pyopencl as cl

MOST = 12
"""Candidates of a problem that are tried."""
SAMPLES = 7
"""Runs of a candidate, in turn with the plan that answers."""
BETTER = 0.97
"""A candidate wins that takes at most so much of the other's time."""


class Tuner:
    """Watches the calls of one problem; ``after`` is called when one was enqueued."""

    def __init__(self, problem: ConvProblem, context: cl.Context, policy: Policy, prepared: Prepared) -> None:
        self.problem, self.context, self.policy, self.best = problem, context, policy, prepared
        self.calls_s = self.trials_s = 0.0
        """Seconds that calls and trials took so far."""
        self.verified, self.done = False, problem.accumulate or not prepared.recordable
        self._info = runtime.device_info(context.devices[0])
        self._lock = threading.Lock()
        self._todo: deque[Entry] | None = None
        self._ready: deque[tuple[Entry, Prepared]] = deque()
        self._compiling = False
        self._last = time.perf_counter()

    def after(self, queue: Any, operands: dict[str, Any], constant: Constant | None, event: Any) -> None:
        """A call was answered: ``operands`` are its memory by name. At most the trials' share of time is spent here."""
        if self.done or not self._lock.acquire(blocking=False):
            return
        try:
            now = time.perf_counter()
            self.calls_s += now - self._last
            if self.trials_s <= self.policy.share * self.calls_s and commands_of(queue).kind != "cuda":
                self._spend(queue, operands, constant, event)
                self.trials_s += time.perf_counter() - now
        except Exception:  # the call was answered: what goes wrong here is no matter of its caller
            self.done = True
        finally:
            self._last = time.perf_counter()
            self._lock.release()

    def _spend(self, queue: Any, operands: dict[str, Any], constant: Constant | None, event: Any) -> None:
        if not self.verified:
            event.wait()
            self._verify(queue, operands)
        elif self._ready:
            entry, prepared = self._ready.popleft()
            event.wait()
            self._try(entry, prepared, queue, operands, constant)
        elif not self._compiling:
            self._compile_next()

    def _verify(self, queue: Any, operands: dict[str, Any]) -> None:
        """Hold what the plan wrote against float64; one that is wrong is set aside."""
        problem, given = self.problem, {}
        names = [*"xwy", *(name for name in ("bias", "residual") if getattr(problem, name))]
        for name in names:
            given[name] = _read(queue, operands[name], name, problem)
        written = given.pop(problem.written)
        fault = sampled_fault(problem, written, **given)
        if fault is not None:
            self.done = True
            name = self.best.solver.name
            dispatch.quarantine(problem, self._info, name, f"wrong on a call's data: {fault}", self.policy)
        self.verified = True

    def _compile_next(self) -> None:
        if self._todo is None:
            found, _ = candidates(self.problem, self._info, replace(self.policy, tune=None))
            same = (self.best.solver.name, dict(self.best.config))
            self._todo = deque([one for one in found if (one.solver.name, dict(one.config)) != same][:MOST])
        if not self._todo:
            self.done = True
            return
        entry, self._compiling = self._todo.popleft(), True

        def work() -> None:
            try:
                made = dispatch.make(entry.solver, entry.config, self.problem, self.context, self.policy, "online")
                if made.recordable:
                    self._ready.append((entry, made))
            except Exception:  # another candidate may do
                pass
            finally:
                self._compiling = False

        background.start(work, "convdispatch-online")

    def _try(
        self, entry: Entry, prepared: Prepared, queue: Any, operands: dict[str, Any], constant: Constant | None
    ) -> None:
        """Run a candidate beside the plan that answers; both write memory of the trial's own."""
        problem, own = self.problem, dict(operands)
        size = int(np.prod(problem.out_shape)) * problem.out_itemsize
        results = {name: commands_of(queue).allocate(size) for name in ("candidate", "best")}
        times: dict[str, list[float]] = {name: [] for name in results}
        try:
            for turn in range(SAMPLES + 1):
                for name, plan in (("best", self.best), ("candidate", prepared)):
                    own[problem.written] = results[name]
                    start = time.perf_counter()
                    _run(plan, queue, own, constant)
                    if turn:  # the first run packs weights and warms up
                        times[name].append(time.perf_counter() - start)
                if turn == 0 and not self._same(queue, results):
                    return
            self._record((self._entry(self.best), self.best, times["best"]), (entry, prepared, times["candidate"]))
        except Exception:  # its kernels, or times that are none
            return
        here, there = (statistics.median(times[name]) for name in ("candidate", "best"))
        if here < BETTER * there:
            self.best = prepared
            prepared.after = self.after
            dispatch.adopt(problem, self.context, self.policy, prepared)

    def _same(self, queue: Any, results: dict[str, Any]) -> bool:
        problem = self.problem
        found, expected = (_read(queue, results[name], problem.written, problem) for name in results)
        wide = expected.astype(np.float64)
        if not np.isfinite(wide).all():
            return False  # such data judge nothing
        return relative_error(found.astype(np.float64), wide) <= 2 * error_limit(problem)

    def _entry(self, plan: Prepared) -> Entry:
        default = query(plan.solver, self.problem, self._info).configs[:1] == (dict(plan.config),)
        return Entry(plan.solver, plan.config, None, Result(plan.solver.name, dict(plan.config), default=default))

    def _record(self, *timed: tuple[Entry, Prepared, list[float]]) -> None:
        """The times of a candidate and of the plan that answers, in one record file."""
        for entry, prepared, seconds in timed:
            entry.timing = summarise([1e3 * each for each in seconds])
            entry.benchmarked = len(seconds) >= LEAST_SAMPLES
            entry.say()
            entry.result.status, entry.result.workspace = "measured", prepared.workspace_size
        results = Results([entry.result for entry, _, _ in timed])
        results.problem, results.device, results.conditions = self.problem, self._info, "tuned on calls"
        perfdb().record(*(record_of(result, results, self.policy.workspace_limit, None) for result in results))


def _run(plan: Prepared, queue: Any, operands: dict[str, Any], constant: Constant | None) -> None:
    """Enqueue and wait; weights packed as a call would have them."""
    weights, after = operands["w"], None
    if plan.packed_size and constant is not None:
        weights, packed = constant.packed(plan, queue, weights)
        after = None if packed is None else [packed]
    elif plan.packed_size:
        raise ValueError("packed weights are a constant's")
    x, y = operands["x"], operands["y"]
    plan.enqueue(queue, x, weights, y, operands.get("bias"), operands.get("residual"), after).wait()


def _read(queue: Any, memory: Any, operand: str, problem: ConvProblem) -> np.ndarray:
    shape, dtype = problem.form(operand)
    found = np.empty(shape, dtype if problem.quantized else numpy_dtype(problem))
    if isinstance(memory, HostMemory):
        found.reshape(-1).view(np.uint8)[:] = memory.bytes(0, found.nbytes)
    else:
        commands_of(queue).read(memory, found)
    return found


def switch_on() -> None:
    """From now on plans that are made under ``policy(tune="online")`` have a tuner."""
    dispatch.on_plan(_watch)


def _watch(problem: ConvProblem, context: cl.Context, policy: Policy, prepared: Prepared) -> None:
    if prepared.after is None and prepared.solver.name != GenericSolver.name:
        prepared.after = Tuner(problem, context, policy, prepared).after
