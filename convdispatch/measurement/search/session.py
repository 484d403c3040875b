"""One search: which candidates there are, in what order they are tried, what ends it, and what is recorded.

Each candidate is compiled, verified and screened with three samples; one that takes three times the best time is cut.
The others, twelve at most, are benchmarked. The incumbent, which would run without the search, comes first and is
always benchmarked. A candidate's time is predicted from its cost and from the times of earlier candidates over their
costs; one that would be far too slow is cut unmeasured.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pyopencl as cl

from ...api.device import DeviceInfo
from ...api.errors import PluginError
from ...api.fault_text import words
from ...api.policy import Policy
from ...api.problem import ConvProblem
from ...api.results import Results
from ...device import runtime
from ...selection import dispatch
from ...selection.choice.provenance import contestant
from ...selection.plugins import answer_trial, verdicts
from ...selection.plugins.loader import plugins
from ...selection.prepared import Prepared
from ...selection.records.perfdb import perfdb, scope_of
from ...selection.records.record import LEAST_SAMPLES, Record
from ...selection.records.timing import BadTiming, Timing, summarise
from ...selection.solver_query import Fault, query
from ..compiling import StillCompiling, compiled_within
from ..measure import CUT_FACTOR, Candidate, Outcome, interleaved
from .answer import conditions, judge, record_of, set_aside, unmeasured
from .candidates import Entry, candidates
from .trial import Harness, OutOfTime, WrongResult

if TYPE_CHECKING:
    from .probing import Prober

SCREENING_SAMPLES = 3
"""The number of samples that screening takes of each candidate."""
FINALISTS = 12
"""The most candidates that are benchmarked after screening."""
ROUNDS = 25
"""The most interleaved rounds of benchmarking."""
LEAST_TRIAL_S = 10.0
"""Seconds that a candidate may take in a child process at least; twice the budget where that is longer."""
FIRST_S = 300.0
"""Seconds that the first candidate may compile, whatever the budget: a cold cache on a busy machine takes long."""
FIRST_OF_SOLVER_S = 30.0
"""Seconds that each solver's first configuration may compile where ``every_solver`` measures it beyond the budget."""
MAX_RATIO = 1.5
"""A candidate may be benchmarked if it took at most this many times the best one's time at screening."""
FINAL_SHARE = 0.25
"""The largest fraction of the budget that is reserved for benchmarking."""
LEAST_ROUNDS = LEAST_SAMPLES + 1
"""The rounds that benchmarking must have time for; with less time, fewer candidates are benchmarked."""
SUSPECT_RATIO = 20.0
"""A candidate is cut unmeasured if it is predicted to take this many times the best time so far; the factor is high
because predictions may be wrong."""
SLOW_FLOPS = 4e9
"""The operations of a problem from which candidates are cut unmeasured; those of smaller problems are soon measured."""


@dataclass(frozen=True)
class SearchOptions:
    """The limits of a search, and what its caller knows."""

    budget_ms: float | None = None
    every_solver: bool = False
    """Whether the budget ends the search only after every solver's first configuration was measured once."""
    workspace_limit: int | None = None
    """The most bytes of a plan's workspace; None for no limit."""
    memory_limit: int | None = None
    """The most bytes of device memory that the search allocates; None for the default."""
    isolate: bool | None = None
    """Whether candidates run in a child process first; with None only those of unproven plugins."""
    watch: Callable[[str], None] = lambda name: None
    """A function that is called with the name of each candidate before it runs."""
    incumbent: str | None = None
    """The choice (``choice_text``) that runs without the search; None to let this process determine it."""


class Search:
    """The search for one problem on one device; ``run`` once, then ``record``."""

    def __init__(self, problem: ConvProblem, device: cl.Device, policy: Policy, **options: Any) -> None:
        """``options`` are the fields of SearchOptions."""
        self.problem, self.device, self.policy, self.options = problem, device, policy, SearchOptions(**options)
        self._given = str(problem)
        self.info: DeviceInfo = runtime.device_info(device)
        self._must_run = False
        self.start = time.perf_counter()
        self.queue = cl.CommandQueue(runtime.context(device))
        self._fatal, self._child_ms = dict[str, str](), 0.0
        self._lost = ""
        self._prober: Prober | None = None
        self._compile_ms: list[float] = []
        self._has_screened = False
        self._contest = ""
        self.unsound: dict[str, str] = {}
        """How a solver was wrong, crashed or hung, by the solver's name."""
        self._ms_per_cost: float | None = None
        self._harnesses: dict[ConvProblem, Harness] = {}

    # --- the search as a whole ---------------------------------------------------------------------------------------

    def run(self) -> Results:
        """Screen, benchmark and judge all candidates. Errors of candidates are results, and not raised."""
        silent = self._untrusted_faults()
        policy = replace(self.policy, workspace_limit=self.options.workspace_limit)
        entries, refused = candidates(self.problem, self.info, policy, self.options.incumbent)
        self._contest = " ".join(sorted({contestant(entry.solver.name, self.info) for entry in entries}))
        try:
            for entry in entries:
                self._try(entry, entries)
        finally:
            if self._prober is not None:
                self._prober.close()
        if not self._lost:
            self._interleave([entry for entry in entries if entry.prepared is not None])
        self.unsound = silent | set_aside(entries, self.problem, self.info)
        results = judge(entries, refused)
        results.problem, results.device = self.problem, self.info
        results.peak_bytes = sum(harness.memory.peak for harness in self._harnesses.values())
        results.conditions = conditions(results, self.options.budget_ms)
        results.inconclusive = unmeasured(entries)
        results.lost = self._lost
        self._harnesses.clear()
        results.spent_ms = self._spent_ms() + self._child_ms
        return results

    def _stated(self, entry: Entry) -> int | None:
        """The bytes of workspace that a candidate's solver states without compiling, or None."""
        try:
            return query(entry.solver, self.problem, self.info).workspace(entry.config)
        except Fault:
            return None

    def _untrusted_faults(self) -> dict[str, str]:
        """Query unproven plugins in a child process; return how solvers ended it. These solvers are set aside."""
        faults: dict[str, str] = {}
        start = time.perf_counter()
        if self.options.isolate is not False and answer_trial.LIMIT_S is not None:
            plugin_of = plugins().plugin_of
            names = {
                plugin for solver, plugin in plugin_of.items() if self.options.isolate or not plugins().proven(solver)
            }
            for plugin in sorted(names - plugins().own):
                self.options.watch(plugin)
                for solver, how in answer_trial.trial(plugin, self.problem, self.info).items():
                    faults[solver] = f"find: failed: {how}"
                    dispatch.quarantine(self.problem, self.info, solver, faults[solver])
        # The time of child processes does not count against the search's budget.
        self.start += time.perf_counter() - start
        self._child_ms += (time.perf_counter() - start) * 1e3
        return faults

    def record(self, results: Results) -> None:
        """Store every measured time and the unsound solvers; the next call chooses again.

        Raises PluginError, and stores nothing, if the problem object was changed during the search.
        """
        became, of_results = (each.text_of_fields() for each in (self.problem, results.problem))
        if {became, of_results} != {self._given}:
            raise PluginError(f"{self._given} became {became} while it was measured: nothing is recorded")
        for solver, what in self.unsound.items():
            verdicts.note(self.problem, self.info, solver, plugins().fingerprint(solver), what)
        if records := self.records(results):
            perfdb().record(*records, scope=scope_of(self.policy))
            dispatch.forget(self.problem)

    def records(self, results: Results) -> list[Record]:
        """A record of every candidate that was timed, with its provenance."""
        timed = [result for result in results if result.median_ms is not None]
        found = [record_of(result, results, self.options.workspace_limit, self.options.budget_ms) for result in timed]
        return [replace(record, contest="" if index else self._contest) for index, record in enumerate(found)]

    # --- trying one candidate ----------------------------------------------------------------------------------------

    def _try(self, entry: Entry, entries: list[Entry]) -> None:
        if self._lost:
            entry.ends("not tried", f"{self._lost} left a device that nothing runs on")
            return
        if self._is_above_ceiling(entry, self._stated(entry)):
            return
        self._must_run = self.options.every_solver and entry.result.default
        best = min((rival.timing.median for rival in entries if rival.timing), default=None)
        predicted = self._predict(entry)
        # A solver's first configuration is tried while any time is left: other solvers' compile times say little about
        # that of its own, and a compilation that outlasts the budget is abandoned.
        compiling = 0.0 if entry.result.default else max(self._compile_ms[-5:], default=0)
        if not self._has_time((3 + SCREENING_SAMPLES) * (predicted or 0) + compiling, best):
            entry.ends("not tried", "the budget ended first")
            return
        self.options.watch(entry.name)
        try:
            if not self._survives(entry):
                return
            if self._is_cut(entry, predicted, best):
                return
            self._measure(entry, best)
        except WrongResult as error:
            entry.breaks("wrong", str(error))
        except OutOfTime as error:
            entry.ends("not tried", f"the budget ended: {error}")
        except (MemoryError, cl.MemoryError) as error:
            entry.ends("refused", f"memory: {error}")
        except BadTiming as error:
            entry.ends("failed", str(error))
        # A plugin's or a compiler's error goes into the candidate's result, and the search goes on.
        except Exception as error:
            entry.breaks("failed", words(error))
            if runtime.probe.__wrapped__(self.device):
                self._lost = entry.solver.name
                for rival in entries:
                    if rival.prepared is not None:
                        rival.ends("measured", "")

    def _measure(self, entry: Entry, best: float | None) -> None:
        start = time.perf_counter()
        prepared = self._compile(entry, best)
        entry.result.compile_ms = (time.perf_counter() - start) * 1e3
        entry.result.workspace = prepared.workspace_size
        self._compile_ms.append(entry.result.compile_ms)
        if self._is_above_ceiling(entry, prepared.workspace_size):
            return
        harness = self._harness(self.problem)
        # While no candidate has a time, the budget need only allow one more run: a poor result is better than none.
        runs = 1 + SCREENING_SAMPLES if best else 1
        checked = harness.verify(prepared, lambda run_ms: self._has_time(runs * run_ms, best))
        entry.result.error, entry.result.deterministic = checked.error, checked.deterministic
        entry.result.errors = {"normal": checked.normal, "scaled": checked.scaled}
        entry.timing = entry.screening = self._scan(harness.sampler(prepared, expected_ms=checked.run_ms), best)
        entry.say()
        self._has_screened = True
        if entry.cost:
            ms_per_cost = entry.timing.median / entry.cost
            self._ms_per_cost = min(ms_per_cost, self._ms_per_cost or ms_per_cost)
        if self.policy.repeats and not checked.deterministic:
            entry.ends("refused", "two runs gave different bits, and the policy wants equal ones")
        elif self.policy.max_error is not None and checked.error > self.policy.max_error:
            entry.ends("refused", f"relative error {checked.error:.2g}, the policy admits {self.policy.max_error:.2g}")
        elif best and entry.timing.ci[0] > CUT_FACTOR * best:
            entry.ends("cut", f"{entry.timing.ci[0] / best:.1f} times the best so far")
        else:
            entry.prepared = prepared

    def _is_above_ceiling(self, entry: Entry, workspace: int | None) -> bool:
        """Whether a candidate is refused because its workspace is larger than the limit; None is unknown."""
        limit = self.options.workspace_limit
        if limit is None or workspace is None or workspace <= limit:
            return False
        entry.result.workspace = workspace
        entry.ends("refused", f"{workspace} bytes of workspace, the limit is {limit}")
        return True

    def _compile(self, entry: Entry, best_ms: float | None) -> Prepared:
        """Make the candidate's plan. The first candidate may compile for FIRST_S, whatever the budget is."""

        def make() -> Prepared:
            return dispatch.make(entry.solver, entry.config, self.problem, self.queue.context)

        if self.options.budget_ms is None:
            return make()
        least_s = FIRST_OF_SOLVER_S if self._must_run else 0.01
        seconds = FIRST_S if self._is_first else max(least_s, self._left_ms(best_ms) / 1e3)
        try:
            return compiled_within(make, seconds)
        except StillCompiling:
            raise OutOfTime("it was still compiling") from None

    def _scan(self, sample: Callable[[], float], best: float | None) -> Timing:
        """Take a few samples: two of a candidate that is cut, else SCREENING_SAMPLES, more if they differ much."""
        samples: list[float] = []
        while True:
            samples.append(sample())
            cut = best is not None and min(samples) > CUT_FACTOR * best
            if len(samples) < (2 if cut else SCREENING_SAMPLES) and self._has_time(samples[-1], best):
                continue
            try:
                return summarise(samples)
            except BadTiming:
                if len(samples) >= 4 * SCREENING_SAMPLES:
                    raise

    def _predict(self, entry: Entry) -> float | None:
        """The predicted milliseconds of a run, from its cost and the least measured time per cost; or None."""
        return entry.cost * self._ms_per_cost if entry.cost and self._ms_per_cost else None

    def _is_cut(self, entry: Entry, predicted: float | None, best: float | None) -> bool:
        """Whether a candidate is cut because its prediction is far above the best time so far."""
        if predicted is None or best is None or predicted <= SUSPECT_RATIO * best or self.problem.flops < SLOW_FLOPS:
            return False
        entry.ends("cut", f"it is predicted to take {predicted:.3g} ms, {predicted / best:.0f} times the best so far")
        return True

    def _survives(self, entry: Entry) -> bool:
        """Whether a candidate ran right in a child process; candidates of proven plugins need not run there."""
        from .probing import LOST, RUN_S, Prober

        name = entry.solver.name
        is_trusted = plugins().proven(name) and not plugins().never_run(plugins().provider(name))
        if self.options.isolate is False or (self.options.isolate is None and is_trusted):
            return True
        if name in self._fatal:
            entry.breaks("failed", f"{self._fatal[name]} with another configuration, and this one was not tried")
            return False
        if self._prober is None:
            self._prober = Prober(self.problem, self.device, self.options.workspace_limit)
        start = time.perf_counter()
        limit = (
            RUN_S if self.options.budget_ms is None else min(RUN_S, max(LEAST_TRIAL_S, 2e-3 * self.options.budget_ms))
        )
        status, reason = self._prober.ask(name, entry.config, timeout_s=limit)
        # The time of child processes does not count against the search's budget.
        self.start += time.perf_counter() - start
        self._child_ms += (time.perf_counter() - start) * 1e3
        if status != "right":
            entry.breaks(status, reason)
        if reason.startswith(LOST):
            self._fatal[name] = reason
        return status == "right"

    # --- benchmarking the fastest candidates in interleaved rounds ---------------------------------------------------

    def _interleave(self, entries: list[Entry]) -> None:
        # Candidates are ranked by their screening interval's low end: one disturbed sample must not exclude any.
        ranked = sorted(entries, key=lambda entry: entry.timing.ci[0])
        for rank, entry in enumerate(ranked):
            ratio = entry.timing.ci[0] / ranked[0].timing.ci[0]
            if entry.incumbent:
                continue
            if ratio > MAX_RATIO:
                entry.ends("cut", f"{ratio:.2f} times the best at screening")
            elif rank >= FINALISTS:
                entry.ends("cut", f"{ratio:.2f} times the best at screening, and {FINALISTS} others were faster")
        final = sorted((entry for entry in ranked if entry.prepared is not None), key=lambda one: not one.incumbent)
        self.options.watch("")
        left_ms = self._benchmark_ms()
        rounds_ms = list(itertools.accumulate(LEAST_ROUNDS * entry.timing.median for entry in final))
        harness = self._harnesses.get(self.problem)
        rivals = []
        for i, entry in enumerate(final):
            if i > 1 and rounds_ms[i] > left_ms:
                break  # A candidate that is not benchmarked is reported with its screening time.
            try:
                sample = harness.sampler(entry.prepared, entry.timing.median)
            except (MemoryError, cl.MemoryError):
                # The candidate's workspace does not fit beside the faster ones'; its screening time is reported.
                continue
            rivals.append(Candidate(str(i), sample, max(1.0, entry.timing.median)))
        outcomes = interleaved(rivals, rounds=ROUNDS, budget_ms=self._benchmark_ms())
        incumbents = {i for i, entry in enumerate(final) if entry.incumbent}
        against = [outcomes.get(str(i)) for i in incumbents]
        alone = any(not o or not o.timing or o.timing.count < LEAST_SAMPLES for o in against)
        for i, entry in enumerate(final):
            outcome = outcomes.get(str(i), Outcome("not tried", "", None))
            if outcome.status == "failed":
                (entry.ends if "BadTiming" in outcome.reason else entry.breaks)("failed", outcome.reason)
                continue
            if outcome.timing is not None and outcome.timing.count >= entry.timing.count:
                entry.timing, entry.benchmarked = outcome.timing, outcome.timing.count >= LEAST_SAMPLES and not alone
            entry.say()
            # Without time to benchmark, or on a machine too busy for it, the candidate's screening time is its result.
            status = {"not tried": "measured", "unsteady": "measured"}.get(outcome.status, outcome.status)
            entry.ends(status, outcome.reason if status == "cut" else "")

    # --- time and memory of the search -------------------------------------------------------------------------------

    def _spent_ms(self) -> float:
        return (time.perf_counter() - self.start) * 1e3

    @property
    def _is_first(self) -> bool:
        """Whether no candidate has a time yet; the first one is not limited by the budget, to have a result."""
        return not self._has_screened

    def _has_time(self, expected_ms: float, best: float | None) -> bool:
        """Whether work of ``expected_ms`` ends within the budget, after the part that is reserved for benchmarking."""
        return self._is_first or self._must_run or expected_ms <= self._left_ms(best)

    def _left_ms(self, best: float | None) -> float:
        budget_ms = self.options.budget_ms
        if budget_ms is None:
            return math.inf
        reserved = 0.0 if best is None else min(FINAL_SHARE * budget_ms, ROUNDS * FINALISTS * max(1.0, best))
        return budget_ms - reserved - self._spent_ms()

    def _benchmark_ms(self) -> float:
        """The milliseconds left for benchmarking; with ``every_solver`` at least FINAL_SHARE of the budget, because the
        first configurations may have used all of it."""
        least_ms = FINAL_SHARE * self.options.budget_ms if self.options.every_solver and self.options.budget_ms else 0.0
        return max(least_ms, self._left_ms(None))

    def _harness(self, problem: ConvProblem) -> Harness:
        if problem not in self._harnesses:
            self._harnesses[problem] = Harness(problem, self.queue, self.options.memory_limit)
        return self._harnesses[problem]
