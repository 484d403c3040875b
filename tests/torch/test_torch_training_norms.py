"""Batch norms of graphs that learn as parts of convolutions: the pass over Dynamo's graph, operators, who decides."""

import copy
import types
from types import SimpleNamespace

import pytest
import torch
import torch_zoo
from torch._dynamo.backends.common import aot_autograd
from torch._functorch.partitioners import min_cut_rematerialization_partition
from torch.fx.experimental.proxy_tensor import make_fx
from torch_checks import error

import convdispatch.torch as ct
from convdispatch import ConvProblem
from convdispatch.torch.compile.backend import Backend
from convdispatch.torch.compile.normed_operators import (
    activated,
    convolve,
    normed_convolution,
    normed_convolution_backward,
    statistics,
    sum_in_kernels,
    table,
)
from convdispatch.torch.graph import inductor
from convdispatch.torch.graph.learning import training_norms
from convdispatch.torch.graph.learning.training_norms import FusionJudge, fuse_training_norms

nn, F = torch.nn, torch.nn.functional
GEOMETRY = ([1, 1], [1, 1], [1, 1], 1)


@pytest.fixture(autouse=True)
def _fresh():
    torch._dynamo.reset()
    ct.reset_counters()


@pytest.fixture(autouse=True)
def judge(monkeypatch):
    """Rewrites all that can be, except with ``judge(function)``, which decides instead; None lets selection decide."""
    real = FusionJudge.pays

    def decides(pays):
        monkeypatch.setattr(FusionJudge, "pays", pays or real)

    decides(lambda *_: True)
    return decides


def conv(ic: int, oc: int, kernel: int = 3, **options) -> nn.Module:
    return nn.Conv2d(ic, oc, kernel, padding=kernel // 2, bias=False, **options)


def norm(channels: int, **options) -> nn.Module:
    layer = nn.BatchNorm2d(channels, **options)
    if layer.affine:
        nn.init.uniform_(layer.weight, 0.5, 2)
        nn.init.normal_(layer.bias)
    if layer.track_running_stats:
        layer.running_mean.normal_()
        layer.running_var.uniform_(0.5, 2)
    return layer


class Net(nn.Module):
    """A net whose ``forward`` is a function of its layers and x."""

    def __init__(self, forward, *layers: nn.Module) -> None:
        super().__init__()
        self.layers, self.function = nn.ModuleList(layers), forward

    def forward(self, x):
        return self.function(self.layers, x)


def chain(activation=None, **options) -> nn.Module:
    between = [] if activation is None else [activation]
    return nn.Sequential(conv(3, 3), norm(3, **options), *between, conv(3, 3), norm(3))


def bottleneck(m, x):
    """As ResNet's: what the sum returns is read by convolutions and by the next sum."""
    y = m[8](m[1](m[0](x)))
    z = m[7](m[6](m[8](m[5](m[4](m[8](m[3](m[2](y))))))))
    return torch.relu_(z + y)


def joined(m, x):
    """As two of ResNet's blocks: relu's result is read by a convolution first, then by a sum."""
    for _ in range(2):
        y = m[1](m[0](x))
        y += x
        x = F.relu(y, inplace=True)
    return m[0](x)


def frozen(net: nn.Module) -> nn.Module:
    for each in net.modules():
        if isinstance(each, nn.BatchNorm2d):
            each.eval()
    return net


def used_twice(m, x):
    y = F.relu(m[1](m[0](x)))
    return m[2](y) + m[3](y)


def changed_in_place(m, x):
    """The activation changes what the sum reads: the norm's own result."""
    y = m[1](m[0](x))
    return m[2](F.relu(y, inplace=True)) + y.mean()


def input_changed(m, x):
    """The convolution's result is changed before the norm reads it."""
    u = m[0](x)
    u.mul_(2)
    return m[2](m[1](u))


def concatenated(m, x):
    """As DenseNet's: the norm is of a concatenation, so no convolution knows the statistics."""
    y = m[0](x)
    return m[2](F.relu(m[1](torch.cat([x, y], 1))))


def of_the_weight(m, x):
    """A normalised tensor that is a convolution's weight."""
    return F.conv2d(x, m[1](m[0](x))[:, :3, :2, :2])


STRUCTURES = {
    # name: (model, norms that are rewritten, norms that convolutions take in)
    "relu": (lambda: chain(nn.ReLU(inplace=True)), 2, 1),
    "no activation": (chain, 2, 1),
    "silu": (lambda: chain(nn.SiLU()), 2, 1),
    "leaky relu": (lambda: chain(nn.LeakyReLU(0.2)), 2, 1),
    "relu6": (lambda: chain(nn.ReLU6(inplace=True)), 2, 1),
    "gelu": (lambda: chain(nn.GELU()), 2, 1),
    "no gelu of ours": (lambda: chain(nn.Softplus(beta=2)), 2, 0),
    "dropout between": (lambda: nn.Sequential(conv(3, 8), norm(8), nn.Dropout(0.0), conv(8, 4)), 1, 0),
    "no affine": (lambda: chain(nn.ReLU(), affine=False), 2, 1),
    "no running statistics": (lambda: chain(nn.ReLU(), track_running_stats=False), 2, 1),
    "momentum and epsilon": (lambda: chain(nn.ReLU(), momentum=0.7, eps=0.1), 2, 1),
    "frozen": (lambda: frozen(chain(nn.ReLU())), 1, 1),
    "frozen without gradients": (lambda: frozen(chain(nn.ReLU(), affine=False)), 1, 1),
    "grouped": (lambda: nn.Sequential(conv(3, 8), norm(8), nn.ReLU(), conv(8, 8, 3, groups=4)), 1, 1),
    "residual": (
        lambda: Net(bottleneck, conv(3, 8), norm(8), conv(8, 4, 1), norm(4), conv(4, 4), norm(4), conv(4, 8, 1),
                    norm(8), nn.ReLU(inplace=True)), 4, 2,
    ),
    "joined": (lambda: Net(joined, conv(3, 3), norm(3)), 2, 0),
    "used twice": (lambda: Net(used_twice, conv(3, 8), norm(8), conv(8, 4), conv(8, 4)), 1, 1),
    "returned too": (
        lambda: Net(lambda m, x: torch.cat([y := m[1](m[0](x)), m[2](y)], 1), conv(3, 8), norm(8), conv(8, 4)), 1, 0,
    ),
    "changed in place": (lambda: Net(changed_in_place, conv(3, 8), norm(8), conv(8, 4)), 1, 0),
    "input changed": (lambda: Net(input_changed, conv(3, 8), norm(8), conv(8, 4)), 0, 0),
    "widening": (lambda: nn.Sequential(conv(3, 3), norm(3), nn.ReLU(), conv(3, 8, 1), norm(8)), 2, 1),
    "widening at once": (lambda: nn.Sequential(conv(3, 8, 1), norm(8), nn.SiLU()), 1, 0),
    "widening with a bias, no affine": (
        lambda: nn.Sequential(conv(3, 3), nn.Conv2d(3, 6, 1), norm(6, affine=False)), 1, 0,
    ),
    "concatenated": (lambda: Net(concatenated, conv(3, 5), norm(8), conv(8, 4)), 1, 1),
    "a weight": (lambda: Net(of_the_weight, conv(3, 3), norm(3)), 1, 0),
    "a module that is called twice": (lambda: Net(lambda m, x: m[1](m[0](m[1](m[0](x)))), conv(3, 3), norm(3)), 2, 1),
}  # fmt: skip


def seen_by(graphs: list) -> list[str]:
    return [str(getattr(node.target, "__name__", node.target)) for graph in graphs for node in graph.graph.nodes]


def compiled(model: nn.Module, graphs: list, **options):
    """The model by its rewritten graph, operator by operator, with PyTorch's own autograd."""

    def backend(graph, inputs):
        fuse_training_norms(graph)
        graphs.append(graph)
        return graph.forward

    return torch.compile(model, backend=backend, **options)


def step(model: nn.Module, call, x: torch.Tensor) -> dict[str, torch.Tensor]:
    """Results, gradients and buffers of one training step."""
    leaf = x.detach().clone(memory_format=torch.preserve_format).requires_grad_()
    y = call(leaf)
    torch.manual_seed(7)
    y.backward(torch.randn(y.shape, dtype=torch.float64).to(y.dtype))
    found = {"result": y.detach(), "input": leaf.grad}
    found |= {name: each.grad for name, each in model.named_parameters()}
    return found | {name: each.clone() for name, each in model.named_buffers() if each.is_floating_point()}


def check(
    model: nn.Module, call, x: torch.Tensor, floor: float = 1e-6, without: str = "nothing"
) -> dict[str, torch.Tensor]:
    """Assert that a step is as near float64's as twice PyTorch's own error, names with ``without`` left out; returns
    what the step computed."""
    own, exact = copy.deepcopy(model), copy.deepcopy(model).double()
    mine = step(model, call, x)
    theirs, right = step(own, own, x), step(exact, exact, x.double())
    assert mine.keys() == right.keys()
    for name, value in right.items():
        if without in name:
            continue
        assert mine[name].dtype == theirs[name].dtype
        assert mine[name].stride() == theirs[name].stride(), name
        assert error(mine[name], value) <= 2 * error(theirs[name], value) + floor, name
    return mine


@pytest.mark.parametrize("name", STRUCTURES)
def test_a_step_is_pytorch_s_for_each_structure(name):
    build, rewritten, taken_in = STRUCTURES[name]
    torch.manual_seed(0)
    model, graphs = build(), []
    x = torch.randn(2, 3, 9, 8)
    check(model, compiled(model, graphs), x)
    names = seen_by(graphs)
    widening = names.count("normalised_pointwise")
    assert names.count("norm_numbers") + widening == rewritten
    assert names.count("normalised") + widening == rewritten - taken_in
    assert widening == (name == "residual" or name.startswith("widening"))
    assert ct.counters()["left"] == 0


@pytest.mark.parametrize("name", ["relu", "silu", "frozen", "residual", "used twice"])
def test_a_norm_in_the_gradient_of_the_input_alone(name, judge):
    """As where kernels normalise no input: forward and the weights' gradient read the activation's result."""

    judge(lambda self, plain, fused, *saved: all(each.sums for each in fused))
    build, rewritten, taken_in = STRUCTURES[name]
    torch.manual_seed(0)
    model, graphs = build(), []
    check(model, compiled(model, graphs), torch.randn(2, 3, 9, 8))
    names = seen_by(graphs)
    assert names.count("norm_numbers") == rewritten
    assert names.count("normalised") == rewritten - taken_in
    assert names.count("activated") == taken_in


WIDENING = ([conv(3, 6, 1), norm(6)], 1), ([conv(3, 3), norm(3), nn.ReLU(), conv(3, 6, 1), norm(6)], 2)


@pytest.mark.parametrize("pays", [True, False])
@pytest.mark.parametrize(("layers", "norms"), WIDENING)
def test_gradients_by_products_of_channels(layers, norms, pays, judge):
    """Behind a convolution to more channels: judged like the other parts; with a norm before it in the input's gradient
    alone; and of a gradient that is the same at every pixel, where a wrong constant shows."""

    def judged(self, plain, fused, *saved):
        return (pays or all(each.sums for each in fused)) and not any(
            each.norm and each.direction != "bwd_data" for each in fused
        )

    judge(judged)
    torch.manual_seed(0)
    model, graphs, x = copy.deepcopy(nn.Sequential(*layers)), [], torch.randn(2, 3, 9, 8)
    call = compiled(model, graphs)
    check(model, call, x)
    assert seen_by(graphs).count("normalised_pointwise") == pays
    model.zero_grad()
    (call(x) * torch.linspace(1, 2, 6).reshape(1, -1, 1, 1)).sum().backward()
    shift, last_conv = model[-1].bias.grad, model[-2].weight.grad
    torch.testing.assert_close(shift, torch.linspace(1, 2, 6) * 144)
    assert last_conv.abs().max() < 1e-4 * shift.max()


def test_what_a_widening_convolution_must_be():
    """Near misses: a stride, a padding, groups, fewer channels, another reader, an input that changes in between."""
    layers = {
        "stride": conv(3, 6, 1, stride=2), "groups": conv(3, 6, 1, groups=3), "few": conv(3, 5, 1),
        "window": conv(3, 6, 3), "padding": nn.Conv2d(3, 6, 1, padding=1), "right": conv(3, 6, 1),
    }  # fmt: skip
    counts = {}
    for name, layer in layers.items():
        graphs = []
        compiled(nn.Sequential(layer, norm(layer.out_channels)), graphs)(torch.randn(2, 3, 9, 8))
        counts[name] = seen_by(graphs).count("normalised_pointwise")
    for name, function in {
        "read": lambda m, x: m[1](u := m[0](x)) + u,
        "changed": lambda m, x: (y := x * 1, u := m[0](y), y.add_(1), m[1](u))[3],
    }.items():
        graphs = []
        compiled(Net(function, conv(3, 6, 1), norm(6)), graphs)(torch.randn(2, 3, 9, 8))
        counts[name] = seen_by(graphs).count("normalised_pointwise")
    assert {name for name, count in counts.items() if count} == {"right"}


@pytest.mark.parametrize("last", [False, True])
def test_products_of_channels_in_bfloat16(last):
    """Tensors of 16 bits have their products where channels lie last, in float32: rounded, the mean's part of them
    would hide the scale's gradient. The gradient has a mean of three deviations."""
    torch.manual_seed(0)
    model = nn.Sequential(conv(16, 16, 1), norm(16), nn.ReLU(), conv(16, 64, 1), norm(64))
    form = torch.channels_last if last else torch.contiguous_format
    model, x, graphs = model.to(memory_format=form), torch.randn(8, 16, 12, 12).to(memory_format=form), []
    exact, own, call = copy.deepcopy(model).double(), copy.deepcopy(model), compiled(model, graphs)
    if not last:
        with torch.autocast("cpu", torch.bfloat16):
            call(x)
        assert "normalised_pointwise" not in seen_by(graphs)
        return
    grad = torch.randn(8, 64, 12, 12) + 3
    exact(x.double()).backward(grad.double())
    for each in (call, own):
        with torch.autocast("cpu", torch.bfloat16):
            y = each(x)
        y.backward(grad.to(y.dtype))
    assert seen_by(graphs).count("normalised_pointwise") == 1
    for (name, mine), theirs, right in zip(model.named_parameters(), own.parameters(), exact.parameters(), strict=True):
        assert error(mine.grad, right.grad) <= 2 * error(theirs.grad, right.grad) + 2e-3, name


@pytest.mark.parametrize("last", [False, True])
def test_the_gradients_of_relu_s_readers_are_added_where_the_convolution_s_is_computed(last):
    """Two joins, of which the last one's result has one reader and stays PyTorch's."""
    torch.manual_seed(0)
    model, x, graphs = STRUCTURES["joined"][0](), torch.randn(2, 3, 9, 8), []
    if last:
        model, x = (each.to(memory_format=torch.channels_last) for each in (model, x))
    check(model, compiled(model, graphs), x)
    assert seen_by(graphs).count("rectified") == 1


def test_other_ranks_and_layouts():
    torch.manual_seed(0)
    deep = nn.Sequential(nn.Conv3d(3, 4, 2, bias=False), nn.BatchNorm3d(4), nn.ReLU(), nn.Conv3d(4, 3, 1))
    flat = nn.Sequential(nn.Conv1d(3, 4, 2, bias=False), nn.BatchNorm1d(4), nn.ReLU(), nn.Conv1d(4, 3, 1))
    last = chain(nn.ReLU()).to(memory_format=torch.channels_last)
    for model, x in (
        (deep, torch.randn(2, 3, 4, 5, 6)),
        (flat, torch.randn(2, 3, 9)),
        (last, torch.randn(2, 3, 8, 7).to(memory_format=torch.channels_last)),
    ):
        torch._dynamo.reset()  # a rank after another would make sizes symbols
        graphs = []
        check(model, compiled(model, graphs), x)
        assert "batch_norm" not in seen_by(graphs)


def test_a_bias_before_a_norm_has_a_gradient_of_rounding_errors_alone():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 8, 3), norm(8), nn.ReLU(), nn.Conv2d(8, 4, 1), norm(4))
    mine = step(model, compiled(model, []), torch.randn(2, 3, 9, 8))
    for name in ("0.bias", "3.bias"):
        assert mine[name].abs().max() < 1e-4 * mine["1.bias"].abs().max()


def test_a_mean_that_is_large_costs_no_variance():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 8, 1), norm(8), nn.ReLU(), conv(8, 4))
    model[0].bias.data += 1e3
    x = torch.randn(4, 3, 20, 20)
    model[0].bias.requires_grad_(False)
    exact = copy.deepcopy(model).double()
    compiled(model, [])(x).sum().backward()
    exact(x.double()).sum().backward()
    assert error(model[1].running_var, exact[1].running_var) < 1e-5


@pytest.mark.parametrize("size", [1, 3])
def test_one_image(size):
    torch.manual_seed(0)
    model = nn.Sequential(conv(3, 8, 1), norm(8), nn.ReLU(), conv(8, 4))
    x = torch.randn(1, 3, size, size)
    if size > 1:
        check(model, compiled(model, []), x)
    else:  # PyTorch's error says what is wrong
        with pytest.raises(Exception, match="Expected more than 1 value per channel when training"):
            compiled(model, [])(x)


def _composite() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(chain(nn.ReLU(inplace=True)), nn.ReLU(), conv(3, 3), STRUCTURES["residual"][0]())


@pytest.mark.parametrize("engine", ["operators", pytest.param("inductor", marks=pytest.mark.full)])
def test_the_back_end_trains(engine, monkeypatch):
    if engine == "inductor" and not inductor.available("cpu"):
        pytest.skip("no C++ compiler")
    monkeypatch.setattr(inductor, "available", lambda device: engine == "inductor")
    model, x = _composite(), torch.randn(2, 3, 17, 15)
    call = torch.compile(model, backend=Backend())
    first = check(model, call, x)
    counts = ct.counters()
    # A convolution with more channels of results than of input has the products of these, and one more convolution for
    # the gradient of its input.
    assert (counts["convolution"], counts["convolution_backward"], counts["left"]) == (8, 9, 0)
    for each in model.modules():
        if isinstance(each, nn.BatchNorm2d):
            assert each.num_batches_tracked == 1
    model.zero_grad()
    again = step(model, call, x)
    for name, value in first.items():
        if not name.endswith(("running_mean", "running_var")):
            assert torch.equal(again[name], value), name  # the bits are the same in every step


@pytest.mark.parametrize("momenta", [(None, None), (0.1, 0.3)])
def test_running_statistics_with_a_momentum_of_each_step(momenta):
    """Dynamo ends the graph where momentum None becomes a number, and leaves that norm to PyTorch."""
    torch.manual_seed(0)
    model = Net(lambda m, x: m[2](F.relu(m[1](m[0](x)))), conv(3, 3), norm(3), conv(3, 3))
    own, graphs, x = copy.deepcopy(model), [], torch.randn(2, 3, 9, 8)
    call = compiled(model, graphs)
    for momentum in momenta:
        model.layers[1].momentum = own.layers[1].momentum = momentum
        call(x).sum().backward()
        own(x).sum().backward()
        x = x + 1
    assert ("norm_numbers" in seen_by(graphs)) == (momenta[0] is not None)
    for name, buffer in model.named_buffers():
        torch.testing.assert_close(buffer, own.get_buffer(name))


def test_nothing_normalised_is_saved():
    """By inductor's partition, which saves what costs least."""
    graphs = []

    def recorded(graph, inputs):
        graphs.append(graph)
        return inductor.operator_by_operator(graph)

    def backend(graph, inputs):
        fuse_training_norms(graph)
        split = {"fw_compiler": recorded, "bw_compiler": inductor.operator_by_operator_compiler}
        return aot_autograd(**split, partition_fn=min_cut_rematerialization_partition)(graph, inputs)

    torch.manual_seed(0)
    model = nn.Sequential(conv(3, 8), norm(8), nn.ReLU(), conv(8, 16), norm(16), nn.ReLU(), conv(16, 4))
    torch.compile(model, backend=backend)(torch.randn(2, 3, 9, 8)).sum().backward()
    outputs = [node.meta["val"] for node in graphs[0].graph.output_node().args[0] if node is not None]
    pictures = sorted(tuple(each.shape[:2]) for each in outputs if each.ndim == 4 and each.shape[2:] == (9, 8))
    assert pictures == [(2, 3), (2, 4), (2, 8), (2, 16)]  # input, result, and what each norm reads


class _Split(Exception):
    """Ends a step once its graphs are there."""


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_no_more_is_saved_than_by_inductor(dtype, judge, monkeypatch):
    """Bytes of a ResNet that the forward pass leaves for the backward pass, each side by inductor's partition. Fewer
    where gradients read no results of widening convolutions, or no activations."""
    if not inductor.available("cpu"):
        pytest.skip("no C++ compiler")
    from torch._inductor import compile_fx

    graphs = {}

    def inner(graph, inputs, **options):
        graphs["backward" if options.get("is_backward") else "forward"] = graph

        def run(_):
            raise _Split

        run._boxed_call = True
        return run

    def split(graph, inputs):
        return compile_fx.compile_fx(graph, inputs, inner_compile=inner)

    def saved(backend) -> int:
        torch._dynamo.reset()
        with (
            torch._functorch.config.patch(force_non_lazy_backward_lowering=True),
            torch.autocast("cpu", torch.bfloat16, enabled=dtype is torch.bfloat16),
            pytest.raises(_Split),
        ):
            torch.compile(model, backend=backend)(x)
        read = {node.name for node in graphs["backward"].graph.find_nodes(op="placeholder")}
        nodes = [each for each in graphs["forward"].graph.output_node().args[0] if each is not None]
        return sum(each.meta["val"].nbytes for each in nodes if each.name in read and each.op != "placeholder")

    monkeypatch.setattr(compile_fx, "compile_fx_inner", inner)
    monkeypatch.setattr(inductor, "prepare_kernels", lambda *_, **__: None)
    form = {"memory_format": torch.channels_last}
    model = torch_zoo.ResNet((1, 2), torch_zoo._bottleneck, 4, base=8).train().to(**form)
    x = torch.randn(4, 3, 64, 64).to(**form)
    theirs = saved(split)
    # All that can be; gradients; statistics alone: no convolution has a norm, or the sums of two gradients.
    for most, pays in (
        (0.75, lambda *_: True),
        (1.01, lambda self, plain, fused, *_: all(each.sums for each in fused)),
        (1.01, lambda self, plain, fused, *_: all(each.direction == "fwd" for each in fused)),
    ):
        judge(pays)
        assert saved(Backend()) <= theirs * most


def test_planning_holds_no_pictures(monkeypatch):
    """Problems are planned side by side, while what the forward pass saved is there."""
    held = []
    monkeypatch.setattr(
        inductor.engine,
        "cached_call",
        lambda part, geometry, tensors, *_: held.append([part, *tensors[:3]]) or SimpleNamespace(prepared=None),
    )
    x, w, norm = _operands()

    def program(x, w, rows):
        y, _ = normed_convolution(x, w, None, rows, "relu", True, *GEOMETRY)
        return normed_convolution_backward(y, x, w, rows, None, None, "relu", *GEOMETRY, [True, True, True])

    graph = make_fx(program, tracing_mode="fake")(x, w, table(*norm))
    inductor.prepare_kernels(graph.graph, None, constant=False)
    assert sorted(part for part, *_ in held[-3:]) == ["data", "forward", "weights"]
    for _, x_, w_, grad in held:
        assert (x_.shape, x_.stride(), w_.shape) == (x.shape, x.stride(), w.shape)
        assert [each.untyped_storage().nbytes() for each in (x_, grad) if each is not None] in ([0], [0, 0])


def test_checkpoints_recompute():
    torch.manual_seed(0)
    inner = nn.Sequential(conv(3, 8), norm(8), nn.ReLU(), conv(8, 3))
    model = Net(lambda m, x: m[2](m[1](torch.utils.checkpoint.checkpoint(m[0], x, use_reentrant=False))),
                inner, norm(3), conv(3, 2))  # fmt: skip
    backend = Backend(options={"engine": "operators"})
    # A compiled checkpoint updates running statistics once, PyTorch's eager one twice.
    check(model, torch.compile(model, backend=backend), torch.randn(2, 3, 9, 8), without="running")


def test_without_gradients_and_in_autocast():
    torch.manual_seed(0)
    model, x = chain(nn.ReLU()), torch.randn(2, 3, 19, 18)
    own = copy.deepcopy(model)
    call = torch.compile(model, backend=Backend(options={"engine": "operators"}))
    with torch.no_grad():
        torch.testing.assert_close(call(x), own(x))
        torch.testing.assert_close(model[1].running_var, own[1].running_var)
    with torch.autocast("cpu", torch.bfloat16):
        check(model, call, x, floor=2e-3)
    assert ct.counters()["left"] == 0


def test_unknown_sizes_and_devices_without_such_solvers_leave_norms_alone(judge):
    model, graphs = chain(nn.ReLU()), []
    compiled(model, graphs, dynamic=True)(torch.randn(2, 3, 9, 8))
    torch._dynamo.reset()
    judge(None)
    compiled(model, graphs)(torch.randn(2, 3, 9, 8))  # no solver of a CPU fuses norms
    assert seen_by(graphs).count("batch_norm") == 4


@pytest.mark.parametrize("place", ["cpu", "meta"])
def test_the_gradient_of_a_maximum_is_one_kernel(place, monkeypatch):
    """Except on a CPU."""
    tables = []
    monkeypatch.setattr("torch._inductor.compile_fx.compile_fx", lambda *_, **given: tables.append(given))
    inductor.compiled(None, [torch.zeros(1, device=place)], types.SimpleNamespace(patches={}, mode=None))
    table = tables[0]["decompositions"]
    assert (table is None) == (place == "cpu")
    assert table is None or torch.ops.aten.max_pool2d_with_indices_backward.default not in table


def test_a_sum_of_a_gradient_is_its_kernel_s():
    """Also of a gradient in 16 bits, widened first; sums over other axes stay."""
    x, w, norm = _operands()
    arguments = [torch.randn(2, 4, 7, 8), x, w, table(*norm)]

    def program(grad, x, w, rows):
        data, _, _ = normed_convolution_backward(grad, x, w, rows, None, None, "relu", *GEOMETRY, [True, False, False])
        wide = torch.ops.prims.convert_element_type(data, torch.float32)
        return data, wide.sum((0, 2, 3)), data.sum((0, 1, 2))

    for dtype in (torch.float32, torch.bfloat16):
        operands = [each.to(dtype) for each in arguments[:3]] + arguments[3:]
        graph = make_fx(program, tracing_mode="fake")(*operands)
        sum_in_kernels(graph.graph)
        graph.recompile()
        assert seen_by([graph]).count("sum.dim_IntList") == 1
        for mine, right in zip(graph(*operands), program(*operands), strict=True):
            assert mine.dtype == right.dtype
            torch.testing.assert_close(mine, right)


# Selection decides.


class Solver:
    """A solver that fuses some parts, and predicts the seconds of a table by direction and whether there are parts."""

    name, serves = "fake.solver", None

    def __init__(self, fuses, seconds) -> None:
        self.fuses, self.seconds = frozenset(fuses), seconds


@pytest.mark.parametrize(
    ("fuses", "plain_s", "with_parts_s", "megabytes", "launches", "pays"),
    [
        (("norm", "sums"), 1e-3, 1e-3, 1, 0, True),
        (("norm", "sums"), 1e-3, 1.1e-3, 1000, 0, True),
        (("norm", "sums"), 1e-3, 1.1e-3, 1e-3, 0, False),
        (("norm", "sums"), 1e-3, 1.1e-3, 1e-3, 101, True),
        (("norm",), 1e-3, 1e-3, 1000, 0, False),
        ((), 1e-3, 1e-3, 1000, 0, False),
        (("norm", "sums"), None, 1e-3, 1, 0, True),
    ],
)
def test_the_judge_asks_selection(monkeypatch, judge, fuses, plain_s, with_parts_s, megabytes, launches, pays):
    judge(None)
    solver = Solver(fuses, None)
    chosen = types.SimpleNamespace(first=types.SimpleNamespace(solver=solver, config={}, math=""))
    monkeypatch.setattr(training_norms, "plugins", lambda: types.SimpleNamespace(solvers={solver.name: solver}))
    monkeypatch.setattr(training_norms, "serves", lambda solver, device: True)
    monkeypatch.setattr(training_norms.decision_store, "choices", lambda *_: chosen)
    monkeypatch.setattr(
        training_norms, "predicted", lambda solver, problem, *_: with_parts_s if problem.norm else plain_s
    )
    monkeypatch.setattr(training_norms, "rates", lambda device: types.SimpleNamespace(bandwidth=1e12, launch=1e-6))
    problem = ConvProblem(mb=2, ic=8, ih=9, iw=9, oc=8, kh=3, kw=3)
    with_parts = problem.replace(norm="relu", sums=True)
    assert FusionJudge(torch.device("cpu")).pays([problem], [with_parts], int(megabytes * 1e6), launches) == pays


# The operators.


def _operands(dtype=torch.float32):
    torch.manual_seed(0)
    x, w = torch.randn(2, 3, 7, 8, dtype=dtype), torch.randn(4, 3, 3, 3, dtype=dtype)
    return x, w, [torch.randn(3, dtype=dtype), torch.rand(3, dtype=dtype) + 0.5, torch.randn(3, dtype=dtype)]


def _convolve(x, w, bias, *norm, taken_in):
    activated_x = None if taken_in else activated(x, norm, "relu")
    return convolve((x, w, bias, activated_x), norm, "relu", True, *GEOMETRY)


def test_operators_keep_pytorch_s_rules():
    x, w, norm = _operands()
    tests = ("test_schema", "test_faketensor")
    for given in ((table(*norm), "relu", True), (None, None, True), (None, None, False)):
        torch.library.opcheck(normed_convolution, (x, w, None, *given, *GEOMETRY), test_utils=tests)
    grad = torch.randn(2, 4, 7, 8)
    for residual, read, *mask in (
        (None, None, True, True, True), (None, None, False, True, False), (x + 1, x - 1, True, True, False)
    ):  # fmt: skip
        arguments = (grad, x, w, table(*norm), residual, read, "relu", *GEOMETRY, mask)
        torch.library.opcheck(normed_convolution_backward, arguments, test_utils=tests)


def _exact(x, w, norm, grads):
    leaves = [each.detach().double().requires_grad_() for each in (x, w, *norm)]
    mean, scale, shift = (each.reshape(1, -1, 1, 1) for each in leaves[2:])
    y = F.conv2d(F.relu((leaves[0] - mean) * scale + shift), leaves[1], padding=1)
    outputs = y, *statistics(y)
    return outputs, torch.autograd.grad(outputs, leaves, [each.double() for each in grads])


def _check_operators():
    """Every way into and out of a convolution at once: input, weight, norm; result and statistics."""
    x, w, norm = _operands()
    leaves = [each.requires_grad_() for each in (x, w, *norm)]
    grads = [torch.randn(2, 4, 7, 8), torch.randn(4), torch.randn(4)]
    exact_outputs, exact = _exact(x, w, norm, grads)
    ct.reset_counters()
    for taken_in in (True, False):
        outputs = _convolve(x, w, None, *norm, taken_in=taken_in)
        gradients = torch.autograd.grad(outputs, leaves, grads)
        for mine, right in zip((*outputs, *gradients), (*exact_outputs, *exact), strict=True):
            assert error(mine, right) < 1e-5
    return ct.counters()


def test_our_engines_compute_the_operators():
    counts = _check_operators()
    assert (counts["ours"], counts["left"]) == (4, 0)


def test_the_driver_that_stands_for_cuda_s_launches_the_operators(stand_in):
    counts = _check_operators()
    assert (counts["ours"], counts["left"]) == (4, 0)
    assert "cuLaunchKernel" in stand_in.driver.names()


def test_pytorch_computes_the_operators_where_the_engine_declines():
    with ct.enable(solver="none of these"):
        counts = _check_operators()
    assert (counts["ours"], counts["left"]) == (0, 4)
