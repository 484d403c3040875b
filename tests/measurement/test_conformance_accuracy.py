"""The level accuracy: families of data, plane by plane, show a plugin whose numbers only normal data are right with."""

from __future__ import annotations

import pytest
from paths import SUPPORT

from convdispatch.measurement.conformance import levels
from convdispatch.measurement.conformance.verify import verify
from convdispatch.measurement.search.families import FAMILIES, families

DROP_IN = SUPPORT / "one_scale_plugin"


def test_one_scale_for_a_tensor_is_caught_and_told_which_family(drop_in, device):
    """Float16 halves under one scale: normal data pass all other checks, what differs in scale does not."""
    assert verify("one_scale", "core", device, case="3x3").verdict() == "passed"
    report = verify("one_scale", "accuracy", device, case="3x3.fwd.*")
    (outcome,) = report.outcomes
    assert (outcome.status, outcome.check) == ("failed", "families")
    for family in ("summed_tens", "summed_twos", "outputs", "images", "scaled"):
        assert f"{family} (" in outcome.reason
        assert outcome.errors[family] > 2e-6
    assert outcome.errors["summed_tens"] > 5e-5
    assert outcome.errors["normal"] < 1e-6
    assert "errs by" in outcome.reason
    assert "normal data: " in outcome.reason
    assert "positive (" not in outcome.reason
    assert "--level accuracy --solver 'one_scale.halves' --case '3x3.fwd.accuracy'" in outcome.rerun("one_scale")


def test_the_report_has_the_families(drop_in, device):
    report = verify("one_scale", "accuracy", device, case="1x1.fwd.*")
    assert {family for family in FAMILIES if family in report.outcomes[0].errors} >= {"normal", "summed_tens", "scaled"}


PORTABLE = ["im2col", "implicitgemm", "winograd", "fft"]


@pytest.mark.parametrize("plugin", PORTABLE)
def test_the_portable_plugins_hold_on_any_data(plugin, device, full):
    """The whole level: `convdispatch verify NAME --level accuracy`. Unless ``full`` each plugin leaves out one case."""
    patterns = ["3x3.fwd.accuracy", "3x3.bwd_weights.accuracy", "5x5.ieee.bwd_data.accuracy"]
    turn = PORTABLE.index(plugin)
    for pattern in patterns if full else [patterns[turn % 3], patterns[turn % 3 - 1]]:
        report = verify(plugin, "accuracy", device, case=pattern)
        assert report.of(status="failed") == [], report.of(status="failed")
        for outcome in report.of(status="passed"):
            direction = outcome.problem.partition("_f32")[0]
            assert set(outcome.errors) == set(families(direction))


def test_accuracy_is_a_level_of_its_own():
    cases = levels.cases("accuracy")
    assert {case.level for case in cases} == {"accuracy"}
    assert not {case.name for case in cases} & {case.name for case in levels.cases("full")}
    assert {case.problem.direction for case in cases} == {"fwd", "bwd_data", "bwd_weights"}
    assert {case.problem.math for case in cases} == {"float32", "ieee", "tf32", "fast"}
    kernels = {(case.problem.kh, case.problem.kw, case.problem.sh) for case in cases if case.problem.ndim == 2}
    assert {(3, 3, 1), (1, 1, 1), (5, 5, 1), (3, 3, 2), (7, 7, 2)} <= kernels
