"""Plugins that change what they are handed: nobody else sees it, and the plugin is named once and set aside."""

from __future__ import annotations

import gc
import warnings
from dataclasses import replace

import numpy as np
import pytest
from sabotaging import FUSED, PLUGIN, PROBLEM, W, X, check_one_warning

import convdispatch as cd
from convdispatch.api.policy import current_policy
from convdispatch.device.cache.keys import key_of
from convdispatch.selection import dispatch
from convdispatch.selection.plugins import loader, verdicts
from convdispatch.selection.records.perfdb import perfdb

SET = "object.__setattr__"
CHANGES = {
    "groups": f"{SET}(problem, 'g', 4)",
    "group_of_channels": f"{SET}(problem, 'ic', 8)",
    "output": f"{SET}(problem, 'oh', 2)",
    "dtype": f"{SET}(problem, 'dtype', 'float64')",
    "shape_kept": "problem.__dict__.update(x_shape=(1, 1, 1, 1), y_shape=(1, 1, 1, 1))",
    "emptied": "problem.__dict__.clear()",
    "deleted": "object.__delattr__(problem, 'kh')",
    "class": f"{SET}(problem, '__class__', type('Other', (type(problem),), {{}}))",
    "device": f"{SET}(device, 'fp64', 'no')",
    "extensions": f"{SET}(device, 'extensions', frozenset())",
    "policy": f"{SET}(policy(), 'max_error', 1e-30)",
    "policy_entered": "entered()",
    "renamed": f"{SET}(self, 'name', 'im2col')",
    "fuses": f"{SET}(self, 'fuses', frozenset({{'residual', 'accumulate'}}))",
}
MEDDLER = """
from convdispatch.api.policy import current_policy as policy
from convdispatch.api.policy import policy as entering

blocks = []
def entered():
    blocks.append(entering(solver="bad.*"))
    blocks[-1].__enter__()

def meddle(self, problem, device):
    CHANGE

def rejects(self, problem, device):
    return "reads once" if WHERE == "rejects" and meddle(self, problem, device) else None
def configs(self, problem, device):
    if WHERE == "configs":
        meddle(self, problem, device)
    yield {"tile": [1, 2]}
    if WHERE == "late":
        meddle(self, problem, device)
def cost(self, problem, device, config):
    config["tile"].append(3)
    return meddle(self, problem, device) if WHERE == "cost" else 1e-9
def workspace(self, problem, device, config):
    return meddle(self, problem, device) if WHERE == "workspace" else 0
def plan(self, context, problem, config):
    assert config == {"tile": [1, 2]}, config
    meddle(self, problem, policy() if "device" in "CHANGE" else None)
    raise ValueError("after it had meddled")
for method in (rejects, configs, cost, workspace, plan):
    setattr(Bad, method.__name__, method)
"""


def meddler(change, where="rejects"):
    text = MEDDLER.replace("CHANGE", CHANGES[change]).replace("WHERE", repr(where))
    return PLUGIN.format(method="cost", expression="1.0") + text


@pytest.mark.parametrize("change", CHANGES)
def test_what_rejects_changes_nobody_sees(sabotage, change):
    sabotage(meddler(change))
    before, policy = vars(PROBLEM).copy(), vars(current_policy()).copy()
    said = check_one_warning("plugin bad is set aside for the rest of this process: bad.solver: its rejects() changed")
    assert "CONVDISPATCH_BLOCK=bad" in said
    assert vars(PROBLEM) | before == vars(PROBLEM)
    assert vars(current_policy()) == policy
    with warnings.catch_warnings():  # of whatever is asked next, nothing more is said, and nobody asks it
        warnings.simplefilter("error")
        cd.conv(X[:1], W)
        verdict = next(v for v in cd.explain(FUSED).verdicts if v.solver == "bad.solver")
    assert verdict.status == "quarantined"
    assert "its rejects() changed" in verdict.reason


@pytest.mark.parametrize("where", ["rejects", "plan"])
def test_a_policy_that_a_plugin_never_leaves_ends_nobody_elses(sabotage, where):
    """The collector ends it, at some time: what was in force as it was entered does not come back then."""
    sabotage(meddler("policy_entered", where))
    method = type(loader.plugins().solvers["bad.solver"]).plan
    check_one_warning(f"its {where}() changed the policy in force")
    before = current_policy()
    with cd.policy(max_error=1e-3) as other:
        method.__globals__["blocks"].clear()
        gc.collect()
        assert current_policy() is other
    assert current_policy() is before


@pytest.mark.parametrize("where", ["configs", "late", "cost", "workspace", "plan"])
@pytest.mark.parametrize("change", ["groups", "policy", "renamed"])
def test_whichever_method_it_is(sabotage, where, change):
    sabotage(meddler(change, where))
    check_one_warning(f"its {where.replace('late', 'configs')}() changed the")


def test_a_plan_keeps_a_copy_of_its_own(sabotage):
    """What changes it later, as it runs, changes nothing for others; the plan computes what it was made for."""
    sabotage(
        PLUGIN.format(method="cost", expression="1.0")
        + """
from convdispatch_im2col import Im2col
class Later:
    def __init__(self, context, problem, config):
        self.problem, self.plan = problem, Im2col().plan(context, problem, config)
        self.workspace_size = self.plan.workspace_size
    def enqueue(self, queue, *operands, **more):
        object.__setattr__(self.problem, "oc", 1)
        return self.plan.enqueue(queue, *operands, **more)
Bad.fuses = Im2col.fuses
Bad.configs = lambda self, *a: Im2col().configs(*a)
Bad.plan = lambda self, context, problem, config: Later(context, problem, config)
"""
    )
    problem = PROBLEM.replace()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(2):
            got = cd.conv(X, W)
    assert got.shape == problem.y_shape
    assert cd.explain(problem).verdicts


def test_find_blames_nobody_else_and_records_what_was_asked(sabotage, tmp_path):
    sabotage(meddler("groups"))
    problem = PROBLEM.replace(ic=4, oc=4)
    with pytest.warns(cd.ConvDispatchWarning, match="plugin bad is set aside"):
        results = cd.find(problem, budget_ms=20_000, isolate=False)
    assert results.winner.solver.startswith("im2col")
    assert {r.status for r in results if r.solver == "bad.solver"} == {"refused"}
    assert {record.problem for record in perfdb().all(perfdb().devices()[0])} == {str(problem)}
    assert not verdicts.verdicts()
    loader.plugins.cache_clear()
    dispatch.forget()
    assert cd.explain(problem).chosen.startswith("im2col")


def test_a_search_whose_problem_changed_records_nothing(sabotage, tmp_path):
    from convdispatch import runtime
    from convdispatch.measurement.search import Search

    sabotage(PLUGIN.format(method="rejects", expression="'not today'"))
    search = Search(PROBLEM.replace(), runtime.default_device(), current_policy(), budget_ms=10_000)
    results = search.run()
    object.__setattr__(search.problem, "g", 4)
    with pytest.raises(cd.PluginError, match=r"became .*g4.* nothing is recorded"):
        search.record(results)
    assert not list(tmp_path.rglob("*.json"))


@pytest.mark.parametrize("asked", [None, "fwd_f32_mb1ic4ih6iw6oc4kh3kw3", "fwd_f32_g16mb2ic4ih6iw6oc8kh3kw3", 3])
def test_poisoned_verdicts_are_dropped_as_they_are_read(sabotage, tmp_path, asked):
    """Those that do not say which problem was asked, those of another one, and those of what is no problem."""
    sabotage(PLUGIN.format(method="rejects", expression="'not today'"))
    place = "fwd_f32_g16mb2ic4ih6iw6oc8kh3kw3" if asked else str(PROBLEM)
    from convdispatch import runtime

    info = runtime.device_info(runtime.default_device())
    verdicts.note(PROBLEM, info, "im2col", loader.plugins().fingerprint("im2col"), "find: wrong")
    ((subject, held),) = verdicts.verdicts().items()
    assert verdicts.against(PROBLEM, info, "im2col", held["version"])
    poisoned = held | {"of": subject.replace(str(PROBLEM), place), "asked": asked}
    verdicts.VERDICTS.put(key_of(subject), poisoned)
    dispatch.forget()
    assert not verdicts.verdicts()
    np.testing.assert_equal(cd.explain(PROBLEM).chosen.startswith("im2col"), True)


def test_a_layer_that_changes_the_problem_is_switched_off(sabotage, monkeypatch):
    sabotage(PLUGIN.format(method="rejects", expression="'not today'"))
    loaded = loader.plugins()

    class Layer:
        @cd.api.hookimpl(wrapper=True)
        def convdispatch_enqueue(self, problem):
            object.__setattr__(problem, "bias", True)
            return (yield)

    loaded.manager.register(Layer(), name="layer meddles")
    loaded.layers.append("meddles")
    dispatch.forget()
    with pytest.warns(cd.ConvDispatchWarning, match=r"layer meddles is switched off .* problem .*bias from False"):
        first = cd.conv(X, W)
    np.testing.assert_array_equal(first, cd.conv(X, W))
    assert not loaded.layers


def test_solvers_of_this_package_change_nothing_that_they_are_handed(monkeypatch):
    """They are handed the values themselves; here, copies that are looked at."""
    from convdispatch import runtime
    from convdispatch.selection.choice.ranking import rank

    monkeypatch.setenv("CONVDISPATCH_PLUGIN_DIR", "/nonexistent")
    loader.plugins.cache_clear()
    loaded = loader.plugins()
    for key, one in loaded.loaded_as.items():
        loaded.loaded_as[key] = replace(one, own=False)
    dispatch.forget()
    info = runtime.device_info(runtime.default_device())
    with warnings.catch_warnings():
        warnings.simplefilter("error", cd.ConvDispatchWarning)
        for kind in ("fwd", "bwd_data", "bwd_weights"):
            for more in ({}, {"g": 2, "sh": 2}, {"dtype": "float16", "layout": "nhwc"}, {"constant_weights": True}):
                assert rank(PROBLEM.replace(direction=kind, **more), info)
    assert not loaded.banned
    loader.reload()
    dispatch.forget()
