"""Which forms of a net are built: those that the prediction does not rule out."""

from __future__ import annotations

import math

import numpy as np
import pytest
import small_net

from convdispatch import inference
from convdispatch.device import runtime
from convdispatch.inference import foretold, layout
from convdispatch.inference import net as building
from convdispatch.selection.ranking import rank

SHAPE = (1, 3, 13, 13)


@pytest.mark.parametrize(
    ("times", "left"),
    [
        ({"nchw": 1.0, "nhwc": 1.0}, ["nchw", "nhwc"]),
        ({"nchw": 1.14, "nhwc": 1.0}, ["nchw", "nhwc"]),
        ({"nchw": 1.16, "nhwc": 1.0}, ["nhwc"]),
        ({"nchw": 1.0, "nhwc": 9.0}, ["nchw"]),
        ({"nchw": math.nan, "nhwc": 1.0}, ["nchw", "nhwc"]),
        ({"nchw": 1.0, "nhwc": math.nan}, ["nchw", "nhwc"]),
    ],
)
def test_a_layout_goes_where_the_prediction_is_sure(queue, monkeypatch, times, left):
    monkeypatch.setattr(foretold, "seconds", lambda graph, device: times[graph])
    graphs, counts = foretold.foretold({name: name for name in times}, (1, 4), queue)
    assert list(graphs) == left
    assert counts == ((1,) if runtime.device_info(queue.device).type == "cpu" else (1, 4))


def test_what_the_caller_says_is_built(queue, monkeypatch):
    monkeypatch.setattr(foretold, "seconds", lambda graph, device: pytest.fail("there is no choice"))
    built = inference.build(small_net.net(queue), SHAPE, queue=queue, layout="nhwc", queues=3)
    assert built.layout == "nhwc"


def test_seconds_are_those_of_the_chosen_solvers_and_of_reorders(queue):
    net, info = small_net.net(queue), runtime.device_info(queue.device)
    graph = building._fused(net, [SHAPE], np.float32, queue, None)
    problems = inference.problems(net, SHAPE, queue=queue, layout="nchw")
    own = sum(first.solver.cost(p, info, first.config) or math.nan for p in problems for first in rank(p, info)[:1])
    found = foretold.seconds(graph, info)
    assert found == pytest.approx(own, rel=1e-6) or (math.isnan(found) and math.isnan(own))
    turned = layout.relayout(graph, "nhwc")
    assert any(node.function is layout.reorder for node in turned.nodes)
    assert math.isnan(found) or foretold.seconds(turned, info) > 0
