"""An infinity or NaN reaches what reads it, and nothing else unless the solver says that it spreads them."""

from __future__ import annotations

import dataclasses
import functools
import itertools

import convdispatch_implicitgemm
import numpy as np
import pytest
from plans import SMALL, declared

import convdispatch as cd
from convdispatch import ConvProblem, constant, conv, nn, policy
from convdispatch.api import Solver
from convdispatch.api.policy import Policy
from convdispatch.device import runtime
from convdispatch.inference import build
from convdispatch.measurement import reference
from convdispatch.measurement.conformance.checks import Examination
from convdispatch.measurement.search.trialdata import operands_of, random_operands
from convdispatch.selection.choice.ranking import refusal
from convdispatch.selection.derivation.solver import Derived
from convdispatch.selection.plugins.loader import plugins
from convdispatch.selection.records.perfdb import scope_of

FORWARD = [
    "ic1oc1iw100kw3",  # sixteen places stand as channels
    "mb2ic3ih9iw40oc2kh3ph1",
    "nhwc_mb2ic5ih9iw40oc3kh3kw5ph1pw2",
    "mb1ic16ih9iw20oc16kh3ph1",
    "nhwc_mb1ic32ih14iw15oc33kh3ph1sh2",
    "mb1ic3ih20iw21oc20kh7ph3sh2",
    "nhwc_mb2ic33ih6iw7oc40kh1",
    "g4mb1ic32ih7iw18oc40kh3ph1dh2dw1",
    "g16mb2ic16ih9iw37oc16kh3ph1",
    "nhwc_g16mb2ic16ih9iw37oc16kh3ph1sh2",
    "mb1ic4id4ih5iw18oc6kd3kh3kw3pd1ph1",
    "mb1ic64ih1iw40oc48kh1kw3ph0pw2pw_r0",  # causal
    "f64_mb1ic4ih6iw20oc2kh3ph1",
    "bf16_nhwc_mb1ic32ih6iw18oc32kh3ph1",
]
GRADIENTS = [
    "mb2ic3ih9iw20oc5kh3ph1", "mb1ic16ih9iw20oc16kh3ph1sh2", "nhwc_mb1ic16ih9iw20oc24kh3ph1", "mb1ic8ih8iw9oc8kh1sh2",
    "g16mb2ic16ih9iw20oc16kh3ph1", "nhwc_g16mb2ic16ih9iw20oc16kh3ph1", "ic1oc1iw100kw3",
    "mb1ic4id3ih5iw6oc6kd3kh3kw3pd1ph1", "bf16_mb1ic16ih6iw18oc16kh3ph1",
]  # fmt: skip
PROBLEMS = FORWARD + [f"{kind}_{text}" for kind in ("bwd_data", "bwd_weights") for text in GRADIENTS]


def check(queue, problem: ConvProblem, solvers, device) -> int:
    """Infinities and NaN in the tensor that is convolved, by solvers that say to spread none. The plans tried."""
    name = "y" if problem.direction == "bwd_data" else "x"
    tried = 0
    for value, place in ((np.nan, 0.5), (np.inf, 0.03), (-np.inf, 1.0), (np.nan, 0.004)):
        operands = random_operands(problem, 1)
        operands[name] = operands[name].copy()
        operands[name].reshape(-1)[int(place * (operands[name].size - 1))] = value
        with np.errstate(all="ignore"):
            reads = ~np.isfinite(reference.compute(problem, **operands_of(problem, operands)))
        for packed in (False, True)[: 1 if problem.direction == "bwd_weights" else 2]:
            for solver in solvers:
                math = "reproducible" if solver.reproducible else problem.math
                mine = dataclasses.replace(problem, constant_weights=packed, math=math)
                if solver.spreads_nonfinite or solver.rejects(mine, device) is not None:
                    continue
                for config in list(solver.configs(mine, device))[:4]:
                    got = Examination(solver, mine, config, None, queue).compute(operands)
                    np.testing.assert_array_equal(
                        ~np.isfinite(got.astype(np.float64)), reads, err_msg=f"{solver.name} {mine} {config} {value}"
                    )
                    tried += 1
    return tried


@pytest.mark.parametrize("text", PROBLEMS)
def test_only_what_reads_it_is_reached(queue, text):
    """By every solver that does not say otherwise, in its first configurations, from plain and from packed weights."""
    assert check(queue, ConvProblem.parse(text), plugins().solvers.values(), runtime.device_info(queue.device))


@pytest.mark.usefixtures("item_by_item")
@pytest.mark.parametrize("text", [text for text in PROBLEMS if not text.startswith("f64") and "bf16" not in text][::2])
def test_of_the_gpus_solvers_too(queue, text):
    solvers = declared(convdispatch_implicitgemm, SMALL).values()
    assert check(queue, ConvProblem.parse(text), solvers, SMALL)


def test_who_says_that_it_spreads():
    """Transforms, libraries, and three weights' gradients; what is derived of a solver is as the solver."""
    for name, solver in plugins().solvers.items():
        plugin = name.partition(".")[0]
        spreads = plugin in ("winograd", "fft", "cudnn", "onednn") or name in (
            "nvidia.winograd", "implicitgemm.tiled_depthwise_sums", "amx.weights", "amx.vector_weights",
        )  # fmt: skip
        assert solver.spreads_nonfinite is spreads, name
        assert Derived(solver, ("flat",)).spreads_nonfinite is spreads


PADDED = [
    "mb1ic1ih4iw4oc1kh3ph1", "mb1ic5ih4iw4oc1kh3ph1", "mb1ic64ih4iw4oc64kh3ph1", "mb2ic20ih9iw9oc20kh5ph2sh2",
    "nhwc_mb2ic20ih9iw9oc20kh3ph2dh2", "g4mb1ic32ih7iw7oc40kh3ph1", "nhwc_mb1ic3ih8iw8oc2kh3ph1",
    "mb1ic4id3ih4iw5oc6kd3kh3kw3pd1ph1", "mb1ic16iw20oc16kw3pw0pw_r2", "mb1ic200ih7iw7oc24kh7ph3",
    "f64_mb1ic4ih6iw20oc2kh3ph1", "bf16_mb1ic32ih6iw6oc40kh3ph1",
]  # fmt: skip


@pytest.mark.parametrize("text", PADDED)
@pytest.mark.parametrize("packed", [False, True])
def test_padding_times_a_weight_that_is_not_finite_is_nan(queue, text, packed):
    """In ``implicitgemm.direct``, which leaves out taps that read padding alone: not of such weights."""
    problem = dataclasses.replace(ConvProblem.parse(text), constant_weights=packed)
    solver, device = plugins().solvers["implicitgemm.direct"], runtime.device_info(queue.device)
    operands = random_operands(problem, 1)
    operands["x"] = np.abs(operands["x"]) + operands["x"].dtype.type(1)
    first = (slice(None), *[0] * problem.ndim, 0) if problem.layout == "nhwc" else (slice(None), 0, *[0] * problem.ndim)
    last = tuple(-1 if each == 0 else each for each in first)
    for where in (first, last):
        w = operands["w"].copy()
        w[where] = -np.inf
        beside = np.zeros_like(w)
        beside[where] = 1
        inside = reference.compute(problem, **operands_of(problem, {**operands, "w": beside})) != 0
        for config in list(solver.configs(problem, device))[:3]:
            tried = Examination(solver, problem, config, None, queue)
            got = tried.compute({**operands, "w": w}).astype(np.float64)
            np.testing.assert_array_equal(got == -np.inf, inside, err_msg=str(config))
            np.testing.assert_array_equal(np.isnan(got), ~inside, err_msg=str(config))
            assert np.isfinite(tried.compute(operands).astype(np.float64)).all()


@pytest.mark.parametrize("math", ["float32", "ieee"])
def test_a_causal_layer_sees_no_nan_before_its_time(math):
    """But by a transform, which ``policy(solver=)`` leaves out."""
    for ic, oc, n in ((1, 1, 12), (16, 16, 40), (80, 96, 300)):
        x = np.random.default_rng(0).standard_normal((4, ic, n)).astype(np.float32)
        x[3, :, -4:] = np.nan
        w = np.random.default_rng(1).standard_normal((oc, ic, 3)).astype(np.float32)
        for weights in (w, constant(w)):
            with policy(solver="implicitgemm.*"):
                y = conv(x, weights, padding=[(2, 0)], math=math)
            assert np.isnan(y[3, :, -4:]).all()
            assert np.isnan(y).sum() == 4 * oc


def test_a_layer_of_one_channel_spreads_nothing():
    x, w = np.ones((1, 1, 100), np.float32), np.ones((1, 1, 3), np.float32)
    x[0, 0, 50] = np.nan
    for weights in (w, constant(w)):
        for math in ("float32", "ieee"):
            assert np.flatnonzero(np.isnan(cd.conv(x, weights, math=math)[0, 0])).tolist() == [48, 49, 50]


# --- policy(strict_nan=True) -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("declared", "reason"),
    [
        (None, "policy(strict_nan=True), and this solver does not say spreads_nonfinite = False"),
        (True, "policy(strict_nan=True), and this solver spreads an infinity or NaN"),
        (False, None),
    ],
)
def test_a_solver_that_says_nothing_is_no_candidate_under_the_policy(declared, reason):
    """The safe answer of a third party's solver is that it may spread."""
    assert Solver.spreads_nonfinite is None
    problem = ConvProblem.parse(FORWARD[3])
    solver = type("Says", (type(plugins().solvers["im2col"]),), {})(
        "convdispatch_im2col.solver", "Im2col", name="im2col", spreads_nonfinite=declared
    )
    refused = refusal(solver, problem, SMALL, Policy(strict_nan=True))
    assert refused == (None if reason is None else ("refused", reason))
    assert refusal(solver, problem, SMALL, Policy()) is None


@pytest.mark.parametrize("variable", [None, "1"])
def test_a_causal_layer_is_causal_under_the_policy(monkeypatch, variable):
    """By whatever solver is chosen, from calls, constants and nets; by the environment as by the policy."""
    if variable is None:
        strict = functools.partial(policy, strict_nan=True)
    else:
        monkeypatch.setenv("CONVDISPATCH_STRICT_NAN", variable)
        strict = policy
    for ic, oc, n in ((1, 1, 12), (16, 16, 40), (80, 96, 300)):
        x = np.random.default_rng(0).standard_normal((4, ic, n)).astype(np.float32)
        x[3, :, -4:] = np.nan
        w = np.random.default_rng(1).standard_normal((oc, ic, 3)).astype(np.float32)
        with strict():
            for weights, math in itertools.product((w, constant(w)), ("float32", "ieee")):
                assert np.isnan(conv(x, weights, padding=[(2, 0)], math=math)).sum() == 4 * oc


def test_a_net_that_was_built_under_the_policy_keeps_it():
    x = np.ones((2, 24, 30, 30), np.float32)
    x[1, 7, 14, 15] = np.inf
    net = nn.Sequential(nn.Conv2d(24, 32, 3), nn.Conv2d(32, 32, 3), nn.MaxPool2d(2), nn.AvgPool2d(2))
    with policy(strict_nan=True):
        built = build(net, x.shape)
        layers = build(nn.Sequential(*list(net)[:2]), x.shape)
    # Two layers of 3x3 bring a pixel to 5x5, which begin at (10, 11); pools of 2 to 3x3 and to 2x2.
    assert (~np.isfinite(np.asarray(layers(x)))).sum() == 25 * 32
    assert (~np.isfinite(np.asarray(built(x)))).sum() == 4 * 32


def test_off_by_a_policy_where_the_environment_says_on(monkeypatch):
    monkeypatch.setenv("CONVDISPATCH_STRICT_NAN", "1")
    spreads = {name for name, solver in plugins().solvers.items() if solver.spreads_nonfinite}
    problem = ConvProblem.parse("mb1ic64ih28oc64kh3ph1")
    assert not spreads & {v.solver for v in cd.explain(problem).verdicts if v.status in ("chosen", "accepted")}
    with policy(strict_nan=False):
        assert spreads & {v.solver for v in cd.explain(problem).verdicts if v.status in ("chosen", "accepted")}


def test_the_policy_in_other_words_is_the_default():
    """What another thread is told of a call shares plans and records with the call itself."""
    assert Policy(**Policy().promises).selection == Policy()
    assert scope_of(Policy(**Policy().promises)) is None
    strict = Policy(strict_nan=True)
    assert Policy(**strict.promises).selection == strict.selection
    assert scope_of(strict) is not None
