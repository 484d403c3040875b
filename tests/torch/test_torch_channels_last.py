"""Graphs that learn on a GPU are laid channels last as a whole: here by the pass itself, on the CPU."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed (extra: torch)")

import torch_zoo  # noqa: E402

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


def test_inductor_hands_our_operators_the_graph_s_strides(monkeypatch):
    """Without a tag inductor gives operators that a pass put into its graph any strides: eleven gradients of ResNet-50
    came channels first, and every call copied them."""
    from torch._inductor import compile_fx, ir
    from torch._inductor.graph import GraphLowering
    from torch._inductor.virtualized import V

    from convdispatch.torch.compile.backend import Backend
    from convdispatch.torch.graph import inductor

    class Lowered(Exception):
        pass

    channels_first, seen = [], []

    def count(graph, inputs, **options):
        with V.set_fake_mode(torch._dynamo.utils.detect_fake_mode(inputs)):
            compile_fx.record_original_output_strides(graph)
            compile_fx._recursive_post_grad_passes(graph, is_inference=False)
            lowered = GraphLowering(graph, example_inputs=inputs, is_backward=options.get("is_backward", False))
            with V.set_graph_handler(lowered):
                lowered.run(*inputs)
        for each in lowered.operations:
            if isinstance(each, ir.FallbackKernel) and "convdispatch" in str(each.op_overload):
                for operand in (operand for operand in each.inputs if len(operand.get_size()) == 4):
                    size, stride = ([int(n) for n in numbers] for numbers in (operand.get_size(), operand.get_stride()))
                    seen.append(each)
                    meta = torch.empty_strided(size, stride, device="meta")
                    if not meta.is_contiguous(memory_format=torch.channels_last):
                        channels_first.append((str(each.op_overload), size, stride))

        def run(_):
            raise Lowered

        run._boxed_call = True
        return run

    plain = compile_fx.compile_fx
    monkeypatch.setattr(
        compile_fx, "compile_fx", lambda graph, inputs, **kw: plain(graph, inputs, **{"inner_compile": count, **kw})
    )
    monkeypatch.setattr(inductor, "prepare_kernels", lambda *_, **__: None)
    torch._dynamo.reset()
    model = torch_zoo.ResNet((1, 3, 3), torch_zoo._bottleneck, 4, base=8).train().to(memory_format=torch.channels_last)
    x = torch.randn(4, 3, 64, 64).to(memory_format=torch.channels_last)
    with (
        torch._functorch.config.patch(force_non_lazy_backward_lowering=True),
        torch.autocast("cpu", torch.bfloat16),
        pytest.raises(Lowered),
    ):
        torch.compile(model, backend=Backend(options={"fuse_norms": False}))(x)
    assert len(seen) > 20
    assert not channels_first
