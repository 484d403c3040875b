"""Borrowed decisions: what counts as near, what may be borrowed, and what the rule has cost."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from records import DEVICE, record

from convdispatch.api.problem import ConvProblem
from convdispatch.neighbours import Neighbours, Regret, distance, neighbours
from convdispatch.perfdb import PerfDB

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


def test_a_choice_is_scaled_by_what_its_solver_predicts():
    """F(6) won at the neighbour, whose sizes its tile fits; the solvers' own predictions say that it does not here."""
    near = BASE.replace(ih=60, iw=60)
    waste = {("tile6", near): 1.0, ("tile6", BASE): 3.0, ("tile4", near): 1.0, ("tile4", BASE): 1.0}
    records = measured(near, tile6=1.0, tile4=1.2)
    assert Neighbours(records).nearest(BASE).solver == "tile6"
    found = Neighbours(records, lambda solver, problem, config: waste[solver, problem]).nearest(BASE)
    assert (found.solver, found.predicted_ms) == ("tile4", pytest.approx(1.2))


def test_only_what_is_accepted_is_borrowed(known):
    assert known.nearest(BASE, lambda solver, config: solver != "winograd").solver == "gemm"
    assert known.nearest(BASE, lambda solver, config: solver == "direct").solver == "direct"
    assert known.nearest(BASE, lambda *_: False) is None


def test_nothing_is_borrowed_from_another_kind(known):
    assert known.nearest(BASE.replace(dtype="float16")) is None
    assert Neighbours([]).nearest(BASE) is None


def test_a_measured_problem_is_its_own_neighbour(known):
    found = known.nearest(BASE.replace(ic=128))
    assert (found.distance, found.predicted_ms) == (0, 1.0)


def test_a_problem_of_another_version_is_passed_over():
    assert len(Neighbours([record("a", 1.0, "fwd_f4_mb1ic1iw1oc1kw1")])) == 0


# --- regret -----------------------------------------------------------------------------------------------------------


def test_regret_is_left_one_out():
    """Two alike problems agree (regret 1), a third of other taste gets their decision and pays 3 over 2."""
    chain = [BASE.replace(ic=ic) for ic in (64, 96, 512)]
    known = Neighbours(
        [
            *measured(chain[0], winograd=1.0, gemm=2.0),
            *measured(chain[1], winograd=1.5, gemm=3.0),
            *measured(chain[2], winograd=3.0, gemm=2.0),
        ]
    )
    regret = known.regret()
    assert (regret.count, regret.worst, regret.worst_problem) == (3, 1.5, str(chain[2]))
    assert regret.geomean == pytest.approx(1.5 ** (1 / 3))
    assert "1.14, worst 1.50, on 3" in str(known.nearest(BASE))


def test_what_was_not_measured_here_is_not_judged_here():
    known = Neighbours(
        [
            *measured(BASE, a=1.0, b=4.0),
            *measured(BASE.replace(ic=128), c=0.1, b=1.0),
            *measured(BASE.replace(mb=64), c=1),
        ]
    )
    regret = known.regret()  # BASE would be given c, then b; the third has one choice only
    assert (regret.count, regret.worst) == (2, 10.0)


def test_a_configuration_that_is_not_offered_here_is_judged_by_the_default():
    other = BASE.replace(ic=128)
    known = Neighbours(
        [
            record("gemm", 1.0, BASE, config={"tile": 64}),
            record("gemm", 2.0, BASE, config={"tile": 8}, default=True),
            record("gemm", 1.0, other, config={"tile": 128}),
            record("gemm", 3.0, other, config={"tile": 8}, default=True),
        ]
    )
    assert (known.regret().count, known.regret().worst) == (2, 3.0)


def test_regret_of_too_few():
    assert Neighbours([]).regret() == Neighbours(measured(BASE, a=1.0, b=2.0)).regret() == Regret()
    assert "unknown" in str(Regret())


@given(st.dictionaries(PROBLEMS, st.dictionaries(st.sampled_from("abc"), st.floats(0.01, 100)), max_size=8))
def test_regret_is_never_below_one(table):
    regret = Neighbours([r for problem, times in table.items() for r in measured(problem, **times)]).regret()
    assert 1 <= regret.geomean <= regret.worst * (1 + 1e-12)


# --- over a database --------------------------------------------------------------------------------------------------


def test_neighbours_are_kept_until_the_database_learns(tmp_path):
    db = PerfDB([tmp_path])
    for each in measured(BASE, a=1.0, b=2.0):
        db.record(each)
    first = neighbours(db, DEVICE)
    assert neighbours(db, DEVICE) is first
    db.record(record("c", 0.5, BASE))
    assert neighbours(db, DEVICE).nearest(BASE).solver == "c"
