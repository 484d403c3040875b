"""Solvers that hang or crash as they answer: a child process is lost, once for each text of a plugin."""

from __future__ import annotations

import re
import subprocess
import sys
import time
import warnings

import numpy as np
import pytest
from sabotaging import FUSED, PLUGIN, PROBLEM, check_one_warning

import convdispatch as cd
from convdispatch.api.policy import frozen
from convdispatch.selection import dispatch
from convdispatch.selection.plugins import answer_trial, loader, verdicts

HANGS, CRASHES, EXITS = "__import__('time').sleep(1000)", "os.abort()", "os._exit(7)"
HOLDS = "__import__('ctypes').PyDLL(None).sleep(1000)"
"""It hangs as well, and no other thread of Python's runs meanwhile."""
WORDS = {HANGS: "hangs: no answer within", CRASHES: "crashes (SIGABRT)", EXITS: "ends the process (exit 7)"}
WORDS[HOLDS] = WORDS[HANGS]
AT_WORK = "[sum(i * i for i in range(300_000)) for _ in range(60)] and None"
"""Some seconds of work, which is no hang."""


@pytest.fixture
def tried(monkeypatch):
    """As users have it, with more patience; the processes that were started."""
    monkeypatch.setattr(answer_trial, "LIMIT_S", 3.0)
    monkeypatch.setattr(answer_trial, "LOAD_S", 500.0)
    began, started = answer_trial._Child, []
    monkeypatch.setattr(answer_trial, "_Child", lambda *a: started.append(began(*a)) or started[-1])
    yield started
    for child in started:
        child.close()
    answer_trial._children.clear()


@pytest.mark.parametrize(
    ("method", "ends"), [("rejects", HANGS), ("configs", CRASHES), ("cost", EXITS)], ids=["hangs", "crashes", "exits"]
)
def test_conv_goes_on_and_the_next_process_knows(sabotage, tried, method, ends):
    sabotage(PLUGIN.format(method=method, expression=ends))
    said = check_one_warning(f"its {method}() {WORDS[ends]}")
    assert "in a child process" in said
    assert len(tried) == 1
    loader.plugins.cache_clear()
    dispatch.forget()  # as in the next process
    with pytest.warns(cd.ConvDispatchWarning, match="in a child process"):
        verdict = next(v for v in cd.explain(FUSED).verdicts if v.solver == "bad.solver")
    assert (verdict.status, len(tried)) == ("quarantined", 1)


def next_process(tried):
    """Its children are gone; what comes has read nothing yet."""
    verdicts.refresh()
    for child in tried:
        child.close()
    loader.plugins.cache_clear()
    dispatch.forget()


def test_one_child_is_asked_about_each_problem_and_none_in_the_next_process(sabotage, tried, tmp_path):
    sabotage(PLUGIN.format(method="rejects", expression="'not today'"))
    for mb in (1, 2, 3):
        assert cd.explain(PROBLEM.replace(mb=mb)).chosen.startswith("im2col")
    assert len(tried) == 1
    next_process(tried)
    for mb in (1, 2, 3):
        cd.explain(PROBLEM.replace(mb=mb))
    assert len(tried) == 1
    assert len(list((tmp_path / "db").glob("*.answers"))) >= 3
    assert not verdicts.answers("bad", loader.plugins().fingerprint("bad.solver"))
    sabotage(PLUGIN.format(method="rejects", expression="'not tomorrow'"))  # another text is another plugin
    cd.explain(PROBLEM)
    assert len(tried) == 2


def test_one_that_works_for_long_does_not_hang(sabotage, tried, monkeypatch):
    monkeypatch.setattr(answer_trial, "LIMIT_S", 1.0)
    sabotage(PLUGIN.format(method="rejects", expression=f"arguments[0].kh == 3 and {AT_WORK} or 'worked'"))
    verdict = next(v for v in cd.explain(PROBLEM).verdicts if v.solver == "bad.solver")
    assert (verdict.status, verdict.reason) == ("refused", "worked")


def test_the_plugins_other_solvers_answer(sabotage, tried):
    sabotage(
        PLUGIN.format(method="rejects", expression="'fine' if self.name == 'bad.fine' else os.abort()").replace(
            "return [Bad()]", "fine = Bad()\n    fine.name = 'bad.fine'\n    return [Bad(), fine]"
        )
    )
    with pytest.warns(cd.ConvDispatchWarning, match=r"bad.solver .* its rejects\(\) crashes"):
        found = {v.solver: v for v in cd.explain(PROBLEM).verdicts}
    assert (found["bad.fine"].status, found["bad.fine"].reason) == ("refused", "fine")
    assert found["bad.solver"].status == "quarantined"


def test_proven_plugins_and_frozen_calls_are_not_tried(sabotage, tried):
    sabotage(PLUGIN.format(method="rejects", expression="'not today'"))
    with frozen():
        assert answer_trial.fault("bad.solver", PROBLEM, None) is None
    verdicts.trust("bad", loader.plugins().fingerprint("bad.solver"))
    cd.explain(PROBLEM)
    assert not tried


def test_find_asks_in_a_child_at_each_problem(sabotage, tried):
    """A plugin that was tried at another problem, and is asked about one that it never comes back from."""
    sabotage(PLUGIN.format(method="rejects", expression="os.abort() if arguments[0].kh == 1 else 'not today'"))
    cd.explain(PROBLEM)
    problem = cd.ConvProblem(mb=1, ic=4, ih=6, iw=6, oc=4, kh=1, kw=1)
    with pytest.warns(cd.ConvDispatchWarning, match=r"bad.solver is set aside .* its rejects\(\) crashes .SIGABRT."):
        results = cd.find(problem, budget_ms=20_000, isolate=True)
    assert results.winner.solver.startswith("im2col")
    (bad,) = (result for result in results if result.solver == "bad.solver")
    assert "crashes" in bad.reason
    loader.plugins.cache_clear()
    dispatch.forget()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert cd.explain(problem).chosen.startswith("im2col")  # in this process, which lives


@pytest.mark.parametrize(
    ("method", "else_", "ends"),
    [("rejects", "None", HANGS), ("configs", "[{}]", HOLDS), ("cost", "1.0", CRASHES), ("rejects", "None", EXITS)],
    ids=["hangs", "holds", "crashes", "exits"],
)
def test_a_later_problem_costs_its_caller_seconds_once(sabotage, tried, method, else_, ends):
    """The child that survived the first problem is asked about each that comes."""
    sabotage(PLUGIN.format(method=method, expression=f"arguments[0].mb == 3 and {ends} or {else_}"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert cd.explain(FUSED).chosen
    x, w = np.ones((3, 2, 5, 5), np.float32), np.ones((2, 2, 3, 3), np.float32)
    words = rf"its {method}\(\) {re.escape(WORDS[ends])}.*, in a child process"
    with pytest.warns(cd.ConvDispatchWarning, match=words) as said:
        np.testing.assert_array_equal(cd.conv(x, w), np.full((3, 2, 3, 3), 18.0))
    assert len(said) == 1
    next_process(tried)
    with pytest.warns(cd.ConvDispatchWarning, match=words):
        verdict = next(v for v in cd.explain(FUSED).verdicts if v.solver == "bad.solver")
    assert (verdict.status, len(tried)) == ("quarantined", 1)


def test_one_that_hangs_here_alone_loses_a_thread(sabotage, tried):
    """It answers otherwise than in the child."""
    here = f"os.environ.get('CONVDISPATCH_PLUGINS') != 'bad' and {HANGS}"
    sabotage(PLUGIN.format(method="rejects", expression=here))
    x, w = np.ones((3, 2, 5, 5), np.float32), np.ones((2, 2, 3, 3), np.float32)
    with pytest.warns(cd.ConvDispatchWarning, match=r"its rejects\(\) hangs: no answer within") as said:
        np.testing.assert_array_equal(cd.conv(x, w), np.full((3, 2, 3, 3), 18.0))
    assert len(said) == 1


def test_a_child_that_left_is_followed_by_another(sabotage, tried):
    sabotage(PLUGIN.format(method="rejects", expression="'not today'"))
    cd.explain(PROBLEM)
    tried[0]._process.kill()
    tried[0]._process.wait()
    cd.explain(PROBLEM.replace(mb=3))
    assert len(tried) == 2
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert (
            next(v for v in cd.explain(PROBLEM.replace(mb=4)).verdicts if v.solver == "bad.solver").reason
            == "not today"
        )


def test_what_a_thread_answers_or_raises_is_what_counts(sabotage, tried):
    sabotage(PLUGIN.format(method="cost", expression="1 / 0"))
    with pytest.warns(cd.ConvDispatchWarning, match="ZeroDivisionError"):
        assert cd.explain(FUSED).chosen
    assert answer_trial.watched("bad.solver", lambda: 7) == 7
    with pytest.raises(KeyError, match="a"):
        answer_trial.watched("bad.solver", lambda: {}["a"])


def test_a_process_of_a_user(sabotage, tmp_path):
    """With the limits that users have; a hang costs seconds once."""
    sabotage(PLUGIN.format(method="rejects", expression=HANGS))
    call = "import numpy as np, convdispatch as cd; print(cd.conv(np.ones((1,1,3,3),'f'), np.ones((1,1,3,3),'f')))"
    began = time.monotonic()
    for turn in range(2):
        ended = subprocess.run([sys.executable, "-c", call], capture_output=True, text=True, timeout=500)
        assert "[[[[9.]]]]" in ended.stdout, ended.stderr
        assert ("its rejects() hangs" in ended.stderr) == (turn == 0) or "seen" not in ended.stderr
    assert time.monotonic() - began < 400
    assert np.ones(1)
