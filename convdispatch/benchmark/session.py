"""Measures one problem: every solver by ``find``, then the best, what dispatch would have run, and peers in one race.

The race's rounds are interleaved (A B A B), all on the same random data. Before each sample a rival runs unseen for a
while, because the threads of the one before it spin for some milliseconds after their work and would slow it.
"""

from __future__ import annotations

import contextlib
import json
import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import dispatch, reference, runtime
from ..api.errors import ConvDispatchError, NoSolver
from ..api.find import Result, Results, find
from ..api.policy import policy
from ..api.problem import ConvProblem
from ..derivation import named
from ..loader import plugins
from ..measure import Candidate, Outcome, Timing, race, timed
from ..perfdb import perfdb
from ..record import Record
from ..search.trial import Rig
from ..search.trialdata import operands_of
from .environment import plugin_texts
from .peaks import traffic
from .peers import Peer, Unable, Variant
from .report import Choice, Measured, PeerTime, Row

if TYPE_CHECKING:
    import pyopencl as cl

__all__ = ["Session", "knowing"]

ROUNDS = (5, 21)
"""Least and most rounds of the race; as many as take the search's budget, between these."""
SETTLE_MS = 15.0
"""A rival runs unseen for so long before each sample, on a CPU."""
LEAST_MS = 2.0


class Session:
    """What stays the same from problem to problem: device, solvers, peers, budget (milliseconds a problem)."""

    def __init__(
        self,
        device: cl.Device,
        *,
        solver: str | None = None,
        peers: Sequence[Peer] = (),
        search: bool = True,
        budget_ms: float = 3000.0,
        record: bool = False,
    ) -> None:
        self.device, self.info = device, runtime.device_info(device)
        self.solver, self.peers = solver, list(peers)
        self.search, self.budget_ms, self.record = search, budget_ms, record
        self.settings = {
            "solver": solver,
            "search": search,
            "budget_ms": budget_ms,
            "peers": {peer.name: dict(peer.settings) for peer in peers},
            "plugins": plugin_texts(self.info),
        }

    def measure(self, problem: ConvProblem) -> Measured:
        """All there is to know of a problem. A failure stands in the answer; it ends nothing."""
        found = Measured(str(problem), problem.flops, traffic(problem), settings=self.settings)
        try:
            with policy(solver=self.solver):
                self._measure(problem, found)
        except (ConvDispatchError, MemoryError) as error:
            found.failure = str(error)
        return found

    def _measure(self, problem: ConvProblem, found: Measured) -> None:
        first = dispatch.rank(problem, self.info)[0]
        found.chosen = Choice(first.solver.name, dict(first.config), _placeless(first.source))
        if self.search:
            results = find(problem, self.device, budget_ms=self.budget_ms, store=self.record)
            found.rows = [_row(result) for result in results]
            found.conditions, found.spent_ms = results.conditions, results.spent_ms
            found.peak_bytes = results.peak_bytes
            found.best = _best(results)
        else:
            found.best = Choice(found.chosen.solver, found.chosen.config, "not searched")
        self._race(problem, found)

    def _race(self, problem: ConvProblem, found: Measured) -> None:
        ours = [c for c in (found.best, found.chosen) if c is not None]
        if found.best and found.best.median_ms and len({_key(c) for c in ours}) < 2 and not self.peers:
            found.chosen = replace(found.best, source=found.chosen.source)
            return
        import pyopencl as cl

        queue = cl.CommandQueue(runtime.context(self.device))
        rig = Rig(problem, queue)
        rivals: dict[str, Candidate] = {}
        for choice in ours:
            if _key(choice) not in rivals:
                with contextlib.suppress(Exception):  # a choice that fails has no time, and its row says why
                    rivals[_key(choice)] = self._candidate(rig, problem, choice)
        copies = max(1, min(8, 1 + 2 * self.device.global_mem_cache_size // max(1, found.traffic)))
        found.peers = [entered for peer in self.peers for entered in _add(peer, problem, rig, copies, rivals)]
        settle = SETTLE_MS if self.info.type == "cpu" else 0.0
        whole = sum(settle + (rival.expected_ms or 0.0) for rival in rivals.values())
        rounds = max(ROUNDS[0], min(ROUNDS[1], int(self.budget_ms / max(whole, 1e-3))))
        outcomes = race(list(rivals.values()), rounds=rounds)
        for choice in ours:
            _put(choice, outcomes.get(_key(choice)))
        for entered in found.peers:
            if not entered.reason:
                _put(entered, outcomes.get(f"{entered.peer} {entered.variant}"))
        chosen_ms = found.chosen.median_ms if found.chosen else None
        if chosen_ms and chosen_ms < ((found.best and found.best.median_ms) or np.inf):
            found.best = replace(found.chosen, source="fastest in the race")
        if found.best is None:
            found.failure = "no solver could be measured"

    def _candidate(self, rig: Rig, problem: ConvProblem, choice: Choice) -> Candidate:
        solver = named(choice.solver, plugins().solvers)
        prepared = dispatch.make(solver, choice.config, problem, rig.queue.context)
        checked = rig.verify(prepared)
        choice.error, choice.workspace = checked.error, prepared.workspace_size
        sample = rig.sampler(prepared, choice.median_ms or checked.run_ms, LEAST_MS)
        if self.info.type == "cpu":
            sample = _settled(sample)
        return Candidate(_key(choice), sample, max(LEAST_MS, choice.median_ms or checked.run_ms))

    def regret(self, measured: Sequence[Measured], known: Sequence[Measured]) -> dict[str, dict[str, Any]]:
        """What dispatch's choice costs for each problem when only ``known`` is on record: by problem, ``chosen``,
        ``source`` and ``regret`` (its time over the best, 1 at least; None when it could not be timed)."""
        answers: dict[str, dict[str, Any]] = {}
        with knowing(self.device, known):
            first = {m.problem: self._first(m.parsed) for m in measured if m.best_ms}
        for found in measured:
            choice = first.get(found.problem)
            if choice is None:
                continue
            cost = self._cost(found, choice)
            answers[found.problem] = {"chosen": choice.solver, "source": choice.source, "regret": cost}
        return answers

    def _first(self, problem: ConvProblem) -> Choice | None:
        with policy(solver=self.solver):
            try:
                first = dispatch.rank(problem, self.info)[0]
            except NoSolver:
                return None
        return Choice(first.solver.name, dict(first.config), _placeless(first.source))

    def _cost(self, found: Measured, choice: Choice) -> float | None:
        if _key(choice) == _key(found.best):
            return 1.0
        if found.chosen and _key(choice) == _key(found.chosen) and found.regret:
            return found.regret
        again = Measured(found.problem, found.flops, found.traffic, chosen=choice, best=replace(found.best))
        peers, self.peers = self.peers, []
        try:
            self._race(found.parsed, again)
        except (ConvDispatchError, MemoryError):
            return None
        finally:
            self.peers = peers
        return again.regret


@contextlib.contextmanager
def knowing(device: cl.Device, measured: Sequence[Measured]) -> Iterator[None]:
    """Inside the block dispatch knows these measurements of the device and nothing else, neither the user's nor what
    is shipped; afterwards all is as before, and no file is left."""
    import tempfile
    from pathlib import Path

    db = perfdb()
    before = db.folders
    with tempfile.TemporaryDirectory() as folder:
        db.folders = {"bench": Path(folder)}
        db.refresh()
        try:
            records = [r for found in measured for r in _records(found, device)]
            if records:
                db.record(*records)
            yield
        finally:
            db.folders = before
            db.refresh()


def _records(found: Measured, device: cl.Device) -> Iterator[Record]:
    from ..provenance import current
    from ..record import device_key, now

    info = runtime.device_info(device)
    rows = [row for row in found.rows if row.median_ms is not None and row.status in ("measured", "cut")]
    listed = {_key(row) for row in rows}
    # Where the budget ended the search early, the race alone has timed what was chosen.
    rows += [c for c in (found.best,) if c is not None and c.median_ms and _key(c) not in listed]
    for row in rows:
        yield Record(
            problem=found.problem,
            device=device_key(info),
            solver=row.solver,
            config=row.config,
            median_ms=row.median_ms,
            ci_ms=(row.p20_ms, row.p80_ms),
            p20_ms=row.p20_ms,
            p80_ms=row.p80_ms,
            count=row.count,
            error=row.error,
            workspace=row.workspace or 0,
            provenance=current(row.solver, info),
            created=now(),
        )


# --- the race --------------------------------------------------------------------------------------------------------


def _add(peer: Peer, problem: ConvProblem, rig: Rig, copies: int, rivals: dict[str, Candidate]) -> Iterator[PeerTime]:
    """Add a peer's variants to the rivals, each with its error; one that cannot run says why."""
    try:
        variants = list(peer.variants(problem, rig.host, copies))
    except Unable as error:
        yield PeerTime(peer.name, "", reason=str(error))
        return
    at = reference.positions(problem)
    expected = reference.sample(problem, at, **operands_of(problem, rig.host))
    for variant in variants:
        entered = PeerTime(peer.name, variant.name)
        try:
            entered.error = reference.relative_error(variant.result().reshape(-1)[at], expected)
            once = _timed(variant, 1)
            once()
            expected_ms = once()
        except Exception as error:  # the peer's own failure, said in its place
            entered.reason = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
        else:
            repeat = max(1, min(200, int(np.ceil(LEAST_MS / max(expected_ms, 1e-3)))))
            sample = _settled(_timed(variant, repeat))
            name = f"{peer.name} {variant.name}"
            rivals[name] = Candidate(name, sample, max(LEAST_MS, expected_ms))
        yield entered


def _timed(variant: Variant, repeat: int) -> Callable[[], float]:
    sample = timed(lambda: variant.run(repeat))
    return lambda: sample() / repeat


def _settled(sample: Callable[[], float]) -> Callable[[], float]:
    def settled() -> float:
        start = time.perf_counter()
        while (time.perf_counter() - start) * 1e3 < SETTLE_MS:
            sample()
        return sample()

    return settled


def _put(target: Choice | PeerTime, outcome: Outcome | None) -> None:
    """Put a race's timing into the answer; without one, what ``find`` measured stands."""
    if outcome is None or outcome.timing is None:
        if isinstance(target, PeerTime):
            target.reason = outcome.reason if outcome else "not raced"
        return
    timing: Timing = outcome.timing
    target.median_ms, target.p20_ms, target.p80_ms = timing.median, timing.p20, timing.p80
    target.count = timing.count


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
        winner.error,
        winner.workspace,
    )


def _placeless(source: str) -> str:
    """A choice's source without the folders of this machine: a report is made to be shown."""
    return re.sub(r"(?:/[^/\s]+)+/(?=[^/\s])", "", source)


def _key(choice: Choice | Row) -> str:
    return f"{choice.solver} {json.dumps(dict(choice.config), sort_keys=True)}"


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
        result.error,
        result.workspace,
        result.compile_ms,
        result.deterministic,
    )
