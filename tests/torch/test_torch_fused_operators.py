"""PyTorch's operators around convolutions in inference forms: parts, pads, enlargements, norms, matrices."""

import numpy as np
import pytest
import torch
from torch_checks import error, programs, right, with_statistics
from torch_small import Body

import convdispatch.torch as ct
from convdispatch import inference
from convdispatch.tensor import Tensor
from convdispatch.torch.graph import aten_norms, aten_shapes

pytestmark = pytest.mark.usefixtures("without_compiler")
nn, F = torch.nn, torch.nn.functional


def net_of(body, ndim=2, **layers):
    conv = (nn.Conv1d, nn.Conv2d, nn.Conv3d)[ndim - 1]
    return Body(body, conv=conv(4, 8, 3, padding=1), last=conv(8, 4, 1), **layers).eval()


def parts(m, x):
    y = m.conv(x)
    first, middle, _ = y.split([1, 5, 2], 1)
    y = torch.cat(y.split(3, 1)[::-1], 1)
    y = y + torch.stack(y.unbind(-1)[::-1], -1)
    y = y.roll((2, -1, 3), (-1, 1, -1)) + y.roll(-9, ())
    wide = y[:, 2].unsqueeze(1).expand(-1, 5, -1, -1) * middle + first
    return m.last(torch.cat([wide, y[:, :3]], 1)[:, :, 1:-1, ::2])


def shuffled(m, x):
    y = m.conv(x).view(2, 2, 4, 9, 7).transpose(1, 2).reshape(2, 8, 9, 7)
    return m.last(F.pad(y, (1, 2, 0, -1), value=0.5)) + x[:, :, :8, :1].squeeze(3).unsqueeze(-1)


def nearest(m, x):
    y = m.conv(x)
    y = m.last(F.interpolate(y, scale_factor=1.7)) + F.interpolate(F.interpolate(x, scale_factor=2), size=(15, 11))
    return F.interpolate(y, size=(4, 23))


def linear(m, x):
    y = F.interpolate(m.conv(x), scale_factor=2, mode="bilinear")
    y = F.interpolate(y, size=(5, 20), mode="bilinear", align_corners=True)
    return m.last(F.interpolate(y, scale_factor=(1.3, 0.4), mode="bilinear"))


def in_space(m, x):
    y = F.max_pool3d(m.prelu(m.instance(m.conv(x))), 3, 2, 1)
    y = F.interpolate(m.group(y), scale_factor=2, mode="trilinear")
    y = F.avg_pool3d(y, 3, 2, 1, ceil_mode=True, count_include_pad=False) + F.avg_pool3d(y, 3, 2, 1, ceil_mode=True)
    return m.last(torch.cat([y, F.avg_pool3d(y, (2, 1, 1), 1, (1, 0, 0))], 2))


def reduced(m, x):
    y = m.conv(x)
    y = torch.stack([y, y.neg(), y * y], dim=-4).sum(1) + torch.stack([y.abs().sqrt(), y]).amax((0,)) - y.amin(-1, True)
    gain = torch.norm(y, p=2, dim=(2, 3), keepdim=True)  # ConvNeXtV2's global response norm
    y = y * (gain / (gain.mean(dim=1, keepdim=True) + 1e-6)) + y.pow(2).sum(1, keepdim=True).add(1).rsqrt()
    y = torch.addcmul(y, y, gain, value=0.5) - F.gelu(y, approximate="tanh") + F.gelu(y)
    return m.last(y.exp().clamp(max=3.0) ** 3 / y.sum().abs().add(1))


def spread(m, x):
    """Norms that say their variance themselves: over channels, over all, with a correction and without."""
    y = m.conv(x)
    y = y * torch.rsqrt(y.var(dim=1, keepdim=True) + 1e-6) + y.var(dim=(2, 3), correction=0).view(2, 8, 1, 1)
    variance, mean = torch.var_mean(y, dim=-1, keepdim=True)
    y = (y - mean) / (variance + 1e-6).sqrt() + torch.var_mean(y, dim=1, correction=2)[1].unsqueeze(1)
    return m.last(y / (y.std() + y.std(dim=0, keepdim=True, correction=0)))


def attending(m, x):
    y = (
        m.conv(F.pad(F.pad(x, (3, -1, 2, 3), mode="reflect"), (1, -2, -5, 2), mode="replicate").repeat(1, 1, 1, 2))
        .flatten(2)
        .reshape(2, 2, 4, -1)
        .transpose(2, 3)
    )
    mask = torch.ones(y.shape[2], y.shape[2], dtype=torch.bool).tril(-1)  # the first sees nothing
    z = F.scaled_dot_product_attention(y, y[:, :, :7], y[:, :, :7]) + F.scaled_dot_product_attention(
        y, y, y, is_causal=True
    )
    z = z + F.scaled_dot_product_attention(y, y, y.neg(), mask, scale=0.3)
    return z.transpose(1, 2).reshape(2, -1, 8)


def attending_rows(m, x):
    """Elements of a place beside each other, as PyTorch's own kernel wants them; above they are not."""
    y = m.conv(x).flatten(2).reshape(2, 2, 4, -1).transpose(2, 3).contiguous()
    hidden = torch.ones(63, 63, dtype=torch.bool).tril(-1)
    z = F.scaled_dot_product_attention(y, y[:, :, :7], y[:, :, 7:14], torch.arange(7.0).expand(63, 7), scale=0.3)
    z = (
        z
        + F.scaled_dot_product_attention(y, y, y.neg(), hidden)
        + F.scaled_dot_product_attention(y[:, :, :5], y, y)[:, :, 1:2]
    )
    z = z + F.scaled_dot_product_attention(y, y, y, y[:, :1, :, :1].transpose(2, 3))  # a mask that is computed
    z = z + F.scaled_dot_product_attention(y, y, y, is_causal=True)
    return z.transpose(1, 2).reshape(2, -1, 8)


NETS = {
    "attention": lambda: net_of(attending),
    "attention of rows": lambda: net_of(attending_rows),
    "parts": lambda: net_of(parts),
    "shuffled": lambda: net_of(shuffled),
    "nearest": lambda: net_of(nearest),
    "linear": lambda: net_of(linear),
    "group norm": lambda: net_of(lambda m, x: m.last(F.silu(m.norm(m.conv(x)))), norm=nn.GroupNorm(4, 8)),
    "layer norm": lambda: net_of(
        lambda m, x: F.adaptive_avg_pool2d(m.last(m.norm(m.conv(x).permute(0, 2, 3, 1)).permute(0, 3, 1, 2)), 1),
        norm=nn.LayerNorm(8),
    ),
    "instance norm": lambda: net_of(lambda m, x: m.last(m.norm(m.conv(x))), norm=nn.InstanceNorm2d(8)),
    "products": lambda: net_of(
        lambda m, x: (lambda y: torch.bmm(y, y.transpose(1, 2)))(m.conv(x).flatten(2)),
    ),
    "reduced": lambda: net_of(reduced),
    "spread": lambda: net_of(spread),
    "3-D": lambda: net_of(
        in_space, 3, prelu=nn.PReLU(8), group=nn.GroupNorm(2, 8), instance=nn.InstanceNorm3d(8, affine=True)
    ),
}


@pytest.mark.parametrize("name", NETS)
def test_operators_in_a_form(name):
    torch.manual_seed(0)
    net = NETS[name]()
    for weight in net.parameters():
        weight.data = torch.randn(weight.shape)
    x = torch.randn(2, 4, *((5, 6, 4) if name == "3-D" else (9, 7)))
    fused = ct.convert(net, fuse=True)
    with torch.no_grad():
        right(fused, net, x)
    (form,) = ct.fusion(fused).forms.values()
    assert "commands" in form, form


@pytest.mark.parametrize("kernel", [True, False])
def test_attention_of_many_places_keeps_its_scores_in_caches_or_is_pytorchs(monkeypatch, kernel):
    monkeypatch.setattr(aten_norms, "_SCORES", 4 * 60)
    if not kernel:
        monkeypatch.setattr("convdispatch.nn.attention._vectors", lambda *_: 0)
    torch.manual_seed(0)
    net = net_of(attending_rows)
    x = torch.randn(2, 4, 9, 7)
    fused = ct.convert(net, fuse=True)
    with torch.no_grad():
        right(fused, net, x)
    (form,) = ct.fusion(fused).forms.values()
    assert ("commands" in form) if kernel else ("attention of 63 places to 7, whose scores" in form), form


def test_a_norm_that_keeps_what_it_is_given_has_no_form():
    batch_norm = lambda m, x: F.batch_norm(m.conv(x), m.norm.running_mean, m.norm.running_var, training=True)  # noqa: E731
    net = net_of(lambda m, x: m.last(batch_norm(m, x)), norm=nn.BatchNorm2d(8))
    fused, x = ct.convert(net, fuse=True), torch.randn(2, 4, 9, 7)
    with torch.no_grad():
        assert error(fused(x), net(x)) < 1e-5
    assert "batch_norm" in next(iter(ct.fusion(fused).forms.values()))


def test_what_is_drawn_of_a_buffer_is_no_constant():
    net = net_of(lambda m, x: m.last(m.conv(x)) * torch.rand_like(m.size))
    net.register_buffer("size", torch.ones(()))
    fused, x = ct.convert(net, fuse=True), torch.randn(2, 4, 9, 7)
    with torch.no_grad():
        assert error(fused(x), fused(x)) > 1e-5
    assert "rand" in next(iter(ct.fusion(fused).forms.values()))


@pytest.mark.parametrize("enlarge", [aten_shapes._nearest, lambda *given: aten_shapes._linear(*given, False)])
def test_what_has_its_size_already_is_not_made_anew(enlarge):
    """Decoders bring all levels to the first one's size."""
    x = Tensor.from_numpy(np.random.default_rng(0).standard_normal((1, 3, 4, 5), dtype=np.float32))
    assert enlarge(None, x, (4, 5)) is x
    wider = enlarge(None, x, (4, 10)).numpy()
    np.testing.assert_allclose(wider[..., 0], x.numpy()[..., 0], rtol=1e-6)
    assert wider.shape == (1, 3, 4, 10)


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
    build = inference.build
    monkeypatch.setattr(inference, "build", lambda *given, **named: build(*given, **named | {"layout": layout}))
    model, x = with_statistics(Varied()), torch.randn(2, 3, 7, 6)
    made = ct.convert(model, fuse=True)
    with torch.no_grad():
        right(made, model, x)
    assert [program.layout for program in programs(made)] == [layout]
