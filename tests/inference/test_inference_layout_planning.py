"""A plan of layouts over a net: the least sum there is, by trying all; what is built; when none is worth it."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from convdispatch import inference, nn
from convdispatch.device import runtime
from convdispatch.inference import layout_planning
from convdispatch.inference.graph import Graph, Node, Value
from convdispatch.inference.passes.layout import reorder
from convdispatch.nn import functional
from convdispatch.tensor import Tensor

SHAPE = (1, 2, 3, 3)


def random_graph(rng, size):
    """Operations with one to three operands each, some of which cannot turn; every unread value is an output."""
    values = [Value(SHAPE, np.dtype(np.float32))]
    graph, nodes, seconds = Graph(values[:1]), {}, {}
    for place in range(size):
        read = rng.choice(len(values), size=min(len(values), int(rng.integers(1, 4))), replace=False)
        node = Node(functional.relu, (), {f"x{i}": values[i].whole for i in read})
        made = Value(SHAPE, np.dtype(np.float32), node)
        node.result = made.whole
        values.append(made)
        graph.nodes.append(node)
        if place % 4 != 3:
            nodes[node] = tuple(rng.integers(1, 20, 2) * 1e-6)
    graph.output = [value.whole for value in values if not any(r.value is value for n in graph.nodes for r in n.refs)]
    seconds = {value: float(rng.integers(0, 12)) * 1e-6 for value in values}
    return graph, layout_planning.Costs(nodes, seconds)


@pytest.mark.parametrize("seed", range(12))
def test_the_cut_is_the_least_of_all_labellings(seed):
    graph, costs = random_graph(np.random.default_rng(seed), 9)
    least = min(
        layout_planning.total(graph, costs, frozenset(chosen))
        for count in range(len(costs.nodes) + 1)
        for chosen in itertools.combinations(costs.nodes, count)
    )
    found = layout_planning.cut(graph, costs)
    assert layout_planning.total(graph, costs, found) == pytest.approx(least, rel=1e-9)
    assert found == layout_planning.cut(graph, costs)


class Chain(nn.Module):
    """Two 3x3 layers with a pool between them, and a residual over both."""

    def __init__(self):
        self.first, self.second = nn.Conv2d(16, 24, 3, padding=1), nn.Conv2d(24, 16, 3, padding=1)

    def forward(self, x):
        return self.second(functional.max_pool(self.first(x), 3, 1, 1)) + x


def priced(monkeypatch, price):
    """Convolutions cost ``price(problem)`` seconds, all else next to nothing."""
    monkeypatch.setattr(layout_planning, "_cost", lambda problem, device, ranked: price(problem))


def test_a_mixture_is_built_where_it_is_predicted_to_be_worth_it(queue, monkeypatch):
    priced(monkeypatch, lambda problem: 1.0 if (problem.ic == 16) == (problem.layout == "nchw") else 2.0)
    net = Chain().eval()
    x = np.random.default_rng(0).standard_normal((2, 16, 12, 12), np.float32)
    built = inference.build(net, x.shape, queue=queue, layout="mixed")
    assert built.layout == "mixed"
    assert [layer.problem.layout for layer in built.layers if layer.problem] == ["nchw", "nhwc"]
    assert [layer.name for layer in built.layers].count(reorder.__name__) >= 1
    np.testing.assert_allclose(built(x), net(Tensor.from_numpy(x, queue)).numpy(), rtol=1e-4, atol=1e-5)
    assert any(text.startswith("mixed") for text in inference.build(net, x.shape, queue=queue).tried)


@pytest.mark.parametrize(
    "price",
    [
        lambda problem: 1.0,
        lambda problem: math.nan,
        lambda problem: 1.0 if problem.layout == "nhwc" else 2.0,
        lambda problem: 1.0 if (problem.ic == 16) == (problem.layout == "nchw") else 1.01,
        lambda problem: 1e-9 if (problem.ic == 16) == (problem.layout == "nchw") else 2e-9,  # reorders take longer
    ],
)
def test_no_mixture_where_none_is_worth_it(queue, monkeypatch, price):
    from convdispatch.inference import building

    graph = building.traced_and_fused(Chain().eval(), [(2, 16, 12, 12)], np.float32, queue, None)
    priced(monkeypatch, price)
    assert layout_planning.with_mixed_layouts(graph, runtime.device_info(queue.device), {}) is None
