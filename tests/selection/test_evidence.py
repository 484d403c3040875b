"""Selection by evidence: records, doubt, neighbours, error budgets, lock files; a warm choice reads no file."""

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


def test_an_unmeasured_problem_borrows_from_its_neighbour(db):
    put(db, "naive.direct", 1.0)
    put(db, im2col(), 2.0)
    near = PROBLEM.replace(ih=9, iw=9)
    explanation = cd.explain(near)
    assert explanation.chosen == "naive.direct"
    assert explanation.source.startswith(f"neighbour: prediction corrected by {PROBLEM}, ")
    assert explanation.source.endswith(" away")
    far = PROBLEM.replace(ic=512, oc=512, ih=64, iw=64, kh=1, kw=1)
    assert cd.explain(far).chosen == im2col()
    assert not cd.explain(far).source.startswith("neighbour")


@pytest.mark.parametrize(
    ("measured", "taken"),
    [
        ({"form": "b", "depth": 90, "inner": {"split": 4}}, 2),  # the same words; the nearer depth
        ({"form": "b", "depth": 5, "inner": {"split": 4}}, 1),
        ({"form": "a", "depth": 64, "inner": {"split": 1}}, 0),  # offered as it is
        ({"form": "c", "depth": 64, "inner": {"split": 1}}, 0),  # no such form: what else agrees
        ({"form": "b", "depth": 64, "inner": {"split": True}}, 2),  # a word is no number
        ({"other": 1}, 0),  # nothing agrees: the first
    ],
)
def test_of_what_is_offered_the_most_alike_is_borrowed(db, monkeypatch, measured, taken):
    """A neighbour's configuration is seldom offered for other sizes."""
    offered = [
        {"form": "a", "depth": 64, "inner": {"split": 1}},
        {"form": "b", "depth": 8, "inner": {"split": 4}},
        {"form": "b", "depth": 128, "inner": {"split": 4}},
    ]
    put(db, "naive.direct", 1.0, config=measured)
    put(db, im2col(), 2.0)
    monkeypatch.setattr(type(cd_solver("naive.direct")), "configs", lambda *_: iter(offered), raising=False)
    explanation = cd.explain(PROBLEM.replace(ih=9, iw=9))
    assert explanation.chosen == "naive.direct"
    (verdict,) = [verdict for verdict in explanation.verdicts if verdict.solver == "naive.direct"]
    assert verdict.config == offered[taken]


@pytest.mark.parametrize(("ms", "taken"), [(1.0, 3), (1.95, 0)])
def test_a_solver_that_predicts_keeps_its_own_choice_unless_another_was_clearly_faster(db, monkeypatch, ms, taken):
    """What is taken is offered here: the configuration most like the fastest there."""
    here = runtime.device_info(runtime.default_device())
    info = replace(here, type="cpu", simd_width=16, arch="simd512")  # what is offered depends on the lanes
    monkeypatch.setattr(runtime, "device_info", lambda device: info)
    near = PROBLEM.replace(ih=9, iw=9)
    there, here = (list(cd_solver(im2col()).configs(problem, info)) for problem in (PROBLEM, near))
    put(db, im2col(), 2.0, config=there[0])
    put(db, im2col(), ms, config=there[3])
    with cd.policy(solver="im2col*"):
        explanation = cd.explain(near)
    assert explanation.source.startswith("neighbour: ")
    assert explanation.verdicts[0].config == here[taken]


def test_what_is_borrowed_keeps_the_workspace_limit(db):
    info = runtime.device_info(runtime.default_device())
    asked, solver = cd.ConvProblem(mb=2, ic=40, ih=40, iw=40, oc=9, kh=3, kw=3, ph=1, pw=1), cd_solver(im2col())
    near = asked.replace(ih=39, iw=39)
    configs = list(solver.configs(near, info))
    greedy = max(configs, key=lambda config: solver.workspace(near, info, config))
    modest = min(configs, key=lambda config: solver.workspace(near, info, config))
    put(db, solver.name, 5.0, problem=near, config=modest)
    put(db, solver.name, 1.0, problem=near, config=greedy)
    limit = min(solver.workspace(asked, info, config) for config in solver.configs(asked, info))
    with cd.policy(workspace_limit=limit, solver="im2col*"):
        verdict = cd.explain(asked).verdicts[0]
    assert verdict.source.startswith("neighbour: ")
    assert solver.workspace(asked, info, verdict.config) <= limit


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
