"""Nets that PyTorch exports: a detector, a U-Net, a mobile net with squeezing, attention; against PyTorch itself."""

import importlib.util
import io

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed (extra: peers)")
pytest.importorskip("onnx", reason="onnx is not installed (extra: onnx)")

from torch import nn  # noqa: E402

from convdispatch.onnx import load  # noqa: E402


def block(ic, oc, kernel, activation, *, stride=1, groups=1):
    conv = nn.Conv2d(ic, oc, kernel, stride, kernel // 2, groups=groups)
    return nn.Sequential(conv, nn.BatchNorm2d(oc), activation)


class Split(nn.Module):
    """Half of the channels go on, and all that was on the way is joined."""

    def __init__(self, c):
        super().__init__()
        self.first, self.inner, self.last = (
            nn.Conv2d(c, c, 1),
            block(c // 2, c // 2, 3, nn.SiLU()),
            nn.Conv2d(c + c // 2, c, 1),
        )

    def forward(self, x):
        parts = list(self.first(x).chunk(2, 1))
        return self.last(torch.cat([*parts, self.inner(parts[-1])], 1))


class Detector(nn.Module):
    """Features of two sizes, boxes as a softmax over places, the ten best of all."""

    def __init__(self):
        super().__init__()
        self.stem, self.small = nn.Sequential(block(3, 16, 3, nn.SiLU(), stride=2), Split(16)), Split(32)
        self.down, self.up, self.pool = nn.Conv2d(16, 32, 3, 2, 1), nn.Upsample(scale_factor=2), nn.MaxPool2d(5, 1, 2)
        self.mix, self.boxes, self.classes = nn.Conv2d(48, 8, 1), nn.Conv2d(8, 16, 1), nn.Conv2d(8, 5, 1)

    def forward(self, x):
        large = self.stem(x)
        small = self.small(self.down(large))
        small = torch.cat([self.pool(small[:, :16]), small[:, 16:]], 1)
        features = self.mix(torch.cat([large, self.up(small)], 1))
        boxes = self.boxes(features).flatten(2).view(x.shape[0], 4, 4, -1).softmax(1).mean(1)
        scores = self.classes(features).flatten(2).sigmoid()
        best, where = torch.topk(scores.amax(1), 10, 1)
        return torch.cat([boxes, scores], 1), best, where, torch.gather(boxes, 2, where[:, None].expand(-1, 4, -1))


class UNet(nn.Module):
    """Instance and group norms, a transposed convolution beside a bilinear one, reflected padding."""

    def __init__(self):
        super().__init__()
        self.left = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.InstanceNorm2d(8, affine=True), nn.LeakyReLU(0.1))
        deep = nn.Conv2d(8, 16, 3, padding=1, padding_mode="reflect")
        self.deep = nn.Sequential(nn.AvgPool2d(2), deep, nn.GroupNorm(4, 16), nn.Mish())
        self.up = nn.ConvTranspose2d(16, 8, 3, 2, 1, output_padding=1)
        self.wide = nn.Upsample(scale_factor=2, mode="bilinear", align_corners=False)
        self.out = nn.Conv2d(32, 2, 1)

    def forward(self, x):
        left = self.left(x)
        deep = self.deep(left)
        y = self.out(torch.cat([left, self.up(deep), self.wide(deep)], 1))
        return y, y.argmax(1)


class Mobile(nn.Module):
    """Depthwise convolutions, a factor for each channel from the whole picture, hard activations."""

    def __init__(self):
        super().__init__()
        self.stem, self.depth = block(3, 16, 3, nn.Hardswish(), stride=2), block(16, 16, 5, nn.ReLU6(), groups=16)
        squeeze = (nn.AdaptiveAvgPool2d(1), nn.Conv2d(16, 4, 1), nn.ReLU(), nn.Conv2d(4, 16, 1), nn.Hardsigmoid())
        self.squeeze, self.out, self.head = nn.Sequential(*squeeze), nn.Conv2d(16, 16, 1), nn.Linear(16, 10)

    def forward(self, x):
        x = self.stem(x)
        y = self.depth(x)
        x = x + self.out(y * self.squeeze(y))
        return self.head(nn.functional.gelu(x.mean((2, 3))))


class Attention(nn.Module):
    """Patches, layer norm, products of matrices in batches."""

    def __init__(self):
        super().__init__()
        self.patches, self.norm, self.qkv, self.out = (
            nn.Conv2d(3, 32, 4, 4),
            nn.LayerNorm(32),
            nn.Linear(32, 96),
            nn.Linear(32, 32),
        )
        self.places = nn.Parameter(torch.randn(1, 64, 32) * 0.1)

    def forward(self, x):
        t = self.patches(x).flatten(2).transpose(1, 2) + self.places
        mb, n, c = t.shape
        q, k, v = self.qkv(self.norm(t)).view(mb, n, 3, 4, 8).permute(2, 0, 3, 1, 4)
        a = (q @ k.transpose(-2, -1) * 0.35).softmax(-1)
        t = t + self.out((a @ v).transpose(1, 2).reshape(mb, n, c))
        return nn.functional.pad(t, (1, 2)).clamp(-1, 1), torch.where(t > 0, t, t.exp())


EXPORTERS = {"traced": {"dynamo": False, "opset_version": 17}, "exported": {"dynamo": True}}


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning", "ignore::FutureWarning",
                            "ignore::torch.jit.TracerWarning")  # fmt: skip
@pytest.mark.parametrize("exporter", EXPORTERS)
@pytest.mark.parametrize(
    ("kind", "shape"),
    [
        (Detector, (1, 3, 32, 32)), (UNet, (2, 3, 16, 16)), (Mobile, (2, 3, 32, 32)), (Attention, (2, 3, 32, 32)),
        (lambda: nn.LocalResponseNorm(2, 0.5, 0.75, 2.0), (2, 6, 7)),
        (lambda: nn.LocalResponseNorm(4, 0.5, 0.75, 2.0), (2, 6, 5, 4)),
        (lambda: nn.LocalResponseNorm(5, 0.5, 0.75, 2.0), (1, 6, 3, 5, 4)),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)  # fmt: skip
def test_a_net_that_torch_exports(kind, shape, exporter, full):
    if exporter == "exported" and kind.__name__ == "<lambda>" and not full:
        pytest.skip("with --full only: a norm alone")
    if exporter == "exported" and importlib.util.find_spec("onnxscript") is None:
        pytest.skip("torch's newer exporter needs onnxscript")
    torch.manual_seed(0)
    net, x = kind().eval(), torch.randn(shape)
    for module in net.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean.normal_()
            module.running_var.uniform_(0.5, 2)
    file = io.BytesIO()
    torch.onnx.export(net, (x,), file, **EXPORTERS[exporter])
    got, wanted = load(file.getvalue())(x), net(x)
    got, wanted = (value if isinstance(value, tuple) else (value,) for value in (got, wanted))
    assert len(got) == len(wanted)
    for ours, theirs in zip(got, wanted, strict=True):
        assert ours.dtype == theirs.dtype
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)
