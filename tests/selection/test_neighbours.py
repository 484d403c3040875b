"""Decisions of neighbours: what counts as near, and what may be taken over."""

from __future__ import annotations

import dataclasses
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from records import DEVICE, record

from convdispatch.api.problem import ConvProblem
from convdispatch.selection.choice.neighbours import (
    MARGIN,
    MAX_DISTANCE,
    SURE_SAMPLES,
    Neighbours,
    Offer,
    distance,
    neighbours,
)
from convdispatch.selection.records.perfdb import PerfDB

BASE = ConvProblem(mb=1, ic=64, ih=56, iw=56, oc=64, kh=3, kw=3, ph=1, pw=1)
PROBLEMS = st.builds(
    lambda mb, ic, oc, size, k, s, dtype, direction: ConvProblem(
        mb=mb, ic=ic, oc=oc, ih=size, iw=size, kh=k, kw=k, sh=s, sw=s, dtype=dtype, direction=direction
    ),
    *(st.integers(1, 64) for _ in range(3)),
    st.integers(7, 64),
    st.integers(1, 7),
    st.integers(1, 3),
    st.sampled_from(["float32", "float16"]),
    st.sampled_from(["fwd", "bwd_data"]),
)


# --- distance ---------------------------------------------------------------------------------------------------------


@given(PROBLEMS, PROBLEMS, PROBLEMS)
def test_it_is_a_metric(a, b, c):
    assert distance(a, a) == 0
    assert distance(a, b) == distance(b, a) >= 0
    if math.isfinite(distance(a, b) + distance(b, c)):
        assert distance(a, c) <= distance(a, b) + distance(b, c) + 1e-9


@pytest.mark.parametrize("change", [{"direction": "bwd_data"}, {"dtype": "float16"}, {"layout": "nhwc"}, {"ndim": 3}])
def test_another_kind_is_infinitely_far(change):
    assert distance(BASE, BASE.replace(**change)) == math.inf


def test_what_changes_the_algorithm_is_farther_than_what_changes_the_work():
    work = distance(BASE, BASE.replace(mb=4, ic=128, oc=128))
    assert work < distance(BASE, BASE.replace(kh=1, kw=1, ph=0, pw=0))
    assert work < distance(BASE, BASE.replace(sh=2, sw=2, ph_r=1, pw_r=1))
    assert work < distance(BASE, BASE.replace(dh=2, dw=2, ph=2, pw=2, ph_r=2, pw_r=2))
    assert work < distance(BASE, BASE.replace(g=64))


def test_the_epilogue_counts_little():
    assert 0 < distance(BASE, BASE.replace(bias=True)) < distance(BASE, BASE.replace(mb=4))


# --- decisions --------------------------------------------------------------------------------------------------------


def measured(problem, **times):
    return [record(solver, ms, problem) for solver, ms in times.items()]


@pytest.fixture
def known():
    near, far = BASE.replace(ic=128), BASE.replace(kh=1, kw=1, ph=0, pw=0, ph_r=0, pw_r=0)
    return Neighbours([*measured(near, winograd=1.0, gemm=2.0), *measured(far, direct=0.5, gemm=0.7)])


def test_the_nearest_decision_is_borrowed(known):
    found = known.nearest(BASE)
    assert (found.solver, found.problem) == ("winograd", str(BASE.replace(ic=128)))
    assert found.predicted_ms == pytest.approx(0.5)  # half the channels, half the work
    assert "64" in str(found)


def test_nothing_is_borrowed_from_another_kind(known):
    assert known.nearest(BASE.replace(dtype="float16")) is None
    assert Neighbours([]).nearest(BASE) is None


def test_a_measured_problem_is_its_own_neighbour(known):
    found = known.nearest(BASE.replace(ic=128))
    assert (found.distance, found.predicted_ms) == (0, 1.0)


def test_a_problem_of_another_version_is_passed_over():
    assert len(Neighbours([record("a", 1.0, "fwd_f4_mb1ic1iw1oc1kw1")])) == 0


# --- corrected predictions ------------------------------------------------------------------------------------------


def offers(**costs):
    return {solver: Offer({}, cost) for solver, cost in costs.items()}


def knows(times, cost=None):
    """Neighbours of ``{problem: {solver: ms}}``; ``cost`` predicts, or else the operations do."""
    records = [r for problem, solvers in times.items() for r in measured(problem, **solvers)]
    return Neighbours(records, cost or (lambda solver, problem, config: float(problem.flops)))


WIDER = [BASE.replace(ic=ic) for ic in (80, 96, 128)]


def test_a_choice_is_scaled_by_what_its_solver_predicts():
    """F(6) won at the neighbour, whose sizes its tile fits; the solvers' own predictions say that it does not here."""
    near = BASE.replace(ih=60, iw=60)
    known = knows({near: {"tile6": 1.0, "tile4": 1.2}}, lambda solver, problem, config: 1.0)
    assert known.choose(BASE, offers(tile6=1.0, tile4=1.0)).solver == "tile6"
    assert known.choose(BASE, offers(tile6=3.0, tile4=1.0)).solver == "tile4"


def test_who_is_slower_than_predicted_everywhere_near_loses_here():
    known = knows({problem: {"hopeful": 2.0, "modest": 1.0} for problem in WIDER})
    predicted = offers(hopeful=0.7 * BASE.flops, modest=BASE.flops)
    found = known.choose(BASE, predicted, "hopeful")
    assert (found.solver, found.problem) == ("modest", str(WIDER[0]))
    assert str(found) == f"prediction corrected by {WIDER[0]}, {found.distance:.1f} away"


def test_the_nearer_count_more_and_all_count():
    known = knows({WIDER[0]: {"a": 1.0, "b": 1.3}, WIDER[2]: {"a": 1.3, "b": 1.0}})
    assert known.choose(BASE, offers(a=1.0, b=1.0)).solver == "a"
    beyond = [WIDER[2].replace(oc=oc) for oc in (60, 68, 72)]
    known = knows({WIDER[0]: {"a": 1.0, "b": 1.1}} | {problem: {"a": 1.9, "b": 1.0} for problem in beyond})
    assert known.choose(BASE, offers(a=1.0, b=1.0)).solver == "b"


def test_what_would_run_anyway_stands_until_a_rival_promises_clearly_less():
    known = knows({problem: {"a": 1.0, "b": 1.0 - MARGIN / 2} for problem in WIDER})
    assert known.choose(BASE, offers(a=1.0, b=1.0), "a").solver == "a"
    assert known.choose(BASE, offers(a=1.0, b=1.0), "b").solver == "b"
    known = knows({problem: {"a": 1.0, "b": 1.0 - 2 * MARGIN} for problem in WIDER})
    assert known.choose(BASE, offers(a=1.0, b=1.0), "a").solver == "b"


def test_one_problem_far_away_says_little():
    far = BASE.replace(ic=64 * 5)
    assert 2 < distance(BASE, far) < MAX_DISTANCE
    known = knows({far: {"a": 1.15, "b": 1.0}})
    assert known.choose(BASE, offers(a=1.0, b=1.0), "a").solver == "a"
    assert known.choose(BASE.replace(ic=64 * 4), offers(a=1.0, b=1.0), "a").solver == "b"
    assert known.choose(BASE.replace(ic=32), offers(a=1.0, b=1.0), "a") is None


def test_nothing_is_said_of_whom_nobody_measured():
    known = knows({WIDER[0]: {"a": 1.0, "b": 2.0}})
    assert known.choose(BASE, offers(a=1.0, new=0.1)).solver == "a"
    assert known.choose(BASE, offers(a=1.0, new=0.1), "new") is None
    assert known.choose(BASE, offers(new=0.1)) is None
    assert known.choose(BASE, offers(a=1.0, silent=None), "silent") is None  # no saying how the two compare


def test_the_promise_is_a_time():
    known = knows({problem: {"a": problem.flops * 1e-9, "b": problem.flops * 2e-9} for problem in WIDER})
    found = known.choose(BASE, offers(a=float(BASE.flops), b=float(BASE.flops)))
    assert found.predicted_ms == pytest.approx(BASE.flops * 1e-9, rel=0.1)  # held back towards what was predicted


@given(
    st.dictionaries(PROBLEMS, st.fixed_dictionaries({s: st.floats(0.01, 100) for s in "abc"}), min_size=1, max_size=8),
    st.fixed_dictionaries({s: st.floats(1, 100) for s in "abc"}),
    st.floats(0.1, 10),
    PROBLEMS,
)
def test_a_slower_device_chooses_alike(table, costs, slower, asked):
    """Only how solvers compare counts, at each problem; not what the device, the clock or the day make of all."""
    slow = {problem: {s: ms * slower for s, ms in times.items()} for problem, times in table.items()}
    one, other = (knows(each).choose(asked, offers(**costs)) for each in (table, slow))
    assert (one is None) == (other is None)
    if one is not None:
        assert one.solver == other.solver or promised(table, costs, asked, one) == pytest.approx(
            promised(table, costs, asked, other)
        )


def promised(table, costs, asked, found):
    return knows(table).choose(asked, offers(**{found.solver: costs[found.solver]})).predicted_ms


@given(st.dictionaries(PROBLEMS, st.fixed_dictionaries({s: st.floats(0.01, 100) for s in "ab"}), max_size=8), PROBLEMS)
def test_where_all_is_as_predicted_the_prediction_decides(table, asked):
    """Times in proportion to predictions correct nothing, near or far."""
    costs = {(s, problem): ms for problem, times in table.items() for s, ms in times.items()}
    known = knows(table, lambda solver, problem, config: costs[solver, problem])
    found = known.choose(asked, offers(a=2.0, b=3.0))
    assert found is None or found.solver == "a"


def test_predictions_are_asked_for_once():
    asked = []

    def cost(solver, problem, config):
        asked.append(solver)
        return 1.0

    known = knows({problem: {"a": 1.0, "b": 2.0} for problem in WIDER}, cost)
    known.choose(BASE, offers(a=1.0, b=1.0))
    first = len(asked)
    known.choose(BASE.replace(ih=50, iw=50), offers(a=1.0, b=1.0))
    assert len(asked) == first


# --- who predicts nothing ---------------------------------------------------------------------------------------------


def silent(solver, problem, config):
    return None if solver == "silent" else float(problem.flops)


@pytest.mark.parametrize(("change", "expected"), [({"ic": 80}, "silent"), ({"ic": 128}, "a"), ({"mb": 4}, "a")])
def test_who_predicts_nothing_is_borrowed_from_close_by_only(change, expected):
    known = knows({BASE.replace(**change): {"silent": 1.0, "a": 5.0, "b": 6.0}}, silent)
    assert known.choose(BASE, offers(silent=None, a=1.0, b=1.0), "a").solver == expected


def test_who_predicts_nothing_must_have_won_clearly():
    for ms, best in ((0.7, "silent"), (0.97, "a")):
        known = knows({BASE.replace(ic=80): {"silent": ms, "a": 1.0}}, silent)
        assert known.choose(BASE, offers(silent=None, a=1.0), "a").solver == best


def test_screening_lends_nobody_who_predicts_nothing():
    near = BASE.replace(ic=80)
    looked = dataclasses.replace(record("silent", 0.5, near), count=SURE_SAMPLES - 1)
    known = Neighbours([looked, record("a", 1.0, near)], silent)
    assert known.choose(BASE, offers(silent=None, a=1.0), "a").solver == "a"


def test_where_nobody_predicts_the_nearest_decision_is_borrowed():
    known = knows({BASE.replace(ic=128): {"x": 1.0, "y": 2.0}}, lambda *_: None)
    found = known.choose(BASE, offers(x=None, y=None), "y")
    assert (found.solver, found.predicted_ms) == ("x", pytest.approx(0.5))
    assert known.choose(BASE, offers(y=None), "y").solver == "y"
    assert known.choose(BASE.replace(ic=2048), offers(x=None, y=None), "y") is None


# --- over a database --------------------------------------------------------------------------------------------------


def test_neighbours_are_kept_until_the_database_learns(tmp_path):
    db = PerfDB([tmp_path])
    for each in measured(BASE, a=1.0, b=2.0):
        db.record(each)
    first = neighbours(db, DEVICE)
    assert neighbours(db, DEVICE) is first
    db.record(record("c", 0.5, BASE))
    assert neighbours(db, DEVICE).nearest(BASE).solver == "c"
