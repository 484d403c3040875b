"""torch.ops.convdispatch.convolution: PyTorch's checks of operators, gradients twice, compilers, export, autocast."""

import copy
import pickle

import pytest
import torch
from functorch.compile import make_boxed_func
from torch._dynamo.backends.common import aot_autograd

import convdispatch.torch as ct
from convdispatch.torch.graph import inductor

F = torch.nn.functional
operator = torch.ops.convdispatch.convolution.default
backward = torch.ops.convdispatch.convolution_backward.default
GEOMETRIES = {
    "2d": ((2, 4, 6, 5), (4, 4, 3, 3), ([2, 1], [1, 1], [1, 1], False, [0, 0], 1)),
    "groups": ((1, 4, 6, 6), (4, 2, 3, 3), ([1, 1], [0, 0], [2, 2], False, [0, 0], 2)),
    "1d": ((2, 3, 7), (4, 3, 3), ([1], [1], [1], False, [0], 1)),
    "3d": ((1, 2, 4, 4, 4), (2, 2, 2, 2, 2), ([1, 1, 1], [0, 0, 0], [1, 1, 1], False, [0, 0, 0], 1)),
    "transposed": ((2, 4, 4, 4), (4, 3, 3, 3), ([2, 2], [1, 1], [1, 1], True, [1, 1], 1)),
}


@pytest.fixture(autouse=True)
def counted():
    torch.manual_seed(0)
    ct.reset_counters()
    torch._dynamo.reset()
    yield
    ct.disable()


def operands(name, dtype=torch.float32, grad=True):
    shape, kernel, geometry = GEOMETRIES[name]
    channels = kernel[1] * geometry[-1] if geometry[3] else kernel[0]
    tensors = [torch.randn(each, dtype=dtype, requires_grad=grad) for each in (shape, kernel, (channels,))]
    return (*tensors, *geometry)


@pytest.mark.parametrize("name", GEOMETRIES)
def test_pytorchs_checks_of_an_operator(name):
    arguments = operands(name)
    assert set(torch.library.opcheck(operator, arguments).values()) == {"SUCCESS"}
    if name in ("2d", "transposed"):
        grad = operator(*arguments).detach()
        rest = (arguments[0], arguments[1], [arguments[2].shape[0]], *arguments[3:])
        for mask in ([True, True, True], [False, True, False]):
            assert set(torch.library.opcheck(backward, (grad, *rest, mask)).values()) == {"SUCCESS"}
    assert ct.counters()["ours"]
    assert not ct.counters()["left"], ct.counters()


@pytest.mark.parametrize("name", GEOMETRIES)
def test_gradients_and_gradients_of_gradients(name):
    x, w, b, *geometry = operands(name, torch.float64)
    assert torch.autograd.gradcheck(lambda *t: operator(*t, *geometry), (x, w, b), fast_mode=True)
    assert torch.autograd.gradgradcheck(lambda *t: operator(*t, *geometry), (x, w, b), fast_mode=True)
    assert ct.counters()["ours"]
    assert not ct.counters()["left"], ct.counters()


def test_enabled_convolutions_are_twice_differentiable_too():
    x, w, b, *geometry = operands("2d", torch.float64)
    with ct.enable():
        function = lambda *t: torch.convolution(*t, *geometry)  # noqa: E731
        assert torch.autograd.gradcheck(function, (x, w, b), fast_mode=True)
        assert torch.autograd.gradgradcheck(function, (x, w, b), fast_mode=True)
    assert ct.counters()["ours"]
    assert not ct.counters()["left"], ct.counters()


@pytest.mark.parametrize("kind", ["conv", "conv_transpose"])
@pytest.mark.parametrize("ndim", [1, 2, 3])
def test_functions_have_pytorchs_signatures(kind, ndim):
    name = f"{kind}{ndim}d"
    ours, theirs = getattr(ct, name), getattr(F, name)
    x, w, b = torch.randn(2, 4, *[6] * ndim), torch.randn(4, 2, *[3] * ndim), torch.randn(4)
    if kind == "conv":
        calls = [((x, w, b, 2, 1, 1, 2), {}), ((x[0], w, None), {"groups": 2, "padding": "same"})]
        calls += [((x, torch.randn(4, 2, *[4] * ndim)), {"groups": 2, "padding": "same"})]
        calls += [((x, w), {"groups": 2, "padding": "valid"})]
    else:
        calls = [((x, w, b, 2, 1, 1, 2, 1), {}), ((x[0], w, None), {"groups": 2, "dilation": 2})]
    for arguments, options in calls:
        torch.testing.assert_close(ours(*arguments, **options), theirs(*arguments, **options), atol=1e-5, rtol=1e-5)
    assert (ct.counters()["ours"], ct.counters()["left"]) == (len(calls), 0)
    with pytest.raises(RuntimeError, match="input must have"):
        ours(x[None, None], w)
    with pytest.raises(RuntimeError, match="takes 2 channels a group, but input" if kind == "conv" else "channels"):
        ours(x, w[:, :, ...] if kind == "conv" else w[:3])


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first = torch.nn.Conv2d(3, 8, 3, padding="same", padding_mode="reflect")
        self.second = torch.nn.Conv2d(8, 8, 3, stride=2, groups=2)
        self.third = torch.nn.ConvTranspose2d(8, 4, 2, stride=2)
        self.last = torch.nn.Linear(4, 5)

    def forward(self, x):
        x = self.third(self.second(self.first(x).relu()).relu())
        return self.last(x.mean((2, 3)))


def trained(model, x):
    model.zero_grad()
    y = model(x)
    y.square().sum().backward()
    return y.detach(), *(p.grad.clone() for p in model.parameters())


def assert_close(got, expected):
    for mine, theirs in zip(got, expected, strict=True):
        torch.testing.assert_close(mine, theirs, atol=1e-4, rtol=1e-4)


def test_convert_keeps_weights_names_and_hooks():
    model, x = Net(), torch.randn(2, 3, 12, 12)
    expected, names = trained(model, x), list(model.state_dict())
    seen = []
    model.second.register_forward_hook(lambda *_: seen.append(1))
    weight = model.second.weight
    converted = ct.convert(model)
    assert converted.second.weight is weight
    assert list(converted.state_dict()) == names
    assert_close(trained(converted, x), expected)
    assert seen == [1]
    model.second._forward_hooks.clear()
    for other in (copy.deepcopy(converted), pickle.loads(pickle.dumps(converted))):
        assert_close(trained(other, x), expected)
    assert (ct.counters()["ours"], ct.counters()["left"]) == (18, 0), ct.counters()


def test_layers_of_other_classes_are_left_as_they_are():
    class Scaled(torch.nn.Conv2d):
        def forward(self, x):
            return 2 * super().forward(x)

    model = torch.nn.Sequential(Scaled(3, 4, 3), torch.nn.Conv2d(4, 4, 1))
    ct.convert(model)
    assert type(model[0]) is Scaled
    assert type(model[1]) is not torch.nn.Conv2d


def pairs():
    """Convolutions with what follows them: taken in, and not."""
    nn = torch.nn
    inner = nn.Sequential(nn.Conv2d(8, 8, 3, groups=2, padding=1, padding_mode="circular"), nn.Tanh())
    return nn.Sequential(
        *(nn.Conv2d(3, 8, 3, padding="same"), nn.ReLU(inplace=True), nn.Conv2d(8, 8, 1, bias=False)),
        *(nn.LeakyReLU(0.3), inner, nn.Conv2d(8, 8, 1), nn.SiLU(), nn.Conv2d(8, 8, 1), nn.Hardswish()),
        *(nn.Conv2d(8, 8, 1), nn.Hardsigmoid(), nn.Conv2d(8, 8, 1), nn.Conv2d(8, 8, 1)),
        *(nn.LeakyReLU(-0.3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.ReLU(), nn.Linear(72, 4)),
    )


FUSED = torch.ops.convdispatch.fused_convolution.default


class Counted(torch.utils._python_dispatch.TorchDispatchMode):
    """How many fused and plain convolutions ran."""

    def __init__(self):
        super().__init__()
        self.fused = self.plain = 0

    def __torch_dispatch__(self, function, types, arguments=(), named=None):
        self.fused += function is FUSED
        self.plain += function is operator
        return function(*arguments, **(named or {}))


def test_sequences_take_in_activations_in_training(monkeypatch):
    monkeypatch.setattr(inductor, "available", lambda device: False)  # it would compile the converted model in vain
    model, x = pairs(), torch.randn(2, 3, 3, 3)
    expected, names = trained(copy.deepcopy(model), x), list(model.state_dict())
    layers = [type(each) for each in model]
    made = ct.convert(copy.deepcopy(model), fuse="training")
    assert list(made.state_dict()) == names
    assert all(isinstance(mine, theirs) for mine, theirs in zip(made, layers, strict=True))
    for each in (made, copy.deepcopy(made), pickle.loads(pickle.dumps(made)), ct.convert(made, fuse="training")):
        with Counted() as seen:
            each(x)
        assert (seen.fused, seen.plain) == (4, 4)
        each.load_state_dict(model.state_dict())
        assert_close(trained(each, x), expected)
    torch._dynamo.reset()
    made.load_state_dict(model.state_dict())
    assert_close(trained(torch.compile(made, fullgraph=True, backend="aot_eager"), x), expected)
    assert not ct.counters()["left"]
    with pytest.raises(ValueError, match="fuse must be False, True or 'training', got 'all'"):
        ct.convert(model, fuse="all")
    assert type(model[0]) is torch.nn.Conv2d
    inference = ct.convert(made.eval(), fuse=True)
    with torch.no_grad():
        torch.testing.assert_close(inference(x), made(x), atol=1e-4, rtol=1e-4)
        torch.testing.assert_close(inference.forward(x), made(x), atol=1e-4, rtol=1e-4)


def test_watched_layers_of_a_sequence_run_one_by_one():
    model, x = ct.convert(pairs(), fuse="training"), torch.randn(2, 3, 3, 3)
    seen = []
    handles = [
        model[0].register_forward_hook(lambda module, inputs, y: seen.append(bool((y < 0).any()))),
        model[3].register_full_backward_pre_hook(lambda module, gradients: seen.append(len(gradients))),
    ]
    with Counted() as calls:
        model(x).sum().backward()
    assert (calls.fused, calls.plain) == (2, 6)
    assert seen == [True, 1]
    for handle in handles:
        handle.remove()
    with Counted() as calls:
        assert (model[:1](x) < 0).any(), "a layer by itself has no activation"
        model[:2](x)
    assert (calls.fused, calls.plain) == (1, 1)
    everywhere = torch.nn.modules.module.register_module_forward_hook(lambda module, inputs, y: None)
    with Counted() as calls:
        model(x)
    everywhere.remove()
    assert (calls.fused, calls.plain) == (0, 8)


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("entry", ["convert", "enable"])
def test_compiled_models(backend, entry):
    model, x = Net(), torch.randn(2, 3, 12, 12)
    expected = trained(model, x)
    if entry == "convert":
        ct.convert(model)
    else:
        ct.enable()
    compiled = torch.compile(model, fullgraph=True, backend=backend)
    assert_close(trained(compiled, x), expected)
    assert (ct.counters()["ours"], ct.counters()["left"]) == (6, 0), ct.counters()
    ct.disable()
    assert_close(trained(compiled, x), expected)


def test_a_compiler_gets_a_bias_gradient_as_a_plain_sum():
    graphs = []

    def seen(graph, inputs):
        graphs.append(graph.graph)
        return make_boxed_func(graph.forward)

    model, x = Net(), torch.randn(2, 3, 12, 12)
    expected = trained(model, x)
    compiler = aot_autograd(fw_compiler=seen, bw_compiler=seen)
    compiled = torch.compile(ct.convert(model), fullgraph=True, backend=compiler)
    assert_close(trained(compiled, x), expected)
    calls = [node for node in graphs[1].nodes if node.target is backward]
    assert [list(node.args[-1]) for node in calls] == [[True, True, False], [True, True, False], [False, True, False]]
    gradients = {node.args[0] for node in calls}
    sums = [node for node in graphs[1].nodes if node.target is torch.ops.aten.sum.dim_IntList]
    assert sum(node.args[0] in gradients and list(node.args[1]) == [0, 2, 3] for node in sums) == 3
    assert (ct.counters()["ours"], ct.counters()["left"]) == (6, 0), ct.counters()


def test_exported_models_and_other_batch_sizes():
    model = ct.convert(Net()).eval()
    batch = torch.export.Dim("batch", min=1, max=64)
    program = torch.export.export(model, (torch.randn(2, 3, 12, 12),), dynamic_shapes={"x": {0: batch}})
    names = [node.target for node in program.graph.nodes if node.op == "call_function"]
    assert names.count(operator) == 3
    x = torch.randn(5, 3, 12, 12)
    torch.testing.assert_close(program.module()(x), model(x))
    assert not ct.counters()["left"]


def test_autocast_as_pytorchs():
    model, x = Net(), torch.randn(2, 3, 12, 12)
    with torch.autocast("cpu", torch.bfloat16):
        expected = model(x)
        with ct.enable():
            enabled = model(x)
        converted = ct.convert(model)(x)
    assert expected.dtype == enabled.dtype == converted.dtype == torch.bfloat16
    torch.testing.assert_close(enabled, expected, atol=3e-2, rtol=3e-2)
    torch.testing.assert_close(converted, expected, atol=3e-2, rtol=3e-2)
    with torch.autocast("cpu", torch.bfloat16):
        y = ct.conv2d(torch.randn(1, 3, 5, 5, dtype=torch.float64), torch.randn(2, 3, 3, 3, dtype=torch.float64))
    assert y.dtype == torch.float64
    assert (ct.counters()["ours"], ct.counters()["left"]) == (7, 0)


def test_what_no_engine_does_is_pytorchs_here_too():
    x, w = torch.randint(0, 9, (1, 2, 5, 5)), torch.randint(0, 9, (2, 2, 3, 3))
    expected = F.conv2d(x, w)
    for enabled in (False, True):
        if enabled:
            ct.enable()
        assert torch.equal(ct.conv2d(x, w), expected)
    assert (ct.counters()["ours"], ct.counters()["left"]) == (0, 2)


@pytest.mark.parametrize("ways", [{}, {"fuse": "training"}, {"fuse": True}], ids=str)
def test_complex_layers_are_converted(ways):
    layers = [torch.nn.Conv2d(3, 4, 3, padding=1), torch.nn.ConvTranspose2d(4, 2, 3, stride=2, bias=False)]
    model = torch.nn.Sequential(*layers).to(torch.complex64).eval()
    x = torch.randn(2, 3, 6, 6, dtype=torch.complex64, requires_grad=True)
    wanted = model(x.conj())
    (slope,) = torch.autograd.grad(wanted.abs().sum(), x)
    got = ct.convert(model, **ways)(x.conj())
    torch.testing.assert_close(got, wanted)
    torch.testing.assert_close(torch.autograd.grad(got.abs().sum(), x)[0], slope)


def test_an_output_padding_that_pytorch_refuses_is_refused():
    x, w = torch.randn(1, 3, 5, 5), torch.randn(3, 2, 3, 3)
    with ct.enable():
        for conv_transpose in (F.conv_transpose2d, ct.conv_transpose2d):
            for stride, dilation, extra in ((1, 1, 1), (2, 1, (0, 2))):
                with pytest.raises(RuntimeError, match="smaller than the stride or the dilation, got"):
                    conv_transpose(x, w, stride=stride, dilation=dilation, output_padding=extra)
            wanted = F.conv_transpose2d(x.double(), w.double(), dilation=3, output_padding=2)
            torch.testing.assert_close(conv_transpose(x, w, dilation=3, output_padding=2), wanted.float())
