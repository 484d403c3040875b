"""Which forms of a net are built: those that the prediction does not rule out."""

import contextlib
import math
import types

import numpy as np
import pytest
import small_net

from convdispatch import inference
from convdispatch.device import runtime
from convdispatch.device.programs import compile_pool
from convdispatch.inference import building, layout_pruning
from convdispatch.inference.passes import layout
from convdispatch.selection import decision_store, dispatch
from convdispatch.selection.choice.ranking import rank

SHAPE = (1, 3, 13, 13)


@pytest.mark.parametrize(
    ("times", "left"),
    [
        ({"nchw": 1.0, "nhwc": 1.0}, ["nchw", "nhwc"]),
        ({"nchw": 1.39, "nhwc": 1.0}, ["nchw", "nhwc"]),
        ({"nchw": 1.41, "nhwc": 1.0}, ["nhwc"]),
        ({"nchw": 1.0, "nhwc": 9.0}, ["nchw"]),
        ({"nchw": math.nan, "nhwc": 1.0}, ["nchw", "nhwc"]),
        ({"nchw": 1.0, "nhwc": math.nan}, ["nchw", "nhwc"]),
    ],
)
def test_a_layout_goes_where_the_prediction_is_sure(queue, monkeypatch, times, left):
    monkeypatch.setattr(layout_pruning, "seconds", lambda graph, device, ranked: times[graph])
    graphs, _ = layout_pruning.pruned({name: name for name in times}, queue)
    assert list(graphs) == left


def test_what_the_caller_says_is_built(queue, monkeypatch):
    monkeypatch.setattr(layout_pruning, "seconds", lambda graph, device: pytest.fail("there is no choice"))
    built = inference.build(small_net.net(queue), SHAPE, queue=queue, layout="nhwc")
    assert built.layout == "nhwc"


def test_seconds_are_those_of_the_chosen_solvers_and_of_reorders(queue):
    net, info = small_net.net(queue), runtime.device_info(queue.device)
    graph = building.traced_and_fused(net, [SHAPE], np.float32, queue, None)
    problems = inference.problems(net, SHAPE, queue=queue, layout="nchw")
    own = sum(first.solver.cost(p, info, first.config) or math.nan for p in problems for first in rank(p, info)[:1])
    found = layout_pruning.seconds(graph, info)
    assert found == pytest.approx(own, rel=1e-6) or (math.isnan(found) and math.isnan(own))
    turned = layout.relayout(graph, "nhwc")
    assert any(node.function is layout.reorder for node in turned.nodes)
    assert math.isnan(found) or layout_pruning.seconds(turned, info) > 0


def test_what_was_ranked_is_not_ranked_again(queue, monkeypatch):
    """Two layouts are compared by ranking each convolution; planning those that are built asks no solver again."""
    net, asked = small_net.net(queue), []
    real = layout_pruning.choices
    monkeypatch.setattr(layout_pruning, "choices", lambda *given: asked.append(given[0]) or real(*given))
    monkeypatch.setattr(decision_store, "choices", lambda *given: pytest.fail("ranked a second time"))
    monkeypatch.setattr(compile_pool, "processors", lambda: 2)
    dispatch.forget()
    built = inference.build(net, SHAPE, queue=queue)
    ran = {layer.problem for layer in built.layers if layer.problem is not None}
    assert ran
    assert ran <= set(asked)
    assert len(asked) == len(set(asked))


@pytest.mark.parametrize(
    ("kind", "cold", "at_once"), [("cpu", True, True), ("cpu", False, False), ("gpu", True, False)]
)
def test_compilers_start_before_the_choice_on_cpus_that_compile(queue, monkeypatch, kind, cold, at_once):
    said, real = [], building.traced_and_fused

    def fused(*given):
        building.thread.compiled += cold
        return real(*given)

    @contextlib.contextmanager
    def side_by_side(device, at_once=False):
        said.append(at_once)
        yield

    monkeypatch.setattr(building, "traced_and_fused", fused)
    monkeypatch.setattr(building, "side_by_side", side_by_side)
    runtime_of_kind = types.SimpleNamespace(device_info=lambda device: types.SimpleNamespace(type=kind))
    monkeypatch.setattr(building, "runtime", runtime_of_kind)
    net = small_net.net(queue)
    inference.build(net, SHAPE, queue=queue, layout="nchw")
    said.clear()
    inference.build(net, SHAPE, queue=queue, layout="nchw")
    assert said == [at_once]
