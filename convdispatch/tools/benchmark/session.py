"""Measures one problem: every solver by ``find``, then the best, what dispatch would have run, and peers in the same
rounds.

Its rounds are interleaved (A B A B), all on the same random data. Before each sample a rival runs unseen for a
while, because the threads of the one before it spin for some milliseconds after their work and would slow it.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyopencl as cl

from ...api.device import DeviceInfo
from ...api.errors import ConvDispatchError, InvalidArgument
from ...api.policy import current_policy, policy
from ...api.problem import ConvProblem
from ...api.results import Result, Results
from ...device import runtime
from ...measurement import reference, run_reports
from ...measurement.measure import Candidate, Outcome, interleaved, timed
from ...measurement.search import Search
from ...measurement.search.families import Scaled
from ...measurement.search.trial import Harness
from ...measurement.search.trialdata import operands_of
from ...selection import dispatch
from ...selection.choice import ranking
from ...selection.choice.provenance import current
from ...selection.derivation import named
from ...selection.plugins.loader import plugins
from ...selection.records.record import choice_text
from ...selection.records.timing import Timing
from ...selection.solver_query import query
from .peers import Peer, Unable, Variant
from .quiet import OtherProcesses, load_now
from .report import Choice, Measured, PeerTime, Row, without_folders

ROUNDS = (5, 21)
"""The least and the most rounds of benchmarking; between them, as many as fit into the search's budget."""
SETTLE_MS = 15.0
"""The milliseconds that each rival runs untimed before a sample on a CPU, until other rivals' threads are idle."""
LEAST_MS = 2.0


class Session:
    """The state that all problems of a run share: device, solvers, peers, budget (milliseconds per problem).

    ``watch`` is told by name of each candidate and peer before it first runs; ``limits`` are ``solver``,
    ``search``, ``budget_ms`` and ``every_solver``.
    """

    def __init__(
        self,
        device: cl.Device,
        *,
        peers: Sequence[Peer] = (),
        isolate: bool | None = None,
        watch: Callable[[str], None] = lambda name: None,
        **limits: Any,
    ) -> None:
        self.device, self.info = device, runtime.device_info(device)
        self._peers, self._isolate, self._watch = list(peers), isolate, watch
        self._limits = {"solver": None, "search": True, "budget_ms": 3000.0, "every_solver": False} | limits
        self.lost = ""
        """The solver after which nothing runs on the device in this process any more."""
        of_peers = {peer.name: dict(peer.settings) for peer in peers}
        self.settings = {**self._limits, "peers": of_peers, "plugins": plugin_texts(self.info)}

    def measure(self, problem: ConvProblem) -> Measured:
        """Measure a problem. A failure is a field of the result and ends nothing."""
        measured = Measured(str(problem), problem.flops, problem.bytes)
        other_processes = OtherProcesses()
        try:
            with policy(solver=self._limits["solver"]):
                self._measure(problem, measured)
        except (ConvDispatchError, MemoryError) as error:
            measured.failure = str(error)
        measured.load = other_processes.load()
        return measured

    def _measure(self, problem: ConvProblem, measured: Measured) -> None:
        first = ranking.rank(problem, self.info)[0]
        measured.chosen = Choice(first.solver.name, dict(first.config), without_folders(first.source))
        if self._limits["search"]:
            search = Search(
                problem,
                self.device,
                current_policy(),
                budget_ms=self._limits["budget_ms"],
                every_solver=self._limits["every_solver"],
                watch=self._watch,
                isolate=self._isolate,
            )
            results = search.run()
            self.lost = results.lost
            if results.lost:
                raise ConvDispatchError(f"{results.lost} left a device that nothing runs on: run again, with --isolate")
            measured.rows = [_row(result) for result in results]
            measured.conditions, measured.spent_ms = results.conditions, results.spent_ms
            measured.peak_bytes = results.peak_bytes
            measured.best = _best(results)
        else:
            measured.best = Choice(measured.chosen.solver, measured.chosen.config, "not searched")
        self._interleave(problem, measured)

    def _interleave(self, problem: ConvProblem, measured: Measured) -> None:
        choices = [c for c in (measured.best, measured.chosen) if c is not None]
        if measured.best and measured.best.median_ms and len({_key(c) for c in choices}) < 2 and not self._peers:
            measured.chosen = replace(measured.best, source=measured.chosen.source)
            return
        queue = cl.CommandQueue(runtime.context(self.device))
        harness = Harness(problem, queue)
        rivals: dict[str, Candidate] = {}
        for choice in choices:
            if _key(choice) not in rivals:
                self._watch(_key(choice))
                # A choice that fails has no time; its row in the report has the reason.
                with contextlib.suppress(Exception):
                    rivals[_key(choice)] = self._candidate(harness, problem, choice)
        copies = max(1, min(8, 1 + 2 * self.device.global_mem_cache_size // max(1, measured.traffic)))
        for peer in self._peers:
            self._watch(peer.name)
            measured.peers += _add_peer(peer, problem, harness, copies, rivals, self.info.type == "cpu")
        self._watch("")
        settle = SETTLE_MS if self.info.type == "cpu" else 0.0
        round_ms = sum(settle + (rival.expected_ms or 0.0) for rival in rivals.values())
        rounds = max(ROUNDS[0], min(ROUNDS[1], int(self._limits["budget_ms"] / max(round_ms, 1e-3))))
        outcomes = interleaved(list(rivals.values()), rounds=rounds)
        for choice in choices:
            _store_timing(choice, outcomes.get(_key(choice)))
        for entered in measured.peers:
            if not entered.reason:
                _store_timing(entered, outcomes.get(f"{entered.peer} {entered.variant}"))
        chosen_ms = measured.chosen.median_ms if measured.chosen else None
        if chosen_ms and chosen_ms < ((measured.best and measured.best.median_ms) or np.inf):
            measured.best = replace(measured.chosen, source="fastest in benchmarking")
        if measured.best is None:
            measured.failure = "no solver could be measured"

    def _candidate(self, harness: Harness, problem: ConvProblem, choice: Choice) -> Candidate:
        solver = named(choice.solver, plugins().solvers)
        # The choice may come from the journal of another version of this package.
        if not query(solver, problem, self.info).offers(choice.config):
            raise InvalidArgument(f"{choice.solver} does not offer {dict(choice.config)} for {problem}")
        prepared = dispatch.make(solver, choice.config, problem, harness.queue.context)
        checked = harness.verify(prepared)
        choice.error, choice.error_scaled = checked.normal, checked.scaled
        choice.workspace = prepared.workspace_size
        sample = harness.sampler(prepared, choice.median_ms or checked.run_ms, LEAST_MS)
        if self.info.type == "cpu":
            sample = _after_warm_up(sample)
        return Candidate(_key(choice), sample, max(LEAST_MS, choice.median_ms or checked.run_ms))


# --- benchmarking the peers ------------------------------------------------------------------------------------------


def _add_peer(
    peer: Peer, problem: ConvProblem, harness: Harness, copies: int, rivals: dict[str, Candidate], settle: bool
) -> Iterator[PeerTime]:
    """Add a peer's variants to the rivals and yield a PeerTime of each: its error, or why it cannot run."""
    try:
        variants = list(peer.variants(problem, harness.host, copies))
    except Unable as error:
        yield PeerTime(peer.name, "", reason=str(error))
        return
    positions = reference.positions(problem)
    expected = reference.sample(problem, positions, **operands_of(problem, harness.host))
    scaled = _errors_on_scaled_data(peer, problem, harness.scaled)
    for variant in variants:
        entered = PeerTime(peer.name, variant.name)
        try:
            entered.error = reference.relative_error(variant.result().reshape(-1)[positions], expected)
            entered.error_scaled = scaled.get(variant.name)
            run_once = _timed(variant, 1)
            run_once()
            expected_ms = run_once()
        except Exception as error:  # The peer's own failure is reported as the reason in its row.
            entered.reason = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
        else:
            repeat = max(1, min(200, int(np.ceil(LEAST_MS / max(expected_ms, 1e-3)))))
            sample = _timed(variant, repeat)
            sample = _after_warm_up(sample) if settle else sample
            name = f"{peer.name} {variant.name}"
            rivals[name] = Candidate(name, sample, max(LEAST_MS, expected_ms))
        yield entered


def _errors_on_scaled_data(peer: Peer, problem: ConvProblem, scaled: Scaled) -> dict[str, float]:
    """A peer's errors on data of differing scales, by variant; none where it fails, as its run on normal data says."""
    positions = scaled.at.ravel()
    try:
        variants = peer.variants(problem, scaled.host, 1)
        return {variant.name: scaled.error(problem, variant.result().reshape(-1)[positions]) for variant in variants}
    except Exception:
        return {}


def _timed(variant: Variant, repeat: int) -> Callable[[], float]:
    sample = timed(lambda: variant.run(repeat))
    return lambda: sample() / repeat


def _after_warm_up(sample: Callable[[], float]) -> Callable[[], float]:
    def warmed_up() -> float:
        start = time.perf_counter()
        while (time.perf_counter() - start) * 1e3 < SETTLE_MS:
            sample()
        return sample()

    return warmed_up


def _store_timing(target: Choice | PeerTime, outcome: Outcome | None) -> None:
    """Write benchmarking's timing into the result; without one, what ``find`` measured remains."""
    if outcome is None or outcome.timing is None:
        if isinstance(target, PeerTime):
            target.reason = outcome.reason if outcome else "not benchmarked"
        return
    timing: Timing = outcome.timing
    target.median_ms, target.p20_ms, target.p80_ms = timing.median, timing.p20, timing.p80
    target.count, target.ci_ms = timing.count, timing.ci


def _best(results: Results) -> Choice | None:
    winner = results.winner
    return None if winner is None else Choice(source=results.verdict, **_figures(winner))


def _key(choice: Choice | Row) -> str:
    return choice_text(choice.solver, choice.config)


def _row(result: Result) -> Row:
    names = ("status", "reason", "compile_ms", "deterministic", "benchmarked", "screening_ms")
    return Row(**{name: getattr(result, name) for name in names}, **_figures(result))


def _figures(result: Result) -> dict[str, Any]:
    """The fields that a Row and a Choice have in common."""
    figures = {"solver": result.solver, "config": dict(result.config), "workspace": result.workspace}
    figures |= {"median_ms": result.median_ms, "p20_ms": result.p20, "p80_ms": result.p80, "count": result.count}
    errors = {"error": result.errors.get("normal", result.error), "error_scaled": result.errors.get("scaled")}
    return figures | {"ci_ms": result.ci} | errors


PACKAGES = ("convdispatch", "pyopencl", "numpy", "torch", "onnxruntime", "intel-opencl-rt")


def environment(device: DeviceInfo) -> dict[str, Any]:
    """The environment as JSON values."""
    return {**run_reports.environment(device, PACKAGES), "load": load_now(), "plugins": plugin_texts(device)}


def plugin_texts(device: DeviceInfo) -> dict[str, str]:
    """Plugin to ``version hash``, for each that has a solver; a changed kernel changes the hash."""
    solvers = (current(name, device) for name in plugins().solvers)
    return dict(sorted((p.plugin, f"{p.plugin_version} {p.kernel_hash}".strip()) for p in solvers))
