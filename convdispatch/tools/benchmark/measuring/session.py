"""Measures one problem: every solver by ``find``, then the best, what dispatch would have run, and peers in the same
rounds.

Its rounds are interleaved (A B A B), all on the same random data. Before each sample a rival runs unseen for a
while, because the threads of the one before it spin for some milliseconds after their work and would slow it.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from ....api.errors import ConvDispatchError, InvalidArgument
from ....api.policy import current_policy, policy
from ....api.problem import ConvProblem
from ....api.results import Result, Results
from ....device import runtime
from ....measurement import reference
from ....measurement.measure import Candidate, Outcome, interleaved, timed
from ....measurement.peaks import traffic
from ....measurement.search import Search
from ....measurement.search.scaled_data import Scaled
from ....measurement.search.trial import Harness
from ....measurement.search.trialdata import operands_of
from ....selection import dispatch
from ....selection.choice import ranking
from ....selection.derivation import named
from ....selection.plugins.loader import plugins
from ....selection.records.record import choice_text
from ....selection.records.timing import Timing
from ....selection.solver_query import query
from ..quiet import Others
from ..report import Choice, Measured, PeerTime, Row, placeless
from .environment import plugin_texts
from .peers import Peer, Unable, Variant

if TYPE_CHECKING:
    import pyopencl as cl

ROUNDS = (5, 21)
"""Least and most rounds of benchmarking; as many as take the search's budget, between these."""
SETTLE_MS = 15.0
"""A rival runs unseen for so long before each sample, on a CPU."""
LEAST_MS = 2.0


class Session:
    """What stays the same from problem to problem: device, solvers, peers, budget (milliseconds a problem).

    ``watch`` is told by name of each candidate and peer before it first runs.
    """

    def __init__(
        self,
        device: cl.Device,
        *,
        solver: str | None = None,
        peers: Sequence[Peer] = (),
        search: bool = True,
        budget_ms: float = 3000.0,
        every_solver: bool = False,
        record: bool = False,
        watch: Callable[[str], None] = lambda name: None,
    ) -> None:
        self.device, self.info = device, runtime.device_info(device)
        self.solver, self.peers = solver, list(peers)
        self.search, self.budget_ms, self.every_solver, self.record = search, budget_ms, every_solver, record
        self._watch, self._without = watch, {}
        self.settings = {
            "solver": solver,
            "search": search,
            "budget_ms": budget_ms,
            "every_solver": every_solver,
            "peers": {peer.name: dict(peer.settings) for peer in peers},
            "plugins": plugin_texts(self.info),
        }

    def measure(self, problem: ConvProblem, without: Mapping[str, str] | None = None) -> Measured:
        """All there is to know of a problem. A failure stands in the answer; it ends nothing.

        The candidates and peers that ``without`` names do not run, for the reasons that it gives.
        """
        self._without = dict(without or {})
        found = Measured(str(problem), problem.flops, traffic(problem), settings=self.settings)
        others = Others()
        try:
            with policy(solver=self.solver):
                self._measure(problem, found)
        except (ConvDispatchError, MemoryError) as error:
            found.failure = str(error)
        found.load = others.load()
        return found

    def _measure(self, problem: ConvProblem, found: Measured) -> None:
        first = ranking.rank(problem, self.info)[0]
        found.chosen = Choice(first.solver.name, dict(first.config), placeless(first.source))
        if self.search:
            search = Search(
                problem,
                self.device,
                current_policy(),
                budget_ms=self.budget_ms,
                every_solver=self.every_solver,
                watch=self._watch,
                without=self._without,
                isolate=False,  # all of this runs in a child, or was asked not to
            )
            results = search.run()
            if self.record:
                search.record(results)
            if results.lost:
                raise ConvDispatchError(f"{results.lost} left a device that nothing runs on")
            found.rows = [_row(result) for result in results]
            found.conditions, found.spent_ms = results.conditions, results.spent_ms
            found.peak_bytes = results.peak_bytes
            found.best = _best(results)
        else:
            found.best = Choice(found.chosen.solver, found.chosen.config, "not searched")
        self._interleave(problem, found)

    def _interleave(self, problem: ConvProblem, found: Measured) -> None:
        ours = [c for c in (found.best, found.chosen) if c is not None]
        if found.best and found.best.median_ms and len({_key(c) for c in ours}) < 2 and not self.peers:
            found.chosen = replace(found.best, source=found.chosen.source)
            return
        import pyopencl as cl

        queue = cl.CommandQueue(runtime.context(self.device))
        harness = Harness(problem, queue)
        rivals: dict[str, Candidate] = {}
        for choice in ours:
            if _key(choice) not in rivals and _key(choice) not in self._without:
                self._watch(_key(choice))
                with contextlib.suppress(Exception):  # a choice that fails has no time, and its row says why
                    rivals[_key(choice)] = self._candidate(harness, problem, choice)
        copies = max(1, min(8, 1 + 2 * self.device.global_mem_cache_size // max(1, found.traffic)))
        for peer in self.peers:
            if peer.name in self._without:
                found.peers.append(PeerTime(peer.name, "", reason=self._without[peer.name]))
            else:
                self._watch(peer.name)
                found.peers += _add(peer, problem, harness, copies, rivals, self.info.type == "cpu")
        self._watch("")
        settle = SETTLE_MS if self.info.type == "cpu" else 0.0
        whole = sum(settle + (rival.expected_ms or 0.0) for rival in rivals.values())
        rounds = max(ROUNDS[0], min(ROUNDS[1], int(self.budget_ms / max(whole, 1e-3))))
        outcomes = interleaved(list(rivals.values()), rounds=rounds)
        for choice in ours:
            _put(choice, outcomes.get(_key(choice)))
        for entered in found.peers:
            if not entered.reason:
                _put(entered, outcomes.get(f"{entered.peer} {entered.variant}"))
        chosen_ms = found.chosen.median_ms if found.chosen else None
        if chosen_ms and chosen_ms < ((found.best and found.best.median_ms) or np.inf):
            found.best = replace(found.chosen, source="fastest in benchmarking")
        if found.best is None:
            found.failure = "no solver could be measured"

    def _candidate(self, harness: Harness, problem: ConvProblem, choice: Choice) -> Candidate:
        solver = named(choice.solver, plugins().solvers)
        if not query(solver, problem, self.info).offers(choice.config):  # a journal's, for instance
            raise InvalidArgument(f"{choice.solver} does not offer {dict(choice.config)} for {problem}")
        prepared = dispatch.make(solver, choice.config, problem, harness.queue.context)
        checked = harness.verify(prepared)
        choice.error, choice.error_scaled = checked.normal, checked.scaled
        choice.workspace = prepared.workspace_size
        sample = harness.sampler(prepared, choice.median_ms or checked.run_ms, LEAST_MS)
        if self.info.type == "cpu":
            sample = _settled(sample)
        return Candidate(_key(choice), sample, max(LEAST_MS, choice.median_ms or checked.run_ms))


# --- benchmarking -----------------------------------------------------------------------------------------------------


def _add(
    peer: Peer, problem: ConvProblem, harness: Harness, copies: int, rivals: dict[str, Candidate], settle: bool
) -> Iterator[PeerTime]:
    """Add a peer's variants to the rivals, each with its error; one that cannot run says why."""
    try:
        variants = list(peer.variants(problem, harness.host, copies))
    except Unable as error:
        yield PeerTime(peer.name, "", reason=str(error))
        return
    at = reference.positions(problem)
    expected = reference.sample(problem, at, **operands_of(problem, harness.host))
    scaled = _scaled_errors(peer, problem, harness.scaled)
    for variant in variants:
        entered = PeerTime(peer.name, variant.name)
        try:
            entered.error = reference.relative_error(variant.result().reshape(-1)[at], expected)
            entered.error_scaled = scaled.get(variant.name)
            once = _timed(variant, 1)
            once()
            expected_ms = once()
        except Exception as error:  # the peer's own failure, said in its place
            entered.reason = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
        else:
            repeat = max(1, min(200, int(np.ceil(LEAST_MS / max(expected_ms, 1e-3)))))
            sample = _timed(variant, repeat)
            sample = _settled(sample) if settle else sample
            name = f"{peer.name} {variant.name}"
            rivals[name] = Candidate(name, sample, max(LEAST_MS, expected_ms))
        yield entered


def _scaled_errors(peer: Peer, problem: ConvProblem, scaled: Scaled) -> dict[str, float]:
    """A peer's errors on data of differing scales, by variant; none where it fails, as its run on normal data says."""
    at = scaled.at.ravel()
    try:
        variants = peer.variants(problem, scaled.host, 1)
        return {variant.name: scaled.error(problem, variant.result().reshape(-1)[at]) for variant in variants}
    except Exception:
        return {}


def _timed(variant: Variant, repeat: int) -> Callable[[], float]:
    sample = timed(lambda: variant.run(repeat))
    return lambda: sample() / repeat


def _settled(sample: Callable[[], float]) -> Callable[[], float]:
    def warmed_up() -> float:
        start = time.perf_counter()
        while (time.perf_counter() - start) * 1e3 < SETTLE_MS:
            sample()
        return sample()

    return warmed_up


def _put(target: Choice | PeerTime, outcome: Outcome | None) -> None:
    """Put benchmarking's timing into the answer; without one, what ``find`` measured stands."""
    if outcome is None or outcome.timing is None:
        if isinstance(target, PeerTime):
            target.reason = outcome.reason if outcome else "not benchmarked"
        return
    timing: Timing = outcome.timing
    target.median_ms, target.p20_ms, target.p80_ms = timing.median, timing.p20, timing.p80
    target.count, target.ci_ms = timing.count, timing.ci


def _best(results: Results) -> Choice | None:
    winner = results.winner
    if winner is None:
        return None
    return Choice(
        winner.solver,
        dict(winner.config),
        results.verdict,
        winner.median_ms,
        winner.p20,
        winner.p80,
        winner.count,
        winner.errors.get("normal", winner.error),
        winner.workspace,
        winner.ci,
        winner.errors.get("scaled"),
    )


def _key(choice: Choice | Row) -> str:
    return choice_text(choice.solver, choice.config)


def _row(result: Result) -> Row:
    return Row(
        result.solver,
        dict(result.config),
        result.status,
        result.reason,
        result.median_ms,
        result.p20,
        result.p80,
        result.count,
        result.errors.get("normal", result.error),
        result.workspace,
        result.compile_ms,
        result.deterministic,
        result.ci,
        result.benchmarked,
        result.screening_ms,
        result.errors.get("scaled"),
    )
