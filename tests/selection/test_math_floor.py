"""``math`` is the least accuracy: solvers that are more accurate run under it, where they are predicted faster."""

from __future__ import annotations

import pytest
from plans import LARGE
from test_choices import PROBLEM

import convdispatch as cd
from convdispatch.api import ConvDispatchWarning
from convdispatch.device import runtime
from convdispatch.device.cache import artifact_store, keys
from convdispatch.selection import dispatch, planpack, solver_query
from convdispatch.selection.choice.ranking import rank
from convdispatch.selection.explanation import explain
from convdispatch.selection.planpack import decisions
from convdispatch.selection.plugins import loader
from convdispatch.selection.solver_query import query

PLUGIN = """
from types import SimpleNamespace
from convdispatch.api import Solver, hookimpl
planned, asked = [], []
class Made(Solver):
    def __init__(self, name, **seconds): self.name, self.seconds = name, seconds
    def rejects(self, problem, device):
        return None if problem.math in self.seconds else f"{list(self.seconds)} only, got {problem.math}"
    def configs(self, problem, device):
        asked.append(self.name)
        return [{"of": problem.math}, {"of": "all"}]
    def cost(self, problem, device, config): return self.seconds[problem.math]
    def plan(self, context, problem, config):
        planned.append((self.name, problem.math, config["of"]))
        return SimpleNamespace(workspace_size=0, enqueue=lambda *a, **k: None)
@hookimpl
def convdispatch_solvers(): return [
    Made("made.exact", ieee=4e-5), Made("made.plain", float32=1e-5), Made("made.coarse", tf32=3e-5),
    Made("made.both", float32=2e-5, tf32=5e-5), Made("made.quick", float32=9e-5, tf32=6e-5)]
"""


@pytest.fixture
def made(tmp_path, monkeypatch, read_anew):
    folder = tmp_path / "plugins" / "made"
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text(PLUGIN)
    (tmp_path / "registry.yaml").write_text("version: 1\nrules:\n  - prefer: ['*.*']\n")
    monkeypatch.setenv("CONVDISPATCH_PLUGIN_DIR", str(tmp_path / "plugins"))
    monkeypatch.setenv("CONVDISPATCH_REGISTRY", str(tmp_path / "registry.yaml"))
    monkeypatch.setenv("CONVDISPATCH_PLUGINS", "made")
    read_anew()
    return loader.plugins().solvers


def order(math):
    return [each.solver.name.partition(".")[2] for each in rank(PROBLEM.replace(math=math), LARGE)]


def test_the_fastest_of_all_that_are_accurate_enough_runs(made):
    assert order("tf32") == ["plain", "both", "coarse", "exact", "quick"]
    assert order("fast")[:2] == ["plain", "both"]
    assert order("float32") == ["plain", "both", "quick"]
    assert order("ieee") == ["exact"]
    assert explain(PROBLEM.replace(math="tf32"), LARGE).chosen == "made.plain"


def test_of_one_solver_the_faster_math_is_its_first_configuration(made):
    tf32 = PROBLEM.replace(math="tf32")
    both, quick = (query(made[name], tf32, LARGE) for name in ("made.both", "made.quick"))
    assert both.configs == ({"of": "float32"}, {"of": "tf32"}, {"of": "all"})
    assert quick.configs == ({"of": "tf32"}, {"of": "all"}, {"of": "float32"})
    assert [both.cost(config) for config in both.configs] == [2e-5, 5e-5, 5e-5]
    assert [both.shown(config).math for config in both.configs] == ["float32", "tf32", "tf32"]
    assert both.offers({"of": "float32"})


def test_a_plan_is_asked_for_in_the_math_that_offered_it(made, queue):
    tf32, context = PROBLEM.replace(math="tf32", bias=True), queue.context
    for name, config in (("made.both", "float32"), ("made.both", "all"), ("made.plain", "all"), ("made.exact", "ieee")):
        assert dispatch.make(made[name], {"of": config}, tf32, context).problem == tf32
    planned = type(made["made.both"]).plan.__globals__["planned"]
    assert planned == [
        ("made.both", "float32", "float32"),
        ("made.both", "tf32", "all"),
        ("made.plain", "float32", "all"),
        ("made.exact", "ieee", "ieee"),
    ]


# --- what is kept of a choice ----------------------------------------------------------------------------------------

TF32 = PROBLEM.replace(math="tf32")


@pytest.fixture
def kept(made, queue, tmp_path):
    """``kept(problem, decision)``: its plan where a pack says so, in which math it was planned, who was asked for
    configurations. The decision is sealed, unless it says a seal."""
    said, device = type(made["made.both"]).plan.__globals__, queue.device
    decisions._reported.clear()

    def planned(problem, decision):
        sealed = decision if "seal" in decision else decisions.sealed(str(problem), decision, device)
        gathered = artifact_store.Gathered(keys.identity(device))
        gathered.tables["decisions"][str(problem)] = sealed
        planpack.write(tmp_path / "a.cdpack", gathered)
        dispatch.forget()
        said["planned"].clear()
        said["asked"].clear()
        with cd.load_pack(tmp_path / "a.cdpack"):
            prepared = dispatch.prepare(problem, queue.context)
        assert prepared.math == said["planned"][-1][1]
        return prepared, said["planned"][-1], sorted(set(said["asked"]))

    yield planned
    decisions._sources.cache_clear()


BOTH = {"solver": "made.both", "config": {"of": "all"}}


@pytest.mark.parametrize("math", ["float32", "tf32"])
def test_a_kept_decision_says_its_math_and_nobody_is_asked(kept, queue, math):
    prepared, planned, asked = kept(TF32.replace(bias=True), {**BOTH, "config": {"of": math}, "math": math})
    assert prepared.source.startswith("plan pack ")
    assert planned == ("made.both", math, math)
    assert not asked


def test_what_a_pack_keeps_is_the_math_that_was_planned(kept, queue):
    dispatch.forget()
    with artifact_store.gathering(queue.device) as gathered:
        chosen = dispatch.prepare(TF32, queue.context)
    decision = gathered.tables["decisions"][str(TF32)]
    assert (decision["solver"], decision["math"]) == ("made.plain", "float32")
    prepared, planned, asked = kept(TF32, decision)
    assert (prepared.config, planned[1], asked) == (chosen.config, "float32", [])


def test_an_earlier_version_s_decision_is_asked_for_its_math(kept):
    """It has no such field, so that its solver is asked whether it offers the configuration."""
    assert kept(TF32, BOTH)[1:] == (("made.both", "tf32", "all"), ["made.both"])
    plain = {"solver": "made.plain", "config": {"of": "all"}}
    assert kept(TF32, plain)[1:] == (("made.plain", "float32", "all"), ["made.plain"])
    exact = {**BOTH, "config": {"of": "float32"}}
    assert kept(PROBLEM, exact)[1:] == (("made.both", "float32", "float32"), ["made.both"])


@pytest.mark.parametrize("math", ["ieee", "tf32", "fast", "no math", ""])
def test_a_math_that_is_not_admitted_counts_for_nothing(kept, math):
    prepared, planned, asked = kept(PROBLEM, {**BOTH, "math": math})
    assert prepared.source.startswith("plan pack "), "the solver offers the configuration for the problem's own math"
    assert planned == ("made.both", "float32", "all")
    assert asked
    with pytest.warns(ConvDispatchWarning, match="made.coarse .*refuses"):
        prepared, planned, _ = kept(PROBLEM, {"solver": "made.coarse", "config": {"of": "all"}, "math": math})
    assert planned[1] == "float32"


def test_a_math_that_is_admitted_no_longer_is_asked_for_anew(kept, monkeypatch):
    plain = {"solver": "made.plain", "config": {"of": "float32"}, "math": "float32"}
    assert not kept(TF32, plain)[2]
    monkeypatch.setattr(solver_query, "FLOORS", {"tf32": ("ieee",)})
    with pytest.warns(ConvDispatchWarning, match="made.plain .*refuses"):
        _, planned, asked = kept(TF32, plain)
    assert planned[:2] == ("made.coarse", "tf32")
    assert asked


def test_a_math_that_was_written_over_breaks_the_seal(kept, queue):
    sealed = decisions.sealed(str(TF32), {**BOTH, "math": "tf32"}, queue.device)
    assert not kept(TF32, sealed)[2]
    for other in ({"math": "float32"}, {"math": 1}, {"math": None}):
        assert kept(TF32, sealed | other)[1:] == (("made.both", "tf32", "all"), ["made.both"])


def test_under_a_pin_and_determinism_nothing_changes(made):
    with cd.policy(solver="made.plain", deterministic=True):
        assert order("tf32") == ["plain"]


def test_a_gpu_s_winograd_runs_under_tf32_where_it_is_predicted_faster():
    solver = loader.plugins().solvers.get("nvidia.winograd")
    if solver is None:
        pytest.skip("the nvidia plugin is not loaded")
    problem = cd.ConvProblem.parse("fwd_f32_mb32ic256ih28oc256kh3ph1")
    plain, tf32 = (query(solver, problem.replace(math=math), LARGE) for math in ("float32", "tf32"))
    assert tf32.accepts == plain.accepts
    assert tf32.configs == plain.configs


def test_calls_are_right_in_it(queue):
    import numpy as np

    x, w = np.random.default_rng(0).normal(size=(1, 8, 9, 9)), np.random.default_rng(1).normal(size=(8, 8, 3, 3))
    x, w = x.astype(np.float32), w.astype(np.float32)
    found = cd.conv(x, w, padding=1, math="tf32", queue=queue)
    assert np.allclose(found, cd.conv(x, w, padding=1, queue=queue), rtol=1e-2, atol=1e-2)
    assert runtime.device_info(queue.device)
