"""find against solvers that lie, crawl, hang, crash, spill and fail: what is chosen, what is said, what is recorded."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from searching import EXTRA, GOOD, MANY, PROBLEM, known, searched

from convdispatch.api.errors import Frozen, InvalidArgument
from convdispatch.api.policy import Policy, frozen, policy
from convdispatch.api.problem import ConvProblem
from convdispatch.device import runtime
from convdispatch.measurement.find import find, why_find
from convdispatch.measurement.search import session
from convdispatch.measurement.search.candidates import candidates
from convdispatch.measurement.search.trialdata import error_limit
from convdispatch.selection import dispatch
from convdispatch.selection.explanation import explain
from convdispatch.selection.plugins import loader
from convdispatch.selection.records import perfdb
from convdispatch.selection.records.record import Record, choice_text, device_key

# --- what is wrong is never chosen ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fault", "status", "words"),
    [
        ("lies", "wrong", "relative error 1, at most 1e-05"),
        ("partial", "wrong", "2 of 324 elements were not written"),
        ("outside", "wrong", "wrote 4 bytes after its output"),
        ("before", "wrong", "wrote 4 bytes before its output"),
        ("overflow", "wrong", "bytes after its workspace"),
        ("alters", "wrong", "altered its input x"),
        ("no_compile", "failed", "BuildFailed"),
        ("late", "failed", "the device was lost"),
    ],
)
def test_a_bad_solver_is_quarantined_and_never_recorded(faults, device, fault, status, words):
    faults("good", fault)
    found, results = searched(device)
    assert (found[fault].status, found[fault].median_ms) == (status, None)
    assert words in found[fault].reason
    assert results.winner.solver == "faulty.good"
    assert known(device) == {"faulty.good"}
    explained = {v.solver: v for v in explain(PROBLEM, device).verdicts}
    assert explained["faulty." + fault].status == "quarantined"
    assert words.split(",")[0] in explained["faulty." + fault].reason


def test_one_wrong_configuration_costs_only_itself(faults, device):
    faults("half")
    _, results = searched(device, said=False)
    assert [(r.status, r.config) for r in results] == [("measured", {"broken": False}), ("wrong", {"broken": True})]
    assert explain(PROBLEM, device).verdicts[0].config == {"broken": False}


def test_nobody_is_right(faults, device):
    faults("lies")
    _, results = searched(device)
    assert results.winner is None
    assert results.verdict == "no candidate has a time"
    assert known(device) == set()


# --- what is slow is cut ----------------------------------------------------------------------------------------------


def test_a_solver_slow_by_a_thousand_is_cut_after_few_runs(faults, device):
    faults("good", "slow")
    found, results = searched(device, said=False)
    assert (found["slow"].status, found["slow"].count) == ("cut", 2)
    assert "times the best so far" in found["slow"].reason
    assert results.winner.solver == "faulty.good"
    assert known(device) == {"faulty.good", "faulty.slow"}


def test_a_suspect_is_cut_unmeasured(faults, device, monkeypatch):
    faults("good", "slow")
    monkeypatch.setattr("convdispatch.measurement.search.session.SLOW_FLOPS", 0.0)
    predicted = {"faulty.slow": 1e4}
    monkeypatch.setattr(
        "convdispatch.measurement.search.session.Search._predict", lambda self, entry: predicted.get(entry.solver.name)
    )
    found, _ = searched(device, said=False)
    assert (found["slow"].status, found["slow"].count) == ("cut", 0)
    assert "it is predicted to take" in found["slow"].reason


# --- budget and memory ------------------------------------------------------------------------------------------------


def test_the_budget_holds_and_what_was_not_tried_is_said(faults, device):
    faults("good")
    find(PROBLEM, device, store=False)  # compiles what all share
    faults("good", "slow_compile", "slow")
    found, results = searched(device, said=False, budget_ms=1000)
    assert "not tried" in {found["slow"].status, found["slow_compile"].status}
    assert "did not fit into 1000 ms" in results.conditions
    records = perfdb.perfdb().lookup(PROBLEM, runtime.device_info(device))
    assert {r.optimal for r in records if r.budget_ms == 1000} == {False}
    info = runtime.device_info(device)
    assert why_find(PROBLEM, info) is why_find(PROBLEM, info, budget_ms=1000) is None
    assert "incomplete" in why_find(PROBLEM, info, budget_ms=2000)
    assert "incomplete" in why_find(PROBLEM, info, budget_ms=None)


def test_a_repeated_search_goes_on_where_it_was(faults, device, monkeypatch):
    """What runs without the search first, every solver's first, then what was not tried."""
    faults("good", "many")
    monkeypatch.setattr("convdispatch.measurement.search.candidates.RECORDED_FIRST", 1)
    info = runtime.device_info(device)

    def order(problem):
        return [
            (e.solver.name.removeprefix("faulty."), e.config.get("extra", 0))
            for e in candidates(problem, info, Policy())[0]
        ]

    assert order(PROBLEM) == [("good", 0), ("many", 0), ("many", 4096), ("many", 8192)]
    sample = Record(str(PROBLEM), device_key(info), "", {}, 1.0, (1.0, 1.0), 1.0, 1.0, 25)
    slow = replace(sample, solver="faulty.good", median_ms=9.0)
    perfdb.perfdb().record(replace(sample, solver="faulty.many", config={"extra": 8192}), slow)
    assert order(PROBLEM) == [("many", 8192), ("good", 0), ("many", 0), ("many", 4096)]
    assert order(PROBLEM.replace(mb=2)) == [("many", 8192), ("good", 0), ("many", 0), ("many", 4096)]


def test_every_solver_s_first_configuration_is_tried_before_anyone_s_second(faults, device, monkeypatch):
    """Also of solvers that predict nothing, whose others take turns with those of solvers that do."""
    names = ("good", "many", "half", "lies", "slow")
    faults(*names)
    predicted = {"good": None, "many": 2.0, "half": None, "lies": 1.0, "slow": 3.0}
    for name in names:
        solver = loader.plugins().solvers["faulty." + name]
        monkeypatch.setattr(solver, "cost", lambda p, d, c, name=name: predicted[name], raising=False)
        monkeypatch.setattr(solver, "configs", lambda p, d: [{"n": n} for n in range(3)], raising=False)
    entries = candidates(PROBLEM, runtime.device_info(device), Policy())[0]
    order = [(e.solver.name.removeprefix("faulty."), e.config["n"]) for e in entries]
    assert [place for _, place in order[:5]] == [0] * 5
    assert [name for name, _ in order[:5]] == ["lies", "good", "half", "many", "slow"]
    assert [predicted[name] is None for name, _ in order[5:9]] == [False, True, False, True]
    assert sorted(order) == sorted((name, n) for name in names for n in range(3))


def test_a_slow_compilation_keeps_no_other_solver_s_first_from_being_tried(faults, device, monkeypatch):
    faults("good", "many", "half")
    measuring = session.Search._measure

    def measure(self, entry, best):
        measuring(self, entry, best)
        self._compile_ms = [1e9]

    monkeypatch.setattr(session.Search, "_measure", measure)
    _, results = searched(device, budget_ms=60_000)
    status = {choice_text(r.solver.removeprefix("faulty."), r.config): r.status for r in results}
    assert "not tried" not in {status[GOOD], status[MANY], status['half {"broken": true}']}
    assert status[EXTRA] == "not tried"


def test_workspace_and_memory_limits(faults, device):
    faults("good", "many")
    _, results = searched(device, said=False, budget_ms=60_000)
    least = min(r.workspace for r in results)
    assert "memory" not in results.conditions
    assert results.peak_bytes >= max(r.workspace for r in results)
    _, results = searched(device, said=False, budget_ms=60_000, workspace_limit=least)
    assert {r.status for r in results if r.workspace > least} == {"refused"}
    assert f"the limit is {least}" in results.having("refused")[0].reason
    assert "did not fit into the memory" in results.conditions
    faults("good")
    _, results = searched(device, said=False, memory_limit=100)
    assert "memory: the operands" in results[0].reason


# --- ties, determinism, policies --------------------------------------------------------------------------------------


def test_determinism_is_verified_bit_by_bit(faults, device):
    faults("good", "random")
    found, _ = searched(device, said=False)
    assert (found["good"].deterministic, found["random"].deterministic) == (True, False)
    with policy(deterministic=True):
        found, results = searched(device, said=False)
        assert found["random"].status == "refused"
        assert results.winner.solver == "faulty.good"


def test_the_measured_error_decides(faults, device):
    faults("good", "sloppy")
    with policy(max_error=1e-6):
        found, results = searched(device, said=False)
        assert found["sloppy"].status == "refused"
        assert "the policy admits 1e-06" in found["sloppy"].reason
        assert results.winner.error < 1e-6
        assert explain(PROBLEM, device).chosen == "faulty.good"


def test_a_tie_takes_the_least_workspace(faults, device):
    faults("many")
    _, results = searched(device, said=False)
    assert results.winner is results[0]
    if len(results.tie) == 3:
        assert results.winner.config == {"extra": 0}
        assert "less workspace" in results.verdict
    chosen = explain(PROBLEM, device).verdicts[0]
    assert chosen.config == results.winner.config


def test_a_search_under_a_policy_is_for_that_policy_only(faults, device):
    faults("good", "many")
    info = runtime.device_info(device)
    with policy(solver="faulty.many"):
        _, results = searched(device, said=False)
        assert {r.solver for r in results if r.status == "measured"} == {"faulty.many"}
        assert why_find(PROBLEM, info) is None
    assert known(device) == set()
    assert why_find(PROBLEM, info) == "never measured"
    assert not list(Path(perfdb.user_folder()).rglob("*.json"))


# --- records and what follows -----------------------------------------------------------------------------------------


def test_the_record_carries_its_provenance(faults, device):
    faults("good")
    find(PROBLEM, device, budget_ms=60_000)
    info = runtime.device_info(device)
    (path,) = Path(perfdb.user_folder()).rglob("*.json")
    (stored,) = json.loads(path.read_text())["records"]
    assert stored["problem"] == str(PROBLEM)
    assert stored["default"] is True
    assert stored["provenance"]["plugin"] == "faulty"
    assert stored["provenance"]["driver"] == info.driver
    assert len(stored["provenance"]["kernel_hash"]) == 16
    assert (stored["budget_ms"], stored["optimal"], stored["deterministic"]) == (60_000, True, True)
    assert 0 < stored["error"] < 1e-5
    assert stored["ci_ms"][0] <= stored["median_ms"] <= stored["ci_ms"][1]
    assert why_find(PROBLEM, info) is None
    assert "measured" in explain(PROBLEM, device).source


def test_nothing_is_stored_when_asked(faults, device):
    faults("good")
    find(PROBLEM, device, store=False)
    assert known(device) == set()


def test_a_newcomer_is_a_reason_to_measure_again(faults, device):
    """A plugin that was installed since; not who took part and came to no time, nor who refuses."""
    faults("good")
    find(PROBLEM, device, budget_ms=60_000)
    info = runtime.device_info(device)
    assert why_find(PROBLEM, info) is None
    faults("good", "many")
    assert why_find(PROBLEM, info) == "never measured: faulty.many"
    assert why_find(PROBLEM, info, Policy(solver="faulty.good")) is None
    find(PROBLEM, device, budget_ms=60_000)
    assert why_find(PROBLEM, info) is None
    faults("good", "many", "no_compile")
    assert why_find(PROBLEM, info) == "never measured: faulty.no_compile"
    searched(device, budget_ms=60_000)
    loader.reload()
    dispatch.forget()  # who failed in the search is asked again by the next process, and had its part
    assert why_find(PROBLEM, info) is None


def test_records_that_do_not_say_who_took_part(faults, device):
    """Those of earlier versions: a plugin of which nothing is recorded is new."""
    faults("good", "many")
    find(PROBLEM, device, budget_ms=60_000)
    info, db = runtime.device_info(device), perfdb.perfdb()
    kept = [replace(record, contest="") for record in db.all(info) if record.solver == "faulty.good"]
    (path,) = Path(perfdb.user_folder()).rglob("*.json")
    path.unlink()
    db.refresh()
    db.record(*kept)
    assert why_find(PROBLEM, info) is None
    path = next(Path(perfdb.user_folder()).rglob("*.json"))
    path.unlink()
    db.refresh()
    db.record(*(replace(record, solver="im2col") for record in kept))
    assert why_find(PROBLEM, info) == "never measured: faulty.good, faulty.many"


def test_an_upgrade_is_a_reason_to_measure_again(faults, device, monkeypatch):
    faults("good")
    find(PROBLEM, device)
    monkeypatch.setattr("convdispatch.selection.choice.provenance.text_hash", lambda module: "another")
    assert "faulty.good was measured with another kernel text" in why_find(PROBLEM, runtime.device_info(device))


# --- a child process --------------------------------------------------------------------------------------------------


def test_a_crash_and_a_hang_take_only_a_child_with_them(faults, hanging, device):
    faults("good", "crashes", "hangs", "lies")
    found, results = searched(device, isolate=True)
    assert results.winner.solver == "faulty.good"
    assert {name: found[name].status for name in ("crashes", "hangs", "lies")} == {
        "crashes": "failed",
        "hangs": "failed",
        "lies": "wrong",
    }
    assert "killed by SIGABRT" in found["crashes"].reason
    assert "no answer within 600 s" in found["hangs"].reason


# --- the call itself --------------------------------------------------------------------------------------------------


def test_the_call(faults, device):
    faults("good")
    assert find("mb1ic4ih9oc4kh3ph1", device)[0].status == "measured"
    (refused,) = find(PROBLEM.replace(dtype="float64"), device)
    assert (refused.status, refused.reason) == ("refused", "float32 only, got float64")
    with pytest.raises(InvalidArgument, match="no images"):
        find(PROBLEM.replace(mb=0), device)
    with pytest.raises(InvalidArgument, match="budget_ms must be above 0"):
        find(PROBLEM, device, budget_ms=0)
    with frozen(), pytest.raises(Frozen):
        find(PROBLEM, device)


@pytest.mark.parametrize(
    "text",
    [
        "mb2ic4ih9oc6kh3ph1+bias+relu",
        "mb2ic4ih9oc6kh3ph1+bias+residual+relu",
        "mb2ic4ih9oc6kh3ph1+accumulate",
        "mb2ic4ih9oc6kh3ph1+constant",
        "bwd_data_mb2ic4ih9oc6kh3sh2",
        "bwd_weights_mb2ic4ih9oc6kh3",
        "nhwc_mb2ic4ih9oc6kh3",
        "f16_mb2ic4ih9oc6kh3",
        "ieee_mb2ic4ih9oc6kh3",
    ],
)
def test_every_kind_of_problem_can_be_searched(text, faults, device, monkeypatch):
    monkeypatch.setenv("CONVDISPATCH_PLUGINS", "im2col")
    faults()
    results = find(text, device, budget_ms=800)  # the first of all is measured, however long it takes
    assert results.winner is not None, [r.reason for r in results]
    assert results.winner.error <= error_limit(ConvProblem.parse(text))


def test_the_error_limits():
    limits = [error_limit(PROBLEM.replace(**c)) for c in ({"math": "ieee"}, {}, {"math": "tf32"}, {"math": "fast"})]
    assert limits == sorted(limits)
    assert error_limit(PROBLEM.replace(math="ieee")) < error_limit(PROBLEM.replace(math="ieee", ic=4096))
    assert error_limit(PROBLEM.replace(dtype="float64")) < 1e-10
