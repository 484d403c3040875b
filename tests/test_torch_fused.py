"""convert(fuse=True): what is fused and what must not be, forms and layers, copies, compilers."""

from __future__ import annotations

import copy
import io
import pickle
import threading

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed (extra: torch)")

from torch_checks import forms, layers, programs  # noqa: E402 (torch is asked for first)

import convdispatch.torch as ct  # noqa: E402
from convdispatch.api.errors import InvalidArgument  # noqa: E402

pytestmark = pytest.mark.usefixtures("without_compiler")
nn, F = torch.nn, torch.nn.functional


@pytest.fixture(autouse=True)
def counted():
    torch.manual_seed(0)
    ct.reset_counters()
    with ct.enable(solver="im2col*"):  # one solver: few kernels to compile
        yield


class Net(nn.Module):
    """Two 3x3 layers with what follows them written as ``body(self, x)``."""

    def __init__(self, body, **more):
        super().__init__()
        self.conv, self.other = nn.Conv2d(3, 3, 3, padding=1, bias=False), nn.Conv2d(3, 3, 3, padding=1)
        self.bn, self.bn2 = nn.BatchNorm2d(3), nn.BatchNorm2d(3, affine=False)
        self.relu, self.body = nn.ReLU(inplace=True), [body]
        for name, module in more.items():
            setattr(self, name, module)

    def forward(self, x):
        return self.body[0](self, x)


class Stepwise(Net):
    """Depends on values, so it is captured in several graphs."""

    def forward(self, x):
        return super().forward(x) if x.sum() > -1e30 else x


def ready(model):
    """With statistics that are no identity, in eval mode."""
    for module in model.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm) and module.running_mean is not None:
            module.running_mean.normal_()
            module.running_var.uniform_(0.5, 2)
            if module.affine:
                nn.init.uniform_(module.weight, 0.5, 2)
                nn.init.normal_(module.bias)
    return model.eval()


def near(got, expected, limit=1e-5):
    return got.shape == expected.shape and float((got.detach().double() - expected).norm() / expected.norm()) <= limit


def in_double(model, x):
    with torch.no_grad():
        return copy.deepcopy(model).double()(x.double())


def chained(m, x):
    y = m.other(x)
    return m.relu(y + m.bn(m.conv(x)))


def later_reader(m, x):
    y = m.conv(x)
    return m.bn(y) + y


def written_between(m, x):
    y = m.conv(x)
    x = F.relu_(x)
    return y + x


def known_twice(m, x):
    y = z = m.conv(x)
    y += x
    return y * z


def over_the_other(m, x):
    z = m.other(x)
    y = z.add_(m.conv(x))
    return y * z


def written_over(m, x):
    y = m.conv(x)
    y += x
    return torch.relu_(y)


def shortcut(m, x):
    y, z = m.bn(m.conv(x)), m.bn2(m.other(x))  # as torchvision's ResNets
    y += z
    return m.relu(y)


def shared(m, x):
    return m.bn2(m.conv(m.bn(m.conv(x))))


ALONE, RELU = "convolution", "convolution + relu"
BODIES = {
    # body: the operations of its form
    "batch norm, sum and activation": (chained, [ALONE, RELU]),
    "written over the sum": (written_over, [RELU]),
    "written over the sum with another": (shortcut, [ALONE, RELU]),
    "no affine, a bias": (lambda m, x: F.silu(m.bn2(m.other(x))), ["convolution + silu"]),
    "one layer twice": (shared, [ALONE, ALONE]),
    "someone else reads it": (later_reader, [ALONE, "apply"]),
    "its input is written between": (written_between, ["activate", ALONE]),
    "the sum has two names": (known_twice, [ALONE, "apply"]),
    "the sum is written over the other": (over_the_other, [ALONE, ALONE, "apply"]),
    "a factor": (lambda m, x: torch.add(m.conv(x), x, alpha=2), [ALONE, "apply"]),
    "added to itself": (lambda m, x: (lambda y: y + y)(m.conv(x)), [ALONE, "apply"]),
    "a number is added": (lambda m, x: F.relu(m.conv(x) + 1.5), [ALONE, "apply"]),
    "a size is added": (lambda m, x: m.conv(x) + x.size(0), [ALONE, "apply"]),
    "a spread sum": (lambda m, x: F.relu6(m.conv(x) + x[:, :, :1, :1]), [ALONE, "apply"]),
    "a sum that spreads it": (lambda m, x: torch.tanh(m.conv(x[:1]) + x), [ALONE, "apply"]),
    "numbers": (lambda m, x: F.leaky_relu(m.conv(x), 0.3), ["convolution + leaky_relu(0.3)"]),
    "of other functions": (
        lambda m, x: F.mish(m.bn2(m.other(F.gelu(m.conv(x))))),
        ["convolution + gelu", "convolution + mish"],
    ),
    "numbers of gelu": (lambda m, x: F.gelu(m.conv(x), approximate="tanh"), [ALONE, "apply"]),
    "none of conv's": (lambda m, x: F.softshrink(m.bn(m.conv(x))), "aten.gt.Scalar has no counterpart here"),
    "the result": (lambda m, x: m.conv(x), [ALONE]),
}


@pytest.mark.parametrize("name", BODIES)
def test_chains(name):
    body, expected = BODIES[name]
    model, x = ready(Net(body)), torch.randn(2, 3, 5, 6)
    made = ct.convert(model, fuse=True)
    with torch.no_grad():
        mine, theirs = x.clone(), x.clone()
        assert near(made(mine), in_double(model, x.clone()))
        model(theirs)
    assert torch.equal(mine, theirs), "what the model writes to its input"
    assert (forms(made)[0] if isinstance(expected, str) else layers(made)) == expected
    assert near(made.forward(x.clone()), in_double(model, x.clone())), "layer by layer"
    assert not ct.counters()["left"], ct.counters()


@pytest.mark.parametrize(
    ("activation", "text"),
    [
        (nn.ReLU6(), "clip(0.0, 6.0)"),
        (nn.Hardtanh(-0.5, 2), "clip(-0.5, 2.0)"),
        (nn.LeakyReLU(0.2), "leaky_relu(0.2)"),
        (nn.ELU(0.7), "elu(0.7)"),
        (nn.Sigmoid(), "sigmoid"),
        (nn.SiLU(inplace=True), "silu"),
        (nn.Tanh(), "tanh"),
        (nn.Hardsigmoid(), "hardsigmoid"),
        (nn.Hardswish(), "hardswish"),
        (nn.GELU(), "gelu"),
        (nn.GELU("tanh"), None),
        (nn.Mish(), "mish"),
        (nn.Softplus(), "softplus"),
        (nn.Softplus(2), None),
        (nn.Softshrink(), None),
    ],
)
def test_activations(activation, text):
    model, x = ready(Net(lambda m, x: m.after(m.conv(x)), after=activation)), torch.randn(2, 3, 5, 6)
    made = ct.convert(model, fuse=True)
    with torch.no_grad():
        assert near(made(x), in_double(model, x))
    if text is not None:
        assert layers(made) == [f"convolution + {text}"]


def watched(module):
    module.register_forward_hook(lambda module, inputs, y: y * 2)
    return module


KINDS = {
    "1d": (nn.Sequential(nn.Conv1d(3, 4, 3, padding="same"), nn.BatchNorm1d(4), nn.ReLU()), [RELU]),
    "depthwise": (
        nn.Sequential(nn.Conv2d(3, 6, 3, groups=3, padding_mode="reflect", padding=1), nn.BatchNorm2d(6), nn.ReLU()),
        ["sample", RELU],
    ),
    "3d": (nn.Sequential(nn.Conv3d(3, 4, 2, stride=2), nn.BatchNorm3d(4), nn.ELU()), ["convolution + elu(1.0)"]),
    "transposed": (
        nn.Sequential(nn.ConvTranspose2d(3, 4, 2, 2), nn.BatchNorm2d(4), nn.Conv2d(4, 2, 1)),
        ["transposed_convolution", ALONE],
    ),
    "statistics": (nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4, track_running_stats=False)), None),
    "hooks": (
        nn.Sequential(watched(nn.Conv2d(3, 4, 1)), nn.BatchNorm2d(4), nn.Conv2d(4, 4, 1), nn.ReLU()),
        [ALONE, RELU],
    ),
    "parametrized": (
        nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Conv2d(3, 4, 1)), nn.Conv2d(4, 4, 1), nn.ReLU()),
        [ALONE, RELU],
    ),
}


@pytest.mark.parametrize("name", KINDS)
def test_kinds_of_layers(name):
    layer, expected = KINDS[name]
    ndim = {nn.Conv1d: 1, nn.Conv3d: 3}.get(type(layer[0]), 2)
    model, x = ready(layer), torch.randn(2, 3, *[6] * ndim)
    made = ct.convert(model, fuse=True)
    with torch.no_grad():
        assert near(made(x), in_double(model, x))
        if expected is not None:
            assert layers(made) == expected
        if ndim == 1:
            assert near(made(x[0]), in_double(model, x)[0])
    assert near(made(x), in_double(model, x)), "a call with gradients on"
    assert near(made.forward(x), in_double(model, x))


def test_training_mode_is_refused_and_what_breaks_graphs_is_said():
    x = torch.randn(1, 3, 4, 4)
    with pytest.raises(InvalidArgument, match=r"model\.eval\(\)"):
        ct.convert(Net(chained), fuse=True)
    inner = nn.Sequential(nn.Conv2d(3, 3, 1), nn.BatchNorm2d(3))
    model = ready(Stepwise(lambda m, x: m.inner(x) + m.other(x), inner=inner))
    made = ct.convert(model, fuse=True)
    assert str(ct.fusion(made)) == "no call was compiled yet"
    with torch.no_grad():
        assert near(made(x), in_double(model, x))
    assert len(ct.fusion(made).breaks) == 1
    assert "test_torch_fused.py:" in ct.fusion(made).breaks[0]
    assert "graph break: " in str(ct.fusion(made))
    assert "2 convolutions" in forms(made)[1]
    assert type(model.inner[0]) is nn.Conv2d
    drawing = ready(Net(lambda m, x: m.conv(x) + torch.rand(1)))
    made = ct.convert(drawing, fuse=True)
    with torch.no_grad():
        made(x)
    assert "aten.rand.default has no counterpart here" in forms(made)[0]
    assert "conv" in dict(made.named_children())


class Tailed(Net):
    """A class that a file can name, and a body without a closure."""

    def __init__(self, tail):
        super().__init__(None, tail=tail)
        self.body = None

    def forward(self, x):
        return self.tail(self.relu(self.bn(self.conv(x)) + x))


@pytest.fixture(scope="module")
def whole():
    """A net with one form, its input and its result in float64."""
    torch.manual_seed(0)
    tail = nn.Sequential(nn.MaxPool2d(3, 2, 1), nn.Dropout(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(3, 4))
    model = ready(Tailed(tail))
    x = torch.randn(2, 3, 8, 8)
    with ct.enable(solver="im2col*"), torch.inference_mode():
        made = ct.convert(model, fuse=True)
        made(x)
    return model, made, x, in_double(model, x)


def test_a_plain_call_runs_by_one_form(whole):
    _, made, x, expected = whole
    assert layers(made) == [RELU, "max_pool", "mean", "linear"]
    with torch.inference_mode():
        got = made(x)
        assert ct.counters()["ours"] == 2, ct.counters()  # the linear map is one too
        assert made(x.to(memory_format=torch.channels_last)).equal(got)
        assert made(x).data_ptr() != got.data_ptr()
    assert near(got, expected)


def test_calls_that_are_not_plain_inference(whole):
    _, made, x, expected = whole
    ct.reset_counters()
    before = len(forms(made))
    given = x.clone().requires_grad_()
    y = made(given)  # gradients
    assert near(y, expected)
    y.sum().backward()
    assert given.grad.abs().sum() > 0
    assert ct.counters()["convolution_backward"] == 1
    assert len(forms(made)) == before
    with torch.no_grad():
        seen = []
        handle = made.conv.register_forward_hook(lambda module, inputs, y: seen.append(y.shape))
        assert near(made(x), expected)
        handle.remove()
        assert seen == [(2, 3, 8, 8)]
        assert near(made(x), expected)
        assert len(seen) == 1
        dropout = made.get_submodule("tail.1").train()
        dropout.p = 0.0
        assert near(made(x), expected)
        dropout.p = 1.0
        assert near(made(x), made.tail[4].bias.double().expand(2, -1))
        dropout.eval()
        assert near(made(x), expected)
        assert near(torch.vmap(made.forward)(x[None])[0], expected)
        assert near(torch.vmap(made)(x[None])[0], expected)
        with torch.autocast("cpu"):
            assert near(made(x), expected, 2e-2)
            assert made(x).dtype is torch.bfloat16
        assert made(x).dtype is torch.float32
    primal, tangent = torch.func.jvp(made, (x,), (x,))
    theirs = torch.func.jvp(whole[0], (x,), (x,))
    assert near(primal, expected)
    assert near(tangent, theirs[1].detach().double())


def test_changed_weights_and_layers_are_seen(whole):
    model, _, x, expected = whole
    with torch.inference_mode():
        made = ct.convert(model, fuse=True)
        assert near(made(x), expected)
        with torch.inference_mode(False), torch.no_grad():
            made.tail.get_submodule("4").bias.add_(1)
        assert near(made(x), expected + 1)  # operator by operator, for it may change again
        assert not forms(made)
        assert near(made(x), expected + 1)
        assert len(forms(made)) == 1
        setattr(made.tail, "4", nn.Identity())
        assert near(made(x), in_double(model.tail[:4], model.relu(model.bn(model.conv(x)) + x)))


def test_copies_states_and_files(whole):
    model, made, x, expected = whole
    twin = copy.deepcopy(made)
    held = io.BytesIO()
    torch.save(made, held)
    held.seek(0)
    loaded = torch.load(held, weights_only=False)
    assert list(made.state_dict()) == list(model.state_dict())
    for each in (twin, loaded, pickle.loads(pickle.dumps(made))):
        assert type(each).__name__ == "Tailed"
        assert isinstance(each, Tailed)
        assert not forms(each)
        each.load_state_dict(made.state_dict())
        with torch.no_grad():
            assert near(each(x), expected)
        assert layers(each) == layers(made)
        assert near(each.forward(x), expected)
        assert not any(p.requires_grad for p in each.parameters())
    assert twin.conv.weight.data_ptr() != made.conv.weight.data_ptr()


def test_compilers_and_export_take_it_whole(whole):
    model, made, x, expected = whole
    with torch.no_grad():
        assert near(torch.compile(made, fullgraph=True, backend="aot_eager")(x), expected)
        assert near(torch.compile(nn.Sequential(made, nn.ReLU()), fullgraph=True, backend="aot_eager")(x), expected.relu())
        program = torch.export.export(made, (x,))
        assert near(torch.jit.trace(made, x)(x), expected)
    targets = [str(node.target) for node in program.graph.nodes]
    assert targets.count("convdispatch.convolution.default") == 1
    assert near(program.module()(x), expected)
    with torch.no_grad():
        again = ct.convert(program, fuse=True)
        assert near(again(x), expected)
        assert layers(again) == layers(made)
        assert near(ct.convert(made, fuse=True)(x), expected)


def test_threads_share_a_form(whole):
    _, made, x, _ = whole
    found, inputs = {}, [x * (i + 1) for i in range(4)]

    def work(i):
        with torch.inference_mode():
            found[i] = [made(inputs[i]) for _ in range(20)]

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    with torch.inference_mode():
        assert all(all(y.equal(made(inputs[i])) for y in found[i]) for i in range(4))


def test_threads_compile_a_model_together():
    model, x = ready(Net(chained)), torch.randn(2, 3, 5, 6)
    made, expected, found = ct.convert(model, fuse=True), in_double(model, x), []

    def work():
        with torch.no_grad():
            found.append(near(made(x), expected))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert found == [True] * 4


def test_explain_tells_of_fused_models(whole):
    _, made, x, _ = whole
    found = ct.explain(made, x).layers
    assert [(layer.name, layer.solver) for layer in found] == [("conv", "im2col")]
    assert max(found[0].error, found[0].torch_error) < 1e-5


def test_a_form_or_its_reason_for_each_shape(monkeypatch):
    from convdispatch.torch.graph import forms as module

    monkeypatch.setattr(module, "MAX_FORMS", 1)
    model = ready(Net(lambda m, x: torch.cumsum(m.bn(m.conv(x)), 1)))
    made, x = ct.convert(model, fuse=True), torch.randn(1, 3, 4, 4)
    with torch.inference_mode():
        assert near(made(x), in_double(model, x))
        assert list(ct.fusion(made).forms) == ["the model, 1x3x4x4"]
        assert "aten.cumsum.default has no counterpart here" in forms(made)[0]
        assert near(made(x[..., :3]), in_double(model, x[..., :3]))
    assert len(made._compiled_state.backend.graphs[-1].descriptions()) == 1


class Varied(nn.Module):
    """Operators that stand between convolutions in well-known nets."""

    def __init__(self):
        super().__init__()
        self.stem, self.norm = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.squeeze, self.excite, self.last = nn.Conv2d(8, 2, 1), nn.Conv2d(2, 8, 1), nn.Conv2d(16, 4, 1)

    def forward(self, x):
        y = F.hardswish(self.norm(F.gelu(self.stem(x))))
        b, c, h, w = y.shape
        y = y.view(b, 2, c // 2, h, w).transpose(1, 2).contiguous().view(b, c, h, w)
        gate = F.hardsigmoid(self.excite(F.relu(self.squeeze(F.adaptive_avg_pool2d(y, 1)))))
        y = torch.cat([y * gate, F.max_pool2d(y, 3, 1, 1) - y / 2], 1)
        return torch.softmax(self.last(F.avg_pool2d(y, 2, ceil_mode=True)), 1).mean((2, 3))


@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
def test_other_operators_in_either_layout(layout, monkeypatch):
    from convdispatch import inference

    build = inference.build
    monkeypatch.setattr(inference, "build", lambda *given, **named: build(*given, **named | {"layout": layout}))
    model, x = ready(Varied()), torch.randn(2, 3, 7, 6)
    made = ct.convert(model, fuse=True)
    with torch.no_grad():
        assert near(made(x), in_double(model, x))
    assert [program.layout for program in programs(made)] == [layout]
