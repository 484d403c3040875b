"""convert(fuse=True): what is fused and what must not be, forms and layers, copies, compilers."""

from __future__ import annotations

import copy

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed (extra: torch)")

from torch_checks import forms, layers  # noqa: E402 (torch is asked for first)

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
    "a number is added": (lambda m, x: F.relu(m.conv(x) + 1.5), [RELU]),
    "a size is added": (lambda m, x: m.conv(x) + x.size(0), [ALONE]),
    "a spread sum": (lambda m, x: F.relu6(m.conv(x) + x[:, :, :1, :1]), [ALONE, "apply"]),
    "a sum that spreads it": (lambda m, x: torch.tanh(m.conv(x[:1]) + x), [ALONE, "apply"]),
    "numbers": (lambda m, x: F.leaky_relu(m.conv(x), 0.3), ["convolution + leaky_relu(0.3)"]),
    "of other functions": (
        lambda m, x: F.mish(m.bn2(m.other(F.gelu(m.conv(x))))),
        ["convolution + gelu", "convolution + mish"],
    ),
    "numbers of gelu": (lambda m, x: F.gelu(m.conv(x), approximate="tanh"), ["convolution + gelu_tanh"]),
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
    if isinstance(expected, str):
        assert expected in forms(made)[0]
    else:
        assert layers(made) == expected
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
        ["sampled", RELU],
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
