"""fit-cost: constants from records that were made from known ones, what the command prints, and that the code runs."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from command_line import run_cli
from records import record

from convdispatch.api.errors import InvalidArgument
from convdispatch.api.problem import ConvProblem
from convdispatch.api.rates import DeviceRates
from convdispatch.device import runtime
from convdispatch.device.rates import rates
from convdispatch.measurement.fitting import Sample, fit, terms
from convdispatch.selection.records import perfdb
from convdispatch.selection.records.record import device_key

RATES = DeviceRates(flops=1e11, bandwidth=1e10, launch=1e-5)
PROBLEMS = [
    ConvProblem.parse(text)
    for text in (
        "mb1ic64ih56oc64kh3",
        "mb1ic256ih14oc256kh1",
        "mb1ic4ih224oc4kh1",
        "mb1ic1ih5oc1kh1",
        "mb8ic8ih99oc8kh1",
    )
]


def samples(constants, noise=0.0, predicted=None):
    random = np.random.default_rng(0)
    found = []
    for problem in PROBLEMS:
        seconds = float(np.dot(constants, terms(problem, RATES))) * np.exp(noise * random.standard_normal())
        found.append(Sample(problem, seconds * 1e3, predicted))
    return found


@pytest.mark.parametrize("constants", [(2.0, 1.5, 3.0), (2.0, 0.0, 3.0), (0.0, 1.5, 0.0), (0.5, 0.0, 0.0)])
def test_known_constants_are_found_again(constants):
    found = fit(samples(constants), RATES)
    assert (found.flops, found.bytes, found.launches) == pytest.approx(constants, abs=1e-6)
    assert found.off == pytest.approx(1.0)
    assert found.off_today is None


def test_noise_moves_them_little_and_never_below_zero():
    found = fit(samples((2.0, 0.01, 3.0), noise=0.1), RATES)
    assert found.flops == pytest.approx(2.0, rel=0.3)
    assert found.launches == pytest.approx(3.0, rel=0.3)
    assert found.bytes >= 0
    assert 1.0 < found.off < 1.2


def test_a_constant_that_would_be_negative_is_left_out():
    found = fit(samples((2.0, -0.05, 3.0)), RATES)
    assert found.bytes == 0.0
    assert min(found.flops, found.launches) > 0
    assert "bandwidth" not in found.code()


def test_today_s_cost_is_judged_alike():
    today = [replace(sample, predicted_ms=2 * sample.measured_ms) for sample in samples((1.0, 1.0, 1.0))]
    today[0] = replace(today[0], predicted_ms=today[0].measured_ms / 2)
    assert fit(today, RATES).off_today == pytest.approx(2.0)


def test_too_few_problems():
    with pytest.raises(InvalidArgument, match="4 measured problems at least are needed to fit a cost, there are 3"):
        fit(samples((1.0, 1.0, 1.0))[:3], RATES)


def test_the_code_is_the_model():
    found = fit(samples((2.0, 1.5, 3.0)), RATES)
    scope = {"rates": lambda device: RATES}
    exec(found.code(), scope)
    for problem, ms in zip(PROBLEMS, found.fitted_ms):
        assert scope["cost"](None, problem, None, {}) * 1e3 == pytest.approx(ms, rel=0.01)


def test_the_command(device, tmp_path, monkeypatch):
    """Benchmarks of the first configuration count; screening, other configurations and other solvers do not."""
    monkeypatch.setenv("CONVDISPATCH_DB", str(tmp_path / "db"))
    perfdb.perfdb.cache_clear()
    info = runtime.device_info(device)
    key = device_key(info)
    known = rates(info)

    def put(problem, ms, solver="im2col", **more):
        config = {"method": "lower"}
        given = {"config": config, "default": True, "benchmarked": True} | more
        perfdb.perfdb().record(record(solver, ms, problem, device=key, **given))

    try:
        for problem in PROBLEMS:
            put(problem, 1e3 * float(np.dot((2.0, 1.5, 3.0), terms(problem, known))))
            put(problem.replace(mb=3), 99.0, benchmarked=False)
            put(problem.replace(mb=3), 99.0, default=False, config={"method": "other"})
            put(problem.replace(mb=3), 99.0, solver="other")
        monkeypatch.setattr(
            "convdispatch_im2col.Im2col.cost",
            lambda self, problem, device, config: 0.001,
        )
        arguments = ["fit-cost", "im2col", "--device", runtime.address(device)]
        said = json.loads(run_cli(*arguments, "--json").output)
        text = run_cli(*arguments).output
        few = run_cli("fit-cost", "im2col+nothing")
    finally:
        monkeypatch.undo()
        perfdb.perfdb.cache_clear()
    assert len(said["problems"]) == len(PROBLEMS)
    assert (said["flops"], said["bytes"], said["launches"]) == pytest.approx((2.0, 1.5, 3.0), rel=1e-3)
    assert {row["predicted_ms"] for row in said["problems"]} == {1.0}
    assert "def cost(self, problem, device, config):" in text
    assert "today's cost is off by a factor of" in text
    assert "the fitted one by 1.00" in text
    assert "convdispatch calibrate first" in text
    assert (few.exit_code, "no solver is named" in few.output) == (1, True)
