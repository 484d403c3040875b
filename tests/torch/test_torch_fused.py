"""convert(fuse=True): what is fused and what must not be, forms and layers, copies, compilers."""

import copy

import numpy as np
import pytest
import torch
from torch_checks import error, forms, layers, programs, right, with_statistics

import convdispatch.torch as ct
from convdispatch import inference
from convdispatch.api.errors import InvalidArgument
from convdispatch.nn import functional
from convdispatch.tensor import Tensor

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
@torch.no_grad()
def test_chains(name):
    body, expected = BODIES[name]
    model, x = with_statistics(Net(body)), torch.randn(2, 3, 5, 6)
    made, mine, theirs = ct.convert(model, fuse=True), x.clone(), x.clone()
    right(made, model, mine)
    model(theirs)
    assert torch.equal(mine, theirs), "what the model writes to its input"
    if isinstance(expected, str):
        assert expected in forms(made)[0]
    else:
        assert layers(made) == expected
    right(made.forward, model, x.clone())  # layer by layer
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
@torch.no_grad()
def test_activations(activation, text):
    model, x = with_statistics(Net(lambda m, x: m.after(m.conv(x)), after=activation)), torch.randn(2, 3, 5, 6)
    made = ct.convert(model, fuse=True)
    right(made, model, x)
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
    model, x = with_statistics(layer), torch.randn(2, 3, *[6] * ndim)
    made = ct.convert(model, fuse=True)
    with torch.no_grad():
        right(made, model, x)
        if expected is not None:
            assert layers(made) == expected
    right(made, model, x)  # a call with gradients on
    right(made.forward, model, x)


def test_training_mode_is_refused_and_what_has_no_form_is_said():
    with pytest.raises(InvalidArgument, match=r"model\.eval\(\)"):
        ct.convert(Net(chained), fuse=True)
    model = with_statistics(Net(lambda m, x: m.conv(x) + torch.rand(1)))
    made = ct.convert(model, fuse=True)
    with torch.no_grad():
        made(torch.randn(1, 3, 4, 4))
    assert "aten.rand.default has no counterpart here" in forms(made)[0]
    assert type(model.conv) is nn.Conv2d
    assert "conv" in dict(made.named_children())


# --- transposed convolutions ----------------------------------------------------------------------------------------


class Decoder(nn.Module):
    """A transposed convolution and what follows it, beside a convolution of the same size that is added."""

    def __init__(self, up, norm, activation):
        super().__init__()
        kind = (nn.Conv1d, nn.Conv2d, nn.Conv3d)[len(up.kernel_size) - 1]
        self.up, self.norm, self.activation = up, norm, activation
        self.beside = kind(up.out_channels, up.out_channels, 1, bias=False)

    def forward(self, x, y):
        return torch.cat([self.activation(self.norm(self.up(x)) + self.beside(y)), y], 1)


TRANSPOSED = {
    "1d": (nn.ConvTranspose1d(6, 4, 4, 2, 1), nn.BatchNorm1d(4), nn.SiLU()),
    "unet": (nn.ConvTranspose2d(6, 4, 2, 2), nn.BatchNorm2d(4), nn.ReLU(inplace=True)),
    "groups": (nn.ConvTranspose2d(6, 4, 3, 2, 1, output_padding=1, groups=2), nn.BatchNorm2d(4), nn.ELU(0.7)),
    "depthwise": (nn.ConvTranspose2d(6, 6, 3, 2, 1, groups=6, bias=False), nn.BatchNorm2d(6), nn.Hardswish()),
    "lengthened": (nn.ConvTranspose2d(6, 4, 3, 1, 1, output_padding=1, dilation=2), nn.BatchNorm2d(4), nn.GELU()),
    "3d": (nn.ConvTranspose3d(6, 4, 2, 2), nn.BatchNorm3d(4), nn.LeakyReLU(0.1)),
}


@pytest.mark.parametrize("name", TRANSPOSED)
@torch.no_grad()
def test_what_follows_a_transposed_convolution_is_taken_in(name):
    up, *after = copy.deepcopy(TRANSPOSED[name])
    model, x = with_statistics(Decoder(up, *after)), torch.randn(2, 6, *[5, 4, 3][: len(up.kernel_size)])
    y, fused = torch.randn_like(up(x)), ct.convert(model, fuse=True)
    right(fused, model, x, y)
    right(fused.forward, model, x, y)
    assert len(forms(fused)) == 1
    assert "2 convolutions" in forms(fused)[0]
    # The later of two convolutions takes in the other's result, and the activation.
    assert [each.partition(" + ")[0] for each in layers(fused)][:2] == ["transposed_convolution", ALONE]
    assert " + " in layers(fused)[1]
    assert "apply" not in layers(fused)


@torch.no_grad()
def test_a_decoder_is_its_convolutions_and_nothing_else():
    def up(ic, oc):
        return nn.Sequential(nn.ConvTranspose2d(ic, oc, 2, 2, bias=False), nn.BatchNorm2d(oc), nn.ReLU())

    model = with_statistics(nn.Sequential(up(4, 6), up(6, 3), nn.ConvTranspose2d(3, 2, 3, padding=1), nn.Sigmoid()))
    fused = ct.convert(model, fuse=True)
    right(fused, model, torch.randn(1, 4, 4, 4))
    assert layers(fused) == [f"transposed_convolution + {each}" for each in ("relu", "relu", "sigmoid")]
    (program,) = programs(fused)
    assert [layer.problem.direction for layer in program.layers] == ["bwd_data"] * 3


@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
@pytest.mark.parametrize("groups", [1, 2])
def test_a_batch_norm_after_it_folds_in_either_layout(layout, groups):
    rng = np.random.default_rng(0)
    x, w = (rng.standard_normal(shape).astype(np.float32) for shape in ((2, 6, 4, 5), (6, 4 // groups, 3, 3)))
    norms = [rng.uniform(0.5, 2, 4).astype(np.float32) for _ in range(4)]
    exact = (torch.from_numpy(v).double() for v in (x, w))
    wanted = torch.nn.functional.conv_transpose2d(*exact, None, 2, 1, 1, groups)
    scale, shift, mean, variance = (torch.from_numpy(v).double() for v in norms)
    wanted = torch.relu(torch.nn.functional.batch_norm(wanted, mean, variance, scale, shift))
    order = (0, 2, 3, 1) if layout == "nhwc" else (0, 1, 2, 3)
    weights, given = Tensor.from_numpy(w.transpose(order).copy()), [Tensor.from_numpy(v) for v in norms]
    options = {"stride": 2, "padding": 1, "output_padding": 1, "groups": groups, "layout": layout}

    def net(x):
        y = functional.transposed_convolution(x, weights, **options)
        return functional.relu(functional.batch_norm(y, *given, training=False, layout=layout))

    built = inference.build(net, x.transpose(order).shape, layout=layout)
    assert [layer.name for layer in built.layers] == ["transposed_convolution"]
    got = torch.from_numpy(built(Tensor.from_numpy(x.transpose(order).copy())).numpy())
    assert error(got if layout == "nchw" else got.permute(0, 3, 1, 2), wanted) < 1e-5
