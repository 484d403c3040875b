"""convert(fuse=True): what is fused and what must not be, forms and layers, copies, compilers."""

from __future__ import annotations

import copy
import io
import threading

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed (extra: torch)")

import convdispatch as cd  # noqa: E402 (torch is asked for first)
import convdispatch.torch as ct  # noqa: E402
from convdispatch.api.errors import InvalidArgument  # noqa: E402

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
    """Depends on values, so it cannot be traced."""

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


BODIES = {
    # body: (what is fused, what is not)
    "batch norm, sum and activation": (chained, ["other", "conv + bn + add + relu"]),
    "written over the sum": (written_over, ["conv + iadd + relu_"]),
    "written over the sum with another": (shortcut, ["conv + bn + iadd + relu", "other + bn2"]),
    "no affine, a bias": (lambda m, x: F.silu(m.bn2(m.other(x))), ["other + bn2 + silu"]),
    "one layer twice": (shared, ["conv + bn", "conv + bn2"]),
    "someone else reads it": (later_reader, ["conv"]),
    "its input is written between": (written_between, ["conv"]),
    "the sum has two names": (known_twice, ["conv"]),
    "the sum is written over the other": (over_the_other, ["other", "conv"]),
    "a factor": (lambda m, x: torch.add(m.conv(x), x, alpha=2), ["conv"]),
    "added to itself": (lambda m, x: (lambda y: y + y)(m.conv(x)), ["conv"]),
    "a number is added": (lambda m, x: F.relu(m.conv(x) + 1.5), ["conv"]),
    "a size is added": (lambda m, x: m.conv(x) + x.size(0), ["conv + add"]),
    "a spread sum": (lambda m, x: F.relu6(m.conv(x) + x[:, :, :1, :1]), ["conv + add + relu6"]),
    "a sum that spreads it": (lambda m, x: torch.tanh(m.conv(x[:1]) + x), ["conv + add + tanh"]),
    "numbers": (lambda m, x: F.leaky_relu(m.conv(x), 0.3), ["conv"]),
    "of other functions": (
        lambda m, x: F.mish(m.bn2(m.other(F.gelu(m.conv(x))))),
        ["conv + gelu", "other + bn2 + mish"],
    ),
    "numbers of gelu": (lambda m, x: F.gelu(m.conv(x), approximate="tanh"), ["conv"]),
    "none of conv's": (lambda m, x: F.softshrink(m.bn(m.conv(x))), ["conv + bn"]),
    "the answer": (lambda m, x: m.conv(x), ["conv"]),
}


@pytest.mark.parametrize("name", BODIES)
def test_chains(name):
    body, expected = BODIES[name]
    model, x = ready(Net(body)), torch.randn(2, 3, 5, 6)
    made = ct.convert(model, fuse=True)
    assert list(ct.fusion(made).fused) == expected
    assert near(made.forward(x.clone()), in_double(model, x.clone()))
    assert bool(ct.counters()["left"]) == (name in ("a spread sum", "a sum that spreads it")), ct.counters()


@pytest.mark.parametrize(
    ("activation", "text"),
    [
        (nn.ReLU6(), "relu6"),
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
    assert made.conv.activation == text
    assert near(made.forward(x), in_double(model, x))


def watched(module):
    module.register_forward_hook(lambda module, inputs, y: y * 2)
    return module


@pytest.mark.parametrize(
    "layer",
    [
        nn.Sequential(nn.Conv1d(3, 4, 3, padding="same"), nn.BatchNorm1d(4), nn.ReLU()),
        nn.Sequential(nn.Conv2d(3, 6, 3, groups=3, padding_mode="reflect", padding=1), nn.BatchNorm2d(6), nn.ReLU()),
        nn.Sequential(nn.Conv3d(3, 4, 2, stride=2), nn.BatchNorm3d(4), nn.ELU()),
        nn.Sequential(nn.ConvTranspose2d(3, 4, 2, 2), nn.BatchNorm2d(4), nn.Conv2d(4, 2, 1)),
        nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4, track_running_stats=False)),
        nn.Sequential(watched(nn.Conv2d(3, 4, 1)), nn.BatchNorm2d(4), nn.Conv2d(4, 4, 1), nn.ReLU()),
        nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Conv2d(3, 4, 1)), nn.Conv2d(4, 4, 1), nn.ReLU()),
    ],
    ids=["1d", "depthwise", "3d", "transposed", "statistics", "hooks", "parametrized"],
)
def test_kinds_of_layers(layer):
    ndim = {nn.Conv1d: 1, nn.Conv3d: 3}.get(type(layer[0]), 2)
    model, x = ready(layer), torch.randn(2, 3, *[6] * ndim)
    made = ct.convert(model, fuse=True)
    convolutions = 2 if type(layer[0]) is nn.ConvTranspose2d else 1
    assert len(ct.fusion(made).fused) == convolutions
    assert near(made.forward(x), in_double(model, x))
    if ndim == 1:
        assert near(made.forward(x[0]), in_double(model, x)[0])


def test_training_mode_is_refused_and_what_cannot_be_traced_is_said():
    x = torch.randn(1, 3, 4, 4)
    with pytest.raises(InvalidArgument, match=r"model\.eval\(\)"):
        ct.convert(Net(chained), fuse=True)
    inner = nn.Sequential(nn.Conv2d(3, 3, 1), nn.BatchNorm2d(3))
    model = ready(Stepwise(lambda m, x: m.inner(x) + m.other(x), inner=inner))
    made = ct.convert(model, fuse=True)
    assert "Proxy" in ct.fusion(made).left[""] or "control flow" in ct.fusion(made).left[""]
    assert ct.fusion(made).fused == ("inner.0 + inner.1",)
    assert type(model.inner[0]) is nn.Conv2d
    assert near(made(x), in_double(model, x))
    constant = ready(Net(lambda m, x: m.conv(x) + torch.rand(1)))
    made = ct.convert(constant, fuse=True)
    assert "tensors of its own" in ct.fusion(made).left[""]
    with torch.no_grad():
        made(x)
    assert "draws random numbers" in ct.fusion(made).forms["the model, 1x3x4x4"]
    assert "conv" in dict(made.named_children())


@pytest.fixture(scope="module")
def whole():
    """A net with one form, its input and its result in float64."""
    torch.manual_seed(0)
    tail = nn.Sequential(nn.MaxPool2d(3, 2, 1), nn.Dropout(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(3, 4))
    model = ready(Net(lambda m, x: m.tail(m.relu(m.bn(m.conv(x)) + x)), tail=tail))
    x = torch.randn(2, 3, 8, 8)
    with ct.enable(solver="im2col*"), torch.inference_mode():
        made = ct.convert(model, fuse=True)
        made(x)
    return model, made, x, in_double(model, x)


def forms(model):
    return list(ct.fusion(model).forms.values())


def test_a_plain_call_runs_by_one_form(whole):
    _, made, x, expected = whole
    assert len(forms(made)) == 1, forms(made)
    assert "2 convolutions" in forms(made)[0]
    with torch.inference_mode():
        got = made(x)
        assert ct.counters()["ours"] == 2, ct.counters()  # the linear map is one too
        assert made(x.to(memory_format=torch.channels_last)).equal(got)
        assert made(x).data_ptr() != got.data_ptr()
    assert near(got, expected)


def test_calls_that_are_not_plain_run_by_layers(whole):
    _, made, x, expected = whole
    ct.reset_counters()
    by_layers = 0

    def one(y):
        nonlocal by_layers
        by_layers += 1
        assert ct.counters()["ours"] == by_layers, ct.counters()
        assert near(y, expected, 1e-4 if y.dtype == torch.bfloat16 else 1e-5)

    given = x.clone().requires_grad_()
    y = made(given)  # gradients
    y.sum().backward()
    assert given.grad.abs().sum() > 0
    ct.reset_counters()
    with torch.no_grad():
        seen = []
        handle = made.conv.register_forward_hook(lambda module, inputs, y: seen.append(y.shape))
        one(made(x))
        handle.remove()
        assert seen == [(2, 3, 8, 8)]
        dropout = made.get_submodule("tail.1").train()
        dropout.p = 0.0
        one(made(x))
        dropout.eval()
        one(torch.vmap(made.forward)(x[None])[0])
    assert len(forms(made)) == 1


def test_changed_weights_and_layers_are_seen(whole):
    model, _, x, expected = whole
    with torch.inference_mode():
        made = ct.convert(model, fuse=True)
        assert near(made(x), expected)
        with torch.inference_mode(False), torch.no_grad():
            made.tail.get_submodule("4").bias.add_(1)
        assert near(made(x), expected + 1)  # by layers, for it may change again
        assert not forms(made)
        assert near(made(x), expected + 1)
        assert len(forms(made)) == 1
        setattr(made.tail, "4", nn.Identity())
        assert near(made(x), in_double(model.tail[:4], model.relu(model.bn(model.conv(x)) + x)))


def test_copies_states_and_files(whole):
    _, made, x, expected = whole
    twin = copy.deepcopy(made)
    kept = io.BytesIO()
    torch.save(made, kept)
    kept.seek(0)
    loaded = torch.load(kept, weights_only=False)
    assert set(made.state_dict()) == {"conv.weight", "conv.bias", "tail.4.weight", "tail.4.bias"}
    for each in (twin, loaded):
        assert not forms(each)
        assert ct.fusion(each).fused == ct.fusion(made).fused
        each.load_state_dict(made.state_dict())
        assert near(each.forward(x), expected)
    assert twin.conv.weight.data_ptr() != made.conv.weight.data_ptr()


def test_compilers_and_export_take_it_whole(whole):
    _, made, x, expected = whole
    torch._dynamo.reset()
    with torch.no_grad():
        assert near(torch.compile(made, fullgraph=True, backend="aot_eager")(x), expected)
        program = torch.export.export(made, (x,))
    targets = [str(node.target) for node in program.graph.nodes]
    assert targets.count("convdispatch.fused_convolution.default") == 1
    assert not any("batch_norm" in each or "relu" in each for each in targets)
    assert near(program.module()(x), expected)


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


def test_explain_tells_of_fused_layers(whole):
    _, made, x, _ = whole
    (layer,) = ct.explain(made, x).layers
    assert (layer.name, layer.solver) == ("conv", "im2col")
    assert "relu" in layer.problem
    assert max(layer.error, layer.torch_error) < 1e-5
    assert len(forms(made)) == 1


def test_a_form_or_its_reason_for_each_shape(monkeypatch):
    from convdispatch.torch.fusion import forms as module

    monkeypatch.setattr(module, "FORMS", 1)
    model = ready(Net(lambda m, x: torch.cumsum(m.bn(m.conv(x)), 1)))
    made, x = ct.convert(model, fuse=True), torch.randn(1, 3, 4, 4)
    with torch.inference_mode():
        assert near(made(x), in_double(model, x))
        assert near(made(x[..., :3]), in_double(model, x[..., :3]))
    assert ct.fusion(made).forms == {"the model, 1x3x4x4": "aten.cumsum.default has no counterpart here"}


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
def test_other_operators_in_either_layout(layout):
    from convdispatch import inference, runtime
    from convdispatch.torch.fusion.aten import net_of

    model, x = ready(Varied()), torch.randn(2, 3, 7, 6)
    made = ct.convert(model, fuse=True)
    net = net_of(lambda given: made.forward(given), [x], runtime.queue(), "float32")
    with cd.policy(solver="im2col*"):
        assert near(inference.build(net, x.shape, layout=layout)(x)[0], in_double(model, x))
