"""Graphs that learn on a GPU are laid channels last as a whole: here by the pass itself, on the CPU."""

import types

import pytest
import torch
import torch_zoo
from torch.fx.experimental.proxy_tensor import make_fx

from convdispatch.torch import enable
from convdispatch.torch.compile.backend import Backend
from convdispatch.torch.compile.fused_operator import fused_convolution
from convdispatch.torch.graph import inductor
from convdispatch.torch.graph.channels_last import resized
from convdispatch.torch.graph.learning.channels_last import lay_channels_last
from convdispatch.torch.graph.specialised import without_fakes
from convdispatch.torch.graph.upsampling import whole_upsampling


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


class _Views(torch.nn.Module):
    def __init__(self, change) -> None:
        super().__init__()
        self.first, self.linear, self.change = torch.nn.Conv2d(3, 4, 3), torch.nn.Linear(4 * 36, 4), change

    def forward(self, x):
        y = torch.relu(self.first(x))
        return torch.nn.functional.relu(self.linear(self.change(y)), inplace=True) + y.sum()


def _after_write(y):
    rows = y.view(y.shape[0], -1)
    y.mul_(2)
    return rows


@pytest.mark.parametrize(
    ("change", "is_laid"),
    [
        (lambda y: y.view(y.shape[0], -1), True),  # the results of a convolution have no such view channels last
        (lambda y: y.view_as(torch.zeros(2, 4 * 36)), True),
        (lambda y: y.mul_(2).view(y.shape[0], -1), True),
        (lambda y: y.view(y.shape[0], -1).add_(1), False),  # what is written there is read elsewhere
        (lambda y: y.transpose(0, 1).transpose(0, 1).view(2, -1).mul_(3), False),
        (_after_write, False),
        (lambda y: y.as_strided((2, 144), (144, 1)), False),
    ],
)
def test_views_of_laid_results_are_the_model_s(change, is_laid):
    torch.manual_seed(0)
    model, graphs = _Views(change), []
    x = torch.randn(2, 3, 8, 8)
    torch.testing.assert_close(_compiled(model, graphs)(x), model(x))
    laid = [node for node in graphs[0].graph.nodes if node.kwargs.get("memory_format") == torch.channels_last]
    assert bool(laid) == is_laid


class _Lowered(Exception):
    """Ends a call before its first kernel would run."""


def _operations(operations: list[object], is_inference: bool) -> object:
    """An inner compiler for ``compile_fx`` that adds what inductor lowers a graph to, and raises in the call."""
    from torch._inductor import compile_fx
    from torch._inductor.graph import GraphLowering
    from torch._inductor.virtualized import V

    def lower(graph, inputs, **options):
        backward = options.get("is_backward", False)
        with V.set_fake_mode(torch._dynamo.utils.detect_fake_mode(inputs)):
            compile_fx.record_original_output_strides(graph)
            compile_fx._recursive_post_grad_passes(graph, is_inference=is_inference)
            lowered = GraphLowering(graph, example_inputs=inputs, is_backward=backward, is_inference=is_inference)
            with V.set_graph_handler(lowered):
                lowered.run(*inputs)
        operations.extend(lowered.operations)

        def run(_):
            raise _Lowered

        run._boxed_call = True
        return run

    return lower


def _channels_first(operations: list[object], count: int) -> list[object]:
    """The operands of our operators that are no images channels last, of at least ``count`` images."""
    from torch._inductor import ir

    found, images = [], 0
    for each in operations:
        if isinstance(each, ir.FallbackKernel) and "convdispatch" in str(each.op_overload):
            for operand in (operand for operand in each.inputs if len(operand.get_size()) == 4):
                size, stride = ([int(n) for n in numbers] for numbers in (operand.get_size(), operand.get_stride()))
                images += 1
                meta = torch.empty_strided(size, stride, device="meta")
                if not meta.is_contiguous(memory_format=torch.channels_last):
                    found.append((str(each.op_overload), size, stride))
    assert images >= count
    return found


def test_inductor_hands_our_operators_the_graph_s_strides(monkeypatch):
    """Without a tag inductor gives operators that a pass put into its graph any strides: eleven gradients of ResNet-50
    came channels first, and every call copied them."""
    from torch._inductor import compile_fx

    operations: list[object] = []
    monkeypatch.setattr(compile_fx, "compile_fx_inner", _operations(operations, is_inference=False))
    monkeypatch.setattr(inductor, "prepare_kernels", lambda *_, **__: None)
    torch._dynamo.reset()
    model = torch_zoo.ResNet((1, 1), torch_zoo._bottleneck, 4, base=8).train().to(memory_format=torch.channels_last)
    x = torch.randn(4, 3, 64, 64).to(memory_format=torch.channels_last)
    with (
        torch._functorch.config.patch(force_non_lazy_backward_lowering=True),
        torch.autocast("cpu", torch.bfloat16),
        pytest.raises(_Lowered),
    ):
        torch.compile(model, backend=Backend())(x)
    assert not _channels_first(operations, 20)


class _Head(torch.nn.Module):
    """A head for segmentation: linear layers of flat images of two sizes, resized to one size and concatenated."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.next = torch.nn.Conv2d(3, 16, 3, stride=2, padding=1), torch.nn.Conv2d(16, 32, 3, stride=2)
        self.linear = torch.nn.ModuleList([torch.nn.Linear(16, 16), torch.nn.Linear(32, 16)])
        self.fuse, self.norm = torch.nn.Conv2d(32, 16, 1, bias=False), torch.nn.BatchNorm2d(16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        images = []
        for convolution in (self.stem, self.next):
            x = convolution(x)
            rows = torch.nn.functional.layer_norm(x.permute(0, 2, 3, 1), x.shape[1:2])
            x = rows.permute(0, 3, 1, 2).contiguous()
            images.append(x)
        resized = []
        for linear, x in zip(self.linear, images, strict=True):
            flat = linear(x.flatten(2).transpose(1, 2)).transpose(1, 2).reshape(x.shape[0], -1, *x.shape[2:])
            sizes = images[0].shape[2:]
            resized.append(torch.nn.functional.interpolate(flat, size=sizes, mode="bilinear", align_corners=False))
        return torch.relu(self.norm(self.fuse(torch.cat(resized[::-1], 1))))


def _graph_of(model, x, monkeypatch):
    """A model's inference graph, its weights attributes, as the back end has inductor compile it."""

    monkeypatch.setattr(inductor, "prepare_kernels", lambda *_, **__: None)
    with torch.no_grad(), whole_upsampling():
        traced = make_fx(model, tracing_mode="fake", _allow_non_fake_inputs=True)(x)
    return without_fakes(traced)[0]


@pytest.mark.parametrize("form", [torch.channels_last, torch.contiguous_format])
def test_a_graph_on_a_gpu_writes_channels_last_what_our_convolutions_read(monkeypatch, form):
    """Inductor wrote a concat of resized images channels first, by kernels that read across the lines of memory, and
    copied it: SegFormer took 1.4 times inductor's own time."""
    from torch._inductor import compile_fx, ir

    model = _Head().eval().requires_grad_(False).to(memory_format=form)
    x = torch.randn(2, 3, 33, 33).to(memory_format=form)
    graphs, operations = [], []
    monkeypatch.setattr(compile_fx, "compile_fx", lambda graph, inputs, **_: graphs.append(graph))
    on_gpu = types.SimpleNamespace(is_cpu=False, device=torch.device("cuda"))
    backend = types.SimpleNamespace(mode=None, patches={})
    inductor.compiled_frozen(_graph_of(model, x, monkeypatch), [on_gpu], backend, ours=True)
    monkeypatch.undo()
    with torch.no_grad():
        torch.testing.assert_close(graphs[0](x), model(x))
        assert graphs[0](x).stride() == model(x).stride()
        with pytest.raises(_Lowered):
            compile_fx.compile_fx(graphs[0], [x], inner_compile=_operations(operations, is_inference=True))(x)
    assert not _channels_first(operations, 6)  # three images and three weights
    concats = [each for each in operations if isinstance(each, ir.ConcatKernel)]
    assert len(concats) == 1
    assert all(isinstance(image.layout, ir.NonOwningLayout) for image in concats[0].inputs)  # written in place


def test_convolutions_of_a_channels_first_model_hand_their_results_on_channels_last(monkeypatch):
    """What reads a result otherwise, as ``view`` does, has the model's strides; float32 without TF32 stays as it is."""

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = torch.nn.Conv2d(3, 8, 3, padding=1), torch.nn.Conv2d(8, 8, 3, padding=1)
            self.last = torch.nn.Linear(8 * 36, 4)

        def forward(self, x):
            y = torch.relu(self.first(x))
            z = torch.relu(self.second(y) + y)
            return self.last(z.view(z.shape[0], -1)), z

    model = Model().eval().requires_grad_(False)
    x = torch.randn(2, 3, 6, 6)
    graph = inductor.with_our_operators(_graph_of(model, x, monkeypatch), torch.device("cuda"), None, compiled=True)
    convolutions = [node for node in graph.graph.nodes if "fused_convolution" in str(node.target)]
    copies = [node for node in graph.graph.nodes if node.target is torch.ops.aten.clone.default]
    first, second = convolutions
    assert second.args[0] is second.args[3] is first
    assert [node.args[0] is second for node in copies] == [False, True]  # the input, and what ``view`` reads
    for name, weight in graph.named_parameters():
        assert weight.ndim != 4 or weight.is_contiguous(memory_format=torch.channels_last), name
    for ours, theirs in zip(graph(x), model(x), strict=True):
        torch.testing.assert_close(ours, theirs)
        assert ours.stride() == theirs.stride()
    with enable(math="float32"):
        graph = inductor.with_our_operators(_graph_of(model, x, monkeypatch), torch.device("cuda"), None, compiled=True)
    assert not [node for node in graph.graph.nodes if node.target is torch.ops.aten.clone.default]


def test_weights_of_two_convolutions_stay_theirs():
    """A weight that something reads channels first is copied, not replaced."""
    from convdispatch.torch.graph.channels_last import lay_channels_last

    weight, x = torch.nn.Parameter(torch.randn(4, 4, 3, 3), requires_grad=False), torch.randn(1, 4, 5, 5)
    for is_read in (False, True):
        graph = torch.fx.Graph()
        image, w = graph.placeholder("x"), graph.get_attr("weight")
        image.meta["val"], w.meta["val"] = x.to("meta"), weight.to("meta")
        y = image
        for _ in range(2):
            y = graph.call_function(fused_convolution, (y, w, None, None, None, [1, 1], [1, 1], [1, 1], 1))
            y.meta["val"] = torch.empty(1, 4, 5, 5, device="meta")
        graph.output((y, graph.call_method("view", (w, -1))) if is_read else (y,))
        module = torch.fx.GraphModule({"weight": weight}, graph)
        before = [*module(x)]
        lay_channels_last(module, torch.device("cuda"))
        assert module.weight.is_contiguous() == is_read
        for ours, theirs in zip(module(x), before, strict=True):
            torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("corners", [False, True])
@pytest.mark.parametrize(("sizes", "scales"), [((9, 4), (None, None)), ((1, 14), (None, None)), ((14, 21), (2.1, 3.1))])
def test_images_are_resized_with_pytorch_s_roundings(dtype, corners, sizes, scales):
    x = torch.randn(2, 7, 7, 3).to(dtype)
    decomposition = torch._decomp.decomposition_table[torch.ops.aten.upsample_bilinear2d.default]
    theirs = decomposition(x.permute(0, 3, 1, 2), sizes, corners, *scales)
    assert torch.equal(resized(x, sizes, corners, *scales).permute(0, 3, 1, 2), theirs)


def test_images_that_keep_their_size_are_copied():
    x = torch.tensor([1.0, float("inf"), 2.0, 3.0]).reshape(1, 2, 2, 1)
    y = resized(x, (2, 2), False, None, None)
    assert torch.equal(x, y)
    assert y.data_ptr() != x.data_ptr()
