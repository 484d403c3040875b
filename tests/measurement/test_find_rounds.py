"""find's screening times and benchmarks: which time decides, what is kept of both, and what is said."""

from __future__ import annotations

from dataclasses import replace

import pytest
from searching import EXTRA, GOOD, MANY, PROBLEM

from convdispatch.api.policy import Policy
from convdispatch.device import runtime
from convdispatch.measurement.find import find, why_find
from convdispatch.measurement.search import session
from convdispatch.selection.explanation import explain
from convdispatch.selection.records import perfdb
from convdispatch.selection.records.record import Record, choice_text, device_key


@pytest.fixture
def clock(monkeypatch):
    """``clock(screening={...}, benchmarking={...})``: milliseconds by choice of screening and benchmarking."""

    def set_times(screening, benchmarking):
        turn = {}

        def sampler(harness, prepared, expected_ms, least_ms=1.0):
            name = choice_text(prepared.solver.name.removeprefix("faulty."), prepared.config)
            turn[name] = turn.get(name, 0) + 1
            times = screening if turn[name] == 1 else benchmarking
            return lambda: times[name]

        monkeypatch.setattr("convdispatch.measurement.search.session.Harness.sampler", sampler)

    return set_times


@pytest.fixture
def untried(monkeypatch):
    """``untried(words, which)``: of these candidates a search says these words in place of a time."""
    trying = session.Search._try

    def leave_out(words, which):
        def left_out(self, entry, entries):
            return entry.ends("not tried", words) if which(entry) else trying(self, entry, entries)

        monkeypatch.setattr(session.Search, "_try", left_out)

    return leave_out


REST = {'many {"extra": 8192}': 0.9}


def test_benchmarking_decides_and_both_times_are_kept(faults, device, clock):
    faults("good", "many")
    clock(screening={GOOD: 0.599, MANY: 0.4, EXTRA: 0.7, **REST}, benchmarking={GOOD: 0.384, MANY: 0.421})
    results = find(PROBLEM, device)
    assert [(r.solver, r.median_ms, r.screening_ms, r.benchmarked) for r in results[:2]] == [
        ("faulty.good", 0.384, 0.599, True),
        ("faulty.many", 0.421, 0.4, True),
    ]
    cut = next(r for r in results if r.config == {"extra": 4096})
    assert (cut.status, cut.median_ms, cut.benchmarked) == ("cut", 0.7, False)
    records = {choice_text(r.solver, r.config): r for r in perfdb.perfdb().lookup(PROBLEM, runtime.device_info(device))}
    assert (records["faulty.good {}"].benchmarked, records["faulty.good {}"].screening_ms) == (True, 0.599)
    assert not records["faulty." + EXTRA].sure
    assert results.runs == ""
    assert explain(PROBLEM, device).chosen == results.winner.solver == "faulty.good"
    assert explain(PROBLEM, device).source == "measured 0.384 ms, user record"


def test_screening_never_beats_a_race(faults, device, clock, monkeypatch):
    """Whose benchmarking did not fit into the memory keeps its screening time, however good, and it is said."""
    faults("good", "many")
    look = {GOOD: 0.6, MANY: 0.5, EXTRA: 0.7, **REST}
    clock(screening=look, benchmarking={GOOD: 0.55, EXTRA: 0.8})
    sampler = session.Harness.sampler
    turns = []

    def short_of_memory(harness, prepared, expected_ms, least_ms=1.0):
        turns.append(prepared.config)
        if turns.count({"extra": 0}) == 2 and prepared.config == {"extra": 0}:
            raise MemoryError
        return sampler(harness, prepared, expected_ms, least_ms)

    monkeypatch.setattr("convdispatch.measurement.search.session.Harness.sampler", short_of_memory)
    results = find(PROBLEM, device)
    assert results.winner.solver == "faulty.good"
    assert 'faulty.many {"extra": 0} looked faster, 0.5 ms, but was not benchmarked' in results.verdict
    assert explain(PROBLEM, device).chosen == "faulty.good"
    assert results.runs == ""


def test_without_benchmarking_the_verdict_says_so(faults, device, clock, monkeypatch):
    faults("good", "many")
    clock(screening={GOOD: 0.6, MANY: 0.5, EXTRA: 0.7, **REST}, benchmarking={})
    monkeypatch.setattr(session, "interleaved", lambda rivals, **_: {})
    results = find(PROBLEM, device)
    assert results.verdict.endswith("not benchmarked, by screening alone")
    assert results.winner.config == {"extra": 0}
    assert explain(PROBLEM, device).source == "measured 0.5 ms at screening, not benchmarked, user record"


def test_where_another_record_wins_it_says_which_and_why(faults, device, clock, untried):
    faults("good", "many")
    clock(screening={GOOD: 0.6, MANY: 0.5, **REST}, benchmarking={GOOD: 0.6, MANY: 0.5})
    info = runtime.device_info(device)
    old = Record(str(PROBLEM), device_key(info), "faulty.many", {"extra": 4096}, 0.01, (0.01, 0.01), 0.01, 0.01, 25)
    perfdb.perfdb().record(replace(old, created="2026-01-02T03:04:05", workspace=1 << 20))
    untried("the budget ended first", lambda entry: entry.config == {"extra": 4096})
    results = find(PROBLEM, device, budget_ms=60_000)
    assert results.winner.config == {"extra": 0}
    assert results.runs == (
        'a call runs faulty.many {"extra": 4096}: measured 0.01 ms, user record, of 2026-01-02T03:04; '
        "in this search it was: the budget ended first"
    )
    assert explain(PROBLEM, device).verdicts[0].config == {"extra": 4096}
    assert find(PROBLEM, device, budget_ms=60_000, workspace_limit=1 << 19).runs == "", (
        "under the same limit the winner runs"
    )


def test_the_incumbent_comes_first_and_races_however_it_looked(faults, device, clock):
    """Screening overstates: at twice the best the incumbent was out, and the others went on without it."""
    faults("good", "many")
    clock(screening={GOOD: 1.2, MANY: 0.5, EXTRA: 0.55, **REST}, benchmarking={GOOD: 0.3, MANY: 0.5, EXTRA: 0.55})
    assert explain(PROBLEM, device).chosen == "faulty.good"
    asked = []
    search = session.Search(PROBLEM, device, Policy(), isolate=False, watch=asked.append)
    results = search.run()
    assert asked[0] == "faulty.good {}"
    assert (results.winner.solver, results.winner.benchmarked, results.winner.median_ms) == ("faulty.good", True, 0.3)
    search.record(results)
    assert explain(PROBLEM, device).chosen == "faulty.good"


@pytest.mark.parametrize("given", ["faulty.many", None])
def test_whoever_asks_may_name_the_incumbent(faults, device, clock, given):
    faults("good", "many")
    clock(screening={GOOD: 0.3, MANY: 0.5, EXTRA: 0.55, **REST}, benchmarking={GOOD: 0.3, MANY: 0.5, EXTRA: 0.55})
    asked, incumbent = [], given and choice_text(given, {"extra": 8192})
    session.Search(PROBLEM, device, Policy(), isolate=False, watch=asked.append, incumbent=incumbent).run()
    assert asked[0] == (incumbent or "faulty.good {}")


def test_without_the_incumbent_s_time_the_choice_stays_and_what_was_learned_is_kept(faults, device, clock, untried):
    faults("good", "many")
    clock(screening={MANY: 0.5, EXTRA: 0.55, **REST}, benchmarking={MANY: 0.5, EXTRA: 0.55})
    untried("the budget ended: it was still compiling", lambda entry: entry.incumbent)
    results = find(PROBLEM, device, budget_ms=60_000)
    assert results.inconclusive.startswith("faulty.good, which ran until then, was not measured beside them: ")
    found = explain(PROBLEM, device)
    assert found.chosen == "faulty.good"
    assert "what is on record of faulty.many decides nothing: faulty.good, which ran until then" in found.why
    assert len(perfdb.perfdb().lookup(PROBLEM, runtime.device_info(device))) == 3
    assert why_find(PROBLEM, runtime.device_info(device), budget_ms=None) is not None


def test_a_short_race_is_one_of_fewer(faults, device, clock, monkeypatch):
    """Where not all have time for an interval, the incumbent and the best of screening go on."""
    faults("good", "many")
    times = {GOOD: 100.0, MANY: 99.0, EXTRA: 101.0, 'many {"extra": 8192}': 102.0}
    clock(screening=times, benchmarking=times)
    raced = []

    def race(rivals, **more):
        raced.extend(rivals)
        return interleaved(rivals, **more)

    interleaved = session.interleaved
    monkeypatch.setattr(session, "interleaved", race)
    monkeypatch.setattr(session.Search, "_left_ms", lambda self, best: 2200.0)
    find(PROBLEM, device, budget_ms=60_000, store=False)
    assert len(raced) == 3
