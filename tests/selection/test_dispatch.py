"""Selection: order of precedence, fallback and quarantine, policies, the generic epilogue, frozen()."""

from __future__ import annotations

import dataclasses
import inspect
import textwrap

import numpy as np
import pytest

import convdispatch as cd
from convdispatch.device import runtime
from convdispatch.selection import dispatch
from convdispatch.selection.plugins import loader

PLUGIN = """
import numpy as np
from convdispatch.api import KernelPlan, Solver, hookimpl

class Direct(Solver):
    '''A right answer, forward only, that counts its plans.'''
    name = "test.direct"
    plans = 0
    def rejects(self, problem, device):
        if problem.direction != "fwd":
            return f"forward only, got {problem.direction}"
        if problem.layout != "nchw" or problem.ndim != 2:
            return "2-D nchw only"
    def plan(self, context, problem, config):
        type(self).plans += 1
        return KernelPlan(context, __package__, "direct.cl", problem, config, [
            ("direct", (problem.oh * problem.ow, problem.oc, problem.mb), None, "x w y")])

class Breaks(Direct):
    '''Accepts and plans, then fails as it runs.'''
    name = "test.breaks"
    def plan(self, context, problem, config):
        class Plan:
            workspace_size = 0
            def enqueue(self, queue, x, w, y, workspace, wait_for=None):
                raise RuntimeError("engine on fire")
        return Plan()

class Unbuildable(Direct):
    name = "test.unbuildable"
    def plan(self, context, problem, config):
        return KernelPlan(context, __package__, "broken.cl", problem, config, [("direct", (1,), None, "x w y")])

class Random(Direct):
    name = "test.random"
    deterministic = False

@hookimpl
def convdispatch_solvers():
    return [Direct(), Breaks(), Unbuildable(), Random()]
"""
KERNEL = """
kernel void direct(global const REAL *x, global const REAL *w, global REAL *y) {
  const int p = get_global_id(0), oc = get_global_id(1), n = get_global_id(2), oh = p / OW, ow = p % OW;
  ACC sum = 0;
  for (int c = 0; c < ICG; ++c)
    for (int i = 0; i < KH; ++i)
      for (int j = 0; j < KW; ++j) {
        const int h = oh * SH - PH + i * DH, v = ow * SW - PW + j * DW;
        if (h >= 0 && h < IH && v >= 0 && v < IW)
          sum += LOAD(x, ((n * IC + oc / OCG * ICG + c) * IH + h) * IW + v) *
                 LOAD(w, ((oc * ICG + c) * KH + i) * KW + j);
      }
  STORE(y, (n * OC + oc) * OH * OW + p, sum);
}
"""
X = np.arange(2 * 4 * 6 * 6, dtype=np.float32).reshape(2, 4, 6, 6) % 7 - 3
W = np.arange(8 * 4 * 3 * 3, dtype=np.float32).reshape(8, 4, 3, 3) % 5 - 2
PROBLEM = cd.ConvProblem(mb=2, ic=4, ih=6, iw=6, oc=8, kh=3, kw=3)


@pytest.fixture
def solvers(tmp_path, monkeypatch, read_anew):
    """The plugin above as a drop-in; gives its folder's registry file to write."""
    folder = tmp_path / "plugins" / "test"
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text(textwrap.dedent(PLUGIN))
    (folder / "direct.cl").write_text(KERNEL)
    (folder / "broken.cl").write_text("kernel void direct(global float *x) { nonsense; }")
    registry = tmp_path / "registry.yaml"
    registry.write_text("version: 1\n")
    monkeypatch.setenv("CONVDISPATCH_PLUGIN_DIR", str(folder.parent))
    monkeypatch.setenv("CONVDISPATCH_REGISTRY", str(registry))
    monkeypatch.setenv("CONVDISPATCH_PLUGINS", "im2col,test")
    read_anew()
    return registry


def reread(registry, text):
    from convdispatch.selection.plugins import registry as module

    registry.write_text(text)
    module._read.cache_clear()
    dispatch.forget()


def expected():
    from convdispatch.measurement import reference

    return reference.compute(PROBLEM, x=X, w=W).astype(np.float32)


def test_registry_decides_the_order(solvers):
    reread(solvers, "rules:\n  - when: {kh: 3}\n    prefer: [test.direct]\n")
    explanation = cd.explain(PROBLEM)
    assert explanation.chosen == "test.direct"
    assert explanation.source.endswith("registry.yaml:2")
    reread(solvers, "rules:\n  - prefer: ['im2col*']\n")
    assert cd.explain(PROBLEM).chosen.startswith("im2col")


def test_policy_pins_and_restores(solvers):
    with cd.policy(solver="test.direct"):
        assert cd.explain(PROBLEM).chosen == "test.direct"
        np.testing.assert_array_equal(cd.conv(X, W), expected())
        with cd.policy(solver="im2col*"):
            assert cd.explain(PROBLEM).chosen.startswith("im2col")
        assert cd.explain(PROBLEM).chosen == "test.direct"


def test_no_solver_lists_every_reason(solvers):
    with cd.policy(solver="test.direct"), pytest.raises(cd.NoSolver) as caught:
        cd.conv_backward_data(np.zeros((2, 8, 4, 4), np.float32), W, X.shape)
    assert "test.direct: forward only, got bwd_data" in str(caught.value)
    assert caught.value.reasons["im2col"] == "policy(solver='test.direct') does not name it"


def test_a_plan_that_fails_as_it_runs_is_quarantined_and_the_next_runs(solvers):
    reread(solvers, "rules:\n  - prefer: [test.breaks, test.direct]\n")
    with pytest.warns(cd.ConvDispatchWarning, match=r"test\.breaks is set aside for .*engine on fire"):
        np.testing.assert_array_equal(cd.conv(X, W), expected())
    np.testing.assert_array_equal(cd.conv(X, W), expected())  # and no second warning
    verdict = next(v for v in cd.explain(PROBLEM).verdicts if v.solver == "test.breaks")
    assert verdict.status == "quarantined"
    assert cd.explain(PROBLEM).chosen == "test.direct"
    # Another problem is not touched by it.
    assert cd.explain(PROBLEM.replace(mb=1)).chosen == "test.breaks"


def test_fallback_off_raises_with_the_cause(solvers):
    reread(solvers, "rules:\n  - prefer: [test.breaks]\n")
    with cd.policy(fallback=False), pytest.raises(cd.PlanFailed, match="engine on fire") as caught:
        cd.conv(X, W)
    assert isinstance(caught.value.__cause__, RuntimeError)


def test_a_plan_that_does_not_compile_is_quarantined(solvers):
    reread(solvers, "rules:\n  - prefer: [test.unbuildable, test.direct]\n")
    with pytest.warns(cd.ConvDispatchWarning, match="did not compile"):
        np.testing.assert_array_equal(cd.conv(X, W), expected())


def test_a_failed_build_names_the_file_and_keeps_the_log(solvers):
    context = runtime.context()
    solver = loader.plugins().solvers["test.unbuildable"]
    with pytest.raises(cd.BuildFailed) as caught:
        solver.plan(context, PROBLEM, {})
    assert "nonsense" in caught.value.log
    assert "broken.cl" in caught.value.log


def test_deterministic_leaves_out_what_is_not(solvers):
    reread(solvers, "rules:\n  - prefer: [test.random, test.direct]\n")
    assert cd.explain(PROBLEM).chosen == "test.random"
    with cd.policy(deterministic=True):
        assert cd.explain(PROBLEM).chosen == "test.direct"


def test_plans_are_kept(solvers):
    with cd.policy(solver="test.direct"):
        solver = type(loader.plugins().solvers["test.direct"])
        solver.plans = 0
        for _ in range(3):
            cd.conv(X, W)
        cd.conv(X.copy(), W.copy())
        assert solver.plans == 1
        cd.conv(X[:1], W)
        assert solver.plans == 2


@pytest.mark.parametrize("accumulate", [False, True])
def test_what_a_solver_cannot_fuse_is_added(solvers, accumulate):
    from convdispatch.measurement import reference

    rng = np.random.default_rng(3)
    bias = rng.integers(-4, 5, 8).astype(np.float32)
    residual = rng.integers(-4, 5, (2, 8, 4, 4)).astype(np.float32)
    start = rng.integers(-4, 5, (2, 8, 4, 4)).astype(np.float32)
    activation = None if accumulate else "leaky_relu(0.5)"
    problem = PROBLEM.replace(bias=True, residual=True, activation=activation, accumulate=accumulate)
    want = reference.compute(problem, x=X, w=W, bias=bias, residual=residual, initial=start)
    with cd.policy(solver="test.direct"):
        out = start.copy()
        got = cd.conv(X, W, bias, residual=residual, activation=activation, accumulate=accumulate, out=out)
        assert got is out
        np.testing.assert_array_equal(out, want.astype(np.float32))
        assert next(v for v in cd.explain(problem).verdicts if v.status == "chosen").fuses == ()


def test_workspace_limit_refuses_in_words(solvers):
    with cd.policy(workspace_limit=0, solver="im2col*"), pytest.raises(cd.NoSolver, match="0 bytes of workspace"):
        cd.conv(X, W)


def test_frozen_allows_what_was_run_and_refuses_what_was_not(solvers):
    import pyopencl.array as cla

    queue = runtime.queue()
    x, w = cla.to_device(queue, X), cla.to_device(queue, W)
    with cd.policy(solver="test.direct"):
        out = cd.conv(x, w)
        with cd.frozen(), pytest.raises(cd.Frozen, match="plan"):
            cd.conv(x[:1], w)
        with cd.frozen(), pytest.raises(cd.Frozen):
            cd.conv(x, w)  # the result would be allocated
        out[...] = 0
        with cd.frozen():
            cd.conv(x, w, out=out)
    np.testing.assert_array_equal(out.get(), expected())


@pytest.mark.parametrize(
    ("choices", "words"),
    [
        ({"solver": 3}, r"policy\(solver=...\) takes str or NoneType, got 3"),
        ({"max_error": -1.0}, "takes 0 or more"),
        ({"workspace_limit": True}, "takes int or NoneType, got True"),
        ({"deterministic": "yes"}, "takes bool, got 'yes'"),
    ],
)
def test_policy_checks_its_choices(choices, words):
    with pytest.raises(cd.InvalidPolicy, match=words), cd.policy(**choices):
        pass


def test_a_policy_has_the_choices_that_it_names():
    with pytest.raises(TypeError, match="unexpected keyword argument 'solvr'"), cd.policy(solvr="im2col"):
        pass
    assert set(inspect.signature(cd.policy).parameters) == {each.name for each in dataclasses.fields(cd.Policy)}


def test_explanation_as_json(solvers):
    import json

    described = json.loads(json.dumps(cd.explain(PROBLEM).to_dict()))
    assert described["problem"] == str(PROBLEM)
    assert {s["status"] for s in described["solvers"]} <= {"chosen", "accepted", "refused", "quarantined"}
    assert all(s["reason"] for s in described["solvers"] if s["status"] == "refused")
