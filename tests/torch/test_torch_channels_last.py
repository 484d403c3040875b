"""Graphs that learn on a GPU are laid channels last as a whole: here by the pass itself, on the CPU."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed (extra: torch)")

from convdispatch.torch.graph.learning.channels_last import lay_channels_last  # noqa: E402


def _compiled(model: torch.nn.Module, graphs: list[object]) -> torch.nn.Module:
    def backend(graph, inputs):
        lay_channels_last(graph)
        graphs.append(graph)
        return graph.forward

    torch._dynamo.reset()
    return torch.compile(model, backend=backend)


def test_results_and_gradients_are_the_model_s_and_lie_as_the_model_s():
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 3, padding=1), torch.nn.ReLU(), torch.nn.Conv2d(8, 4, 3, stride=2)
    )
    x, graphs = torch.randn(2, 3, 9, 9), []
    mine = _compiled(model, graphs)(x)
    plain = model(x)
    assert mine.stride() == plain.stride()
    torch.testing.assert_close(mine, plain)
    gradients = []
    for y in (mine, plain):
        model.zero_grad()
        y.square().sum().backward()
        gradients.append([each.grad for each in model.parameters()])
    for ours, own in zip(*gradients, strict=True):
        torch.testing.assert_close(ours, own)
        assert ours.stride() == own.stride()
    laid = [node for node in graphs[0].graph.nodes if node.kwargs.get("memory_format") == torch.channels_last]
    assert len(laid) == 4  # input and weight of both


def test_a_result_that_lies_channels_last_in_the_model_stays_so():
    model = torch.nn.Conv2d(3, 4, 3)
    x = torch.randn(1, 3, 8, 8).to(memory_format=torch.channels_last)
    assert _compiled(model, [])(x).stride() == model(x).stride()


def test_a_graph_without_convolutions_stays_as_it_is():
    graphs: list[object] = []
    _compiled(torch.nn.ReLU(), graphs)(torch.randn(1, 2, 3, 3))
    assert not [node for node in graphs[0].graph.nodes if node.op == "call_method"]
