"""convert(fuse=True): transposed convolutions take in batch norms, sums and activations, in forms and by layers."""

import copy

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed (extra: torch)")

from torch_checks import error, forms, layers, programs  # noqa: E402 (torch is asked for first)

import convdispatch.torch as ct  # noqa: E402
from convdispatch import inference  # noqa: E402
from convdispatch.nn import functional  # noqa: E402
from convdispatch.tensor import Tensor  # noqa: E402

pytestmark = pytest.mark.usefixtures("without_compiler")
nn = torch.nn


class Decoder(nn.Module):
    """A transposed convolution and what follows it, beside a convolution of the same size that is added."""

    def __init__(self, up, norm, activation):
        super().__init__()
        kind = (nn.Conv1d, nn.Conv2d, nn.Conv3d)[len(up.kernel_size) - 1]
        self.up, self.norm, self.activation = up, norm, activation
        self.beside = kind(up.out_channels, up.out_channels, 1, bias=False)

    def forward(self, x, y):
        return torch.cat([self.activation(self.norm(self.up(x)) + self.beside(y)), y], 1)


def ready(model):
    torch.manual_seed(0)
    for module in model.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            module.running_mean.normal_()
            module.running_var.uniform_(0.5, 2)
            nn.init.uniform_(module.weight, 0.5, 2)
            nn.init.normal_(module.bias)
    return model.eval()


KINDS = {
    "1d": (nn.ConvTranspose1d(6, 4, 4, 2, 1), nn.BatchNorm1d(4), nn.SiLU()),
    "unet": (nn.ConvTranspose2d(6, 4, 2, 2), nn.BatchNorm2d(4), nn.ReLU(inplace=True)),
    "groups": (nn.ConvTranspose2d(6, 4, 3, 2, 1, output_padding=1, groups=2), nn.BatchNorm2d(4), nn.ELU(0.7)),
    "depthwise": (nn.ConvTranspose2d(6, 6, 3, 2, 1, groups=6, bias=False), nn.BatchNorm2d(6), nn.Hardswish()),
    "lengthened": (nn.ConvTranspose2d(6, 4, 3, 1, 1, output_padding=1, dilation=2), nn.BatchNorm2d(4), nn.GELU()),
    "3d": (nn.ConvTranspose3d(6, 4, 2, 2), nn.BatchNorm3d(4), nn.LeakyReLU(0.1)),
}


@pytest.mark.parametrize("name", KINDS)
def test_what_follows_is_taken_in(name):
    up, *after = copy.deepcopy(KINDS[name])
    model = ready(Decoder(up, *after))
    x = torch.randn(2, 6, *[5, 4, 3][: len(up.kernel_size)])
    with torch.no_grad():
        y = torch.randn_like(up(x))
        wanted = copy.deepcopy(model).double()(x.double(), y.double())
    with ct.enable(solver="im2col*"):
        fused = ct.convert(model, fuse=True)
        with torch.no_grad():
            assert error(fused(x, y), wanted) < 1e-5
            assert error(fused.forward(x, y), wanted) < 1e-5
            assert len(forms(fused)) == 1
            assert "2 convolutions" in forms(fused)[0]
            # The later of two convolutions takes in the other's result, and the activation.
            assert [each.partition(" + ")[0] for each in layers(fused)][:2] == ["transposed_convolution", "convolution"]
            assert " + " in layers(fused)[1]
            assert "apply" not in layers(fused)


def test_a_decoder_is_its_convolutions_and_nothing_else():
    def up(ic, oc):
        return nn.Sequential(nn.ConvTranspose2d(ic, oc, 2, 2, bias=False), nn.BatchNorm2d(oc), nn.ReLU())

    model = ready(nn.Sequential(up(4, 6), up(6, 3), nn.ConvTranspose2d(3, 2, 3, padding=1), nn.Sigmoid()))
    with torch.no_grad():
        x = torch.randn(1, 4, 4, 4)
        wanted = copy.deepcopy(model).double()(x.double())
    with ct.enable(solver="im2col*"), torch.no_grad():
        fused = ct.convert(model, fuse=True)
        assert error(fused(x), wanted) < 1e-5
        assert layers(fused) == [f"transposed_convolution + {each}" for each in ("relu", "relu", "sigmoid")]
        (program,) = programs(fused)
        assert [layer.problem.direction for layer in program.layers] == ["bwd_data"] * 3


def test_torchscript_reads_them():
    model = ready(nn.Sequential(nn.ConvTranspose2d(4, 3, 3, 2), nn.BatchNorm2d(3), nn.SiLU()))
    x = torch.randn(1, 4, 3, 3)
    fused = ct.convert(model, fuse=True)
    with torch.no_grad():
        assert error(torch.jit.script(fused)(x), copy.deepcopy(model).double()(x.double())) < 1e-5


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
