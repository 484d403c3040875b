"""Selection by evidence: records, doubt, error budgets, lock files; a warm choice reads no file."""

from __future__ import annotations

import builtins
import io
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from command_line import run_cli

import convdispatch as cd
from convdispatch.device import runtime
from convdispatch.selection import dispatch
from convdispatch.selection.choice import evidence, lockfile
from convdispatch.selection.choice.provenance import current
from convdispatch.selection.records.perfdb import perfdb
from convdispatch.selection.records.record import Record, device_key, now
from convdispatch.selection.solver_query import query

PROBLEM = cd.ConvProblem(mb=1, ic=4, ih=8, iw=8, oc=4, kh=3, kw=3)


@pytest.fixture
def db(tmp_path, monkeypatch, read_anew, naive):
    """An empty database, and two solvers to choose from: im2col's and ``naive.direct``."""
    monkeypatch.setenv("CONVDISPATCH_PLUGINS", "im2col,naive")
    monkeypatch.setenv("CONVDISPATCH_DB", str(tmp_path / "db"))
    read_anew()
    return perfdb()


def put(db, solver, ms, problem=PROBLEM, error=1e-7, config=None, **fields):
    info = runtime.device_info(runtime.default_device())
    if config is None:
        config = query(cd_solver(solver), problem, info).configs[0]
    fields = {"provenance": current(solver, info), "deterministic": True} | fields
    db.record(
        Record(
            str(problem), device_key(info), solver, dict(config), ms, (ms * 0.99, ms * 1.01), ms, ms, 30,
            error=error, created=now(), **fields,
        )
    )  # fmt: skip
    dispatch.forget()


def cd_solver(name):
    from convdispatch.selection.plugins.loader import plugins

    return plugins().solvers[name]


def im2col():
    from convdispatch.selection.plugins.loader import plugins

    return next(name for name in sorted(plugins().solvers) if name.startswith("im2col"))


def test_the_measured_beat_the_registry(db):
    assert cd.explain(PROBLEM).chosen.startswith("im2col")
    put(db, im2col(), 2.0)
    put(db, "naive.direct", 1.0)
    explanation = cd.explain(PROBLEM)
    assert explanation.chosen == "naive.direct"
    assert explanation.source == "measured 1 ms, user record"
    verdict = explanation.verdicts[0]
    assert (verdict.measured_ms, verdict.error) == (1.0, 1e-7)


def test_a_record_in_doubt_decides_and_says_so(db):

    info = runtime.device_info(runtime.default_device())
    old = replace(current("naive.direct", info), driver="1.0")
    put(db, "naive.direct", 1.0, provenance=old)
    put(db, im2col(), 2.0)
    assert "in doubt: measured with another driver: 1.0" in cd.explain(PROBLEM).source


def test_a_configuration_that_is_not_offered_is_not_used(db, monkeypatch):
    monkeypatch.setattr(evidence, "_warned_solvers", set())
    put(db, "naive.direct", 0.1, config={"tile": 3})
    put(db, im2col(), 2.0)
    words = r"naive\.direct does not offer its configuration \{\"tile\": 3\}"
    with pytest.warns(cd.ConvDispatchWarning, match=words):
        chosen = cd.explain(PROBLEM).chosen
    assert chosen == im2col() == cd.explain(PROBLEM).chosen  # and no second warning


def test_max_error_decides_by_the_measured_error(db):
    put(db, "naive.direct", 1.0, error=3e-5)
    put(db, im2col(), 2.0, error=2e-7)
    with cd.policy(max_error=1e-5):
        explanation = cd.explain(PROBLEM)
        assert explanation.chosen == im2col()
        reasons = {v.solver: v.reason for v in explanation.verdicts}
        assert reasons["naive.direct"] == "measured error 3e-05, policy(max_error=1e-05)"
    with cd.policy(max_error=1e-4):
        assert cd.explain(PROBLEM).chosen == "naive.direct"


def test_max_error_without_a_measurement(db):
    with cd.policy(max_error=1e-5, solver="im2col*"):
        assert cd.explain(PROBLEM).chosen == im2col()  # exact: a plain sum
    with cd.policy(max_error=1e-12, solver="im2col*"):
        assert "a plain sum errs by about" in cd.explain(PROBLEM).verdicts[0].reason


def test_deterministic_is_what_was_seen_not_what_was_said(db):
    put(db, "naive.direct", 1.0, deterministic=False)
    put(db, im2col(), 2.0)
    with cd.policy(deterministic=True):
        assert cd.explain(PROBLEM).chosen == im2col()


def test_a_measured_problem_says_nothing_of_another(db):
    put(db, "naive.direct", 1.0)
    put(db, im2col(), 2.0)
    assert cd.explain(PROBLEM.replace(ih=9, iw=9)).chosen == im2col()


def test_a_warm_choice_reads_no_file(db, monkeypatch):
    x, w = np.ones(PROBLEM.x_shape, np.float32), np.ones(PROBLEM.w_shape, np.float32)
    put(db, im2col(), 1.0)
    cd.conv(x, w)
    opened = []

    def watch(real):
        def opener(*arguments, **keywords):
            opened.append(arguments[0])
            return real(*arguments, **keywords)

        return opener

    monkeypatch.setattr(builtins, "open", watch(builtins.open))
    monkeypatch.setattr(io, "open", watch(io.open))
    monkeypatch.setattr(Path, "iterdir", watch(Path.iterdir))
    cd.conv(x, w)
    cd.conv(np.ones((3, 4, 8, 8), np.float32), w)  # another problem: planned, but what is known was read before
    monkeypatch.undo()
    assert not [path for path in opened if str(db.folder) in str(path)]


def test_lock_round_trip_and_drift(db, tmp_path, monkeypatch):
    lock = tmp_path / "net.lock"
    put(db, "naive.direct", 1.0)
    put(db, im2col(), 2.0)
    arguments = ["find", str(PROBLEM), "--lock", str(lock)]
    result = run_cli(*arguments, status=0, catch_exceptions=False)
    assert lockfile.read(lock)[str(PROBLEM)].solver == "naive.direct"
    assert run_cli(*arguments, "--check").exit_code == 0
    put(db, im2col(), 0.5)
    result = run_cli(*arguments, "--check", status=1)
    assert f"{PROBLEM}: locked naive.direct" in result.output
    assert cd.explain(PROBLEM).chosen == im2col()
    monkeypatch.setenv("CONVDISPATCH_LOCK", str(lock))
    dispatch.forget()
    assert cd.explain(PROBLEM).chosen == "naive.direct"
    assert cd.explain(PROBLEM).source == f"lock file {lock}"


def test_a_locked_solver_that_cannot_run_is_an_error(db, tmp_path, monkeypatch):
    lock = tmp_path / "net.lock"
    lockfile.write(lock, {str(PROBLEM): lockfile.Decision("absent.solver", {})})
    monkeypatch.setenv("CONVDISPATCH_LOCK", str(lock))
    with pytest.raises(cd.InvalidPolicy, match=r"fixes absent\.solver .* no plugin provides it"):
        cd.explain(PROBLEM)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "1: not JSON"),
        ("[]", "is no lock file of schema 1"),
        (json.dumps({"schema": 1, "problems": {"mb1ic1ih3oc1kh1": {}}}), "names no solver"),
    ],
)
def test_a_broken_lock_file(tmp_path, text, words):
    lock = tmp_path / "broken.lock"
    lock.write_text(text)
    with pytest.raises(cd.InvalidPolicy, match=words):
        lockfile.read(lock)


def test_find_records_and_the_next_call_follows(db):
    results = cd.find(PROBLEM, budget_ms=60_000)  # as long as a loaded machine wants: both are benchmarked
    assert results.winner is not None
    assert cd.explain(PROBLEM).chosen == results.winner.solver
    assert cd.explain(PROBLEM).source.startswith("measured")
    output = run_cli("db", "list", "--json", catch_exceptions=False).output
    assert {entry["problem"] for entry in json.loads(output)} == {str(PROBLEM)}


def test_find_skips_what_is_known(db):
    first = run_cli("find", str(PROBLEM), "--budget", "2000", "--json", catch_exceptions=False)
    assert json.loads(first.output)[0]["winner"]
    again = run_cli("find", str(PROBLEM), "--budget", "2000", "--json", catch_exceptions=False)
    assert json.loads(again.output) == []
