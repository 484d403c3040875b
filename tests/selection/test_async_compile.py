"""The tier "ready": a general plan computes until the chosen one is compiled; and the general plan on its own."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest
import small_net
from plans import check_plan

from convdispatch import conv, frozen, inference, policy
from convdispatch.api import ConvProblem, Frozen, InvalidPolicy
from convdispatch.device import runtime
from convdispatch.measurement import reference
from convdispatch.selection import async_compile, dispatch
from convdispatch.selection.async_compile import GenericSolver

X, W = small_net.normal(2, 6, 9, 8), small_net.normal(4, 3, 3, 2, seed=1)
PROBLEM = ConvProblem.parse("g2mb2ic6ih9iw8oc4kh3kw2")


@pytest.fixture(autouse=True)
def anew():
    dispatch.forget()
    yield
    dispatch.forget()


@pytest.fixture
def at_once(monkeypatch):
    """Nobody waits for the chosen plan."""
    monkeypatch.setattr(async_compile, "WAIT_S", 0.0)


@pytest.fixture
def gate(monkeypatch, at_once):
    """Chosen plans are made when the gate opens."""
    opened, real = threading.Event(), dispatch._first_that_plans

    def late(*given):
        assert opened.wait(60)
        return real(*given)

    monkeypatch.setattr(dispatch, "_first_that_plans", late)
    yield opened
    opened.set()


def solver(queue):
    return dispatch.prepare(PROBLEM, queue.context).solver.name


def test_the_ready_plan_computes_until_the_other_is_there(queue, gate):
    expected = reference.compute(PROBLEM, x=X, w=W)
    with policy(tier="ready"):
        first = conv(X, W, groups=2, queue=queue)
        assert solver(queue) == "general"
        gate.set()
        until = time.monotonic() + 60
        while solver(queue) == "general" and time.monotonic() < until:
            time.sleep(0.01)
        assert solver(queue) != "general"
        second = conv(X, W, groups=2, queue=queue)
    for found in (first, second):
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
    assert not async_compile._under_way


def test_a_plan_that_is_quickly_there_is_waited_for(queue, monkeypatch):
    monkeypatch.setattr(async_compile, "WAIT_S", 60.0)
    with policy(tier="ready"):
        conv(X, W, groups=2, queue=queue)
        assert solver(queue) != "general"


@pytest.mark.parametrize("choices", [{"deterministic": True}, {"solver": "im2col"}], ids=["deterministic", "pinned"])
def test_who_asks_for_more_waits(queue, gate, choices):
    threading.Timer(0.2, gate.set).start()
    with policy(tier="ready", **choices):
        conv(X, W, groups=2, queue=queue)
        assert solver(queue) != "general"


def test_frozen_refuses_as_ever(queue):
    with policy(tier="ready"), frozen(), pytest.raises(Frozen):
        conv(X, W, groups=2, out=np.empty((2, 4, 7, 7), np.float32), queue=queue)


def test_a_net_that_is_recorded_waits_for_its_plans(queue):
    with policy(tier="ready"):
        built = inference.build(small_net.net(queue), (1, 3, 13, 13), queue=queue, layout="nchw")
    assert "general" not in {layer.solver for layer in built.layers}


def test_what_would_take_long_waits(queue, gate, monkeypatch):
    monkeypatch.setattr(async_compile, "LONGEST_S", 0.0)
    threading.Timer(0.2, gate.set).start()
    with policy(tier="ready"):
        conv(X, W, groups=2, queue=queue)
        assert solver(queue) != "general"


def test_a_plan_that_fails_reaches_the_caller(queue, monkeypatch):
    def fails(*given):
        raise RuntimeError("no plan")

    monkeypatch.setattr(dispatch, "_first_that_plans", fails)
    monkeypatch.setattr(async_compile, "WAIT_S", 60.0)
    with policy(tier="ready"), pytest.raises(RuntimeError, match="no plan"):
        conv(X, W, groups=2, queue=queue)


@pytest.mark.parametrize("wrong", [{"tier": "later"}, {"max_error": -1}])
def test_what_a_policy_takes(wrong):
    with pytest.raises(InvalidPolicy), policy(**wrong):
        pass


@pytest.mark.parametrize("gone", ["patience", "tune"])
def test_a_choice_that_is_gone_is_no_argument(gone):
    with pytest.raises(TypeError, match=gone):
        policy(**{gone: 1.0})


# --- the general plan ------------------------------------------------------------------------------------------------

SHAPES = [
    "mb1ic1ih1oc1kh1",
    "mb2ic3ih7iw5oc4kh3kw2ph1",
    "nhwc_mb2ic3ih7iw5oc4kh3kw2ph1",
    "g2mb2ic6ih8iw9oc4kh3kw3sh2sw3ph1pw2",
    "nhwc_g3mb1ic6ih8iw9oc9kh2kw3dh2dw3ph2",
    "mb2ic3iw11oc5kw4sw3pw2",
    "mb1ic2id5ih4iw3oc3kd2kh3kw1pd1ph1sd2",
    "nhwc_mb1ic2id5ih4iw3oc3kd2kh3kw1pd1ph1sd2",
    "f64_mb1ic3ih6oc2kh3ph1",
    "f16_mb1ic3ih6oc2kh3ph1",
    "bf16_mb1ic3ih6oc2kh3ph1",
    "mb1ic3ih6oc2kh3ph1ph_r2",
    "mb1ic3ih6oc2kh3ph1+bias+residual+relu",
    "nhwc_mb1ic3ih6oc2kh3ph1+bias+leaky_relu(0.25)",
    "mb1ic3ih6oc2kh3ph1+bias+accumulate",
]


@pytest.mark.parametrize("direction", ["fwd", "bwd_data", "bwd_weights"])
@pytest.mark.parametrize("text", SHAPES)
def test_every_problem_is_right(queue, text, direction):
    problem = ConvProblem.parse(text)
    if direction == "bwd_weights" and (problem.bias or problem.residual):
        pytest.skip("a weights' gradient has no such epilogue")
    problem = problem.replace(direction=direction)
    general, info = GenericSolver(), runtime.device_info(queue.device)
    if general.rejects(problem, info):
        pytest.skip(general.rejects(problem, info))
    check_plan(queue, problem, general.plan(queue.context, problem, {}), f"general {problem}")
