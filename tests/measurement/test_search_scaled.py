"""``find`` measures each solver's error on normal data and on data of differing scales, and keeps the worse."""

from __future__ import annotations

import numpy as np
import pytest
from paths import SUPPORT

from convdispatch import ConvProblem, explain, find, policy
from convdispatch.api import cpu
from convdispatch.api.errors import ConvDispatchWarning
from convdispatch.device.runtime import device_info
from convdispatch.measurement import reference
from convdispatch.measurement.search.families import Scaled, draw
from convdispatch.measurement.search.trialdata import operands_of
from convdispatch.selection import dispatch
from convdispatch.selection.plugins import loader

PROBLEM = ConvProblem.parse("fwd_f32_mb2ic16ih9iw10oc12kh3kw3ph1pw1")


@pytest.fixture
def records(tmp_path, monkeypatch):
    from convdispatch.selection.records.perfdb import perfdb

    db = perfdb()
    before = db.folders
    db.folders = {"user": tmp_path / "records"}
    db.refresh()
    yield db
    db.folders = before
    db.refresh()
    dispatch.forget()


@pytest.fixture
def one_scale(monkeypatch, read_anew):
    monkeypatch.setenv("CONVDISPATCH_PLUGIN_DIR", str(SUPPORT / "one_scale_plugin"))
    return loader.reload()


def test_one_scale_for_a_tensor_is_wrong_under_the_default(one_scale, records, device):
    with policy(solver="one_scale*"), pytest.warns(ConvDispatchWarning, match="one_scale.halves is set aside"):
        (result,) = [r for r in find(PROBLEM, device) if r.solver == "one_scale.halves"]
    assert result.status == "wrong"
    assert "on data of differing scales" in result.reason


def test_the_worse_error_is_kept_and_both_are_told(records, device):
    with policy(solver="im2col"):
        (result,) = [r for r in find(PROBLEM, device) if r.solver == "im2col" and r.default]
    assert result.error == max(result.errors.values())
    assert set(result.errors) == {"normal", "scaled"}
    assert 0 < result.errors["scaled"] < 1e-5


def test_max_error_obeys_the_error_on_scaled_data(records, device, monkeypatch):
    monkeypatch.setattr(Scaled, "error", lambda self, problem, got: 5e-6)
    # What matrix registers compute has errors of its own that are nearly as large.
    monkeypatch.setattr(cpu, "lacking", lambda *_: "left out of this test")
    winner = find(PROBLEM, device, budget_ms=2000).winner
    assert winner.error == 5e-6
    assert winner.errors["normal"] < 3e-6
    with policy(max_error=2e-6):
        (verdict,) = [v for v in explain(PROBLEM, device).verdicts if v.solver == winner.solver]
        assert verdict.reason == "measured error 5e-06, policy(max_error=2e-06)"
    with policy(max_error=2e-6, solver="im2col"):
        reasons = {r.reason for r in find(PROBLEM, device) if r.solver == "im2col"}
        assert reasons == {"relative error 5e-06, the policy admits 2e-06"}
    with policy(max_error=6e-6, solver="im2col"):
        assert find(PROBLEM, device).winner is not None


@pytest.mark.parametrize(
    "text",
    [
        "fwd_f32_g2mb2ic8ih9iw7oc6kh3kw2sh2sw1ph1pw0+bias+residual+relu",
        "bwd_data_f32_nhwc_mb2ic5ih9iw7oc6kh3kw2sh2sw1ph1pw0+accumulate",
        "bwd_weights_f32_mb3ic5ih9iw7oc6kh1kw1+accumulate",
        "fwd_f16_mb2ic8ih9iw7oc6kh3kw3",
        "fwd_f32_mb0ic5ih9iw7oc6kh3kw3",
    ],
)
def test_the_sampled_error_is_that_of_the_whole(text, device):
    """A right result errs by rounding alone; one plane off by a percent shows, whatever its scale."""
    problem = ConvProblem.parse(text)
    scaled = Scaled(problem)
    right = reference.compute(problem, **operands_of(problem, draw("scaled", problem))).ravel()
    assert scaled.error(problem, right[scaled.at.ravel()] if right.size else right) < 1e-6
    if right.size:
        off = right.copy()
        off[scaled.at[1]] *= 1.01
        assert 2e-3 < scaled.error(problem, off[scaled.at.ravel()]) < 0.1
        off[scaled.at[0, 0]] = np.nan
        assert scaled.error(problem, off[scaled.at.ravel()]) == float("inf")


def test_memory_that_is_short_is_used_in_turns(device, monkeypatch):
    """Scaled data take the first set's place where there is no room beside it; the set is as it was afterwards."""
    import pyopencl as cl

    from convdispatch.device import runtime
    from convdispatch.measurement.search.trial import Harness

    queue = cl.CommandQueue(runtime.context(device))
    (solver,) = [s for name, s in loader.plugins().solvers.items() if name == "im2col"]
    config = next(iter(solver.configs(PROBLEM, device_info(device))))
    prepared = dispatch.make(solver, config, PROBLEM, queue.context)
    roomy = Harness(PROBLEM, queue)
    short = Harness(PROBLEM, queue)
    short._room_for_scaled = False
    one, other = roomy.verify(prepared), short.verify(prepared)
    assert (one.normal, one.scaled) == (other.normal, other.scaled)
    assert not short._scaled_set
    assert short.verify(prepared).normal == one.normal
