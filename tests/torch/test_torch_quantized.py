"""PyTorch's quantized programs: integers between layers, with the numbers of PyTorch's own operators."""

import importlib
import warnings

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch_checks import layers

from convdispatch.inference.passes import integer_convolutions
from convdispatch.torch import convert

pytestmark = pytest.mark.usefixtures("without_compiler")


@pytest.fixture(autouse=True)
def integers(monkeypatch):
    """Integers are convolved as such, on processors too that would be faster with numbers."""
    monkeypatch.setattr(integer_convolutions, "_is_slower", lambda node: False)


def rounded(x, scale, zero, dtype=torch.uint8):
    """Numbers that went through integers, as an exported program says it."""
    limits = torch.iinfo(dtype)
    words = scale, zero, limits.min, limits.max, dtype
    q = torch.ops.quantized_decomposed.quantize_per_tensor.default(x, *words)
    return torch.ops.quantized_decomposed.dequantize_per_tensor.default(q, *words)


class Weights(nn.Module):
    """int8 weights with a scale a channel."""

    def __init__(self, *shape):
        super().__init__()
        w = torch.randn(shape) / 4
        self.register_buffer("scale", w.flatten(1).abs().amax(1) / 127)
        self.register_buffer("zero", torch.zeros(shape[0], dtype=torch.int64))
        wide = self.scale.reshape(-1, *[1] * (len(shape) - 1))
        self.register_buffer("values", torch.round(w / wide).to(torch.int8))
        self.bias = nn.Parameter(torch.randn(shape[0]) / 4)

    def forward(self):
        return torch.ops.quantized_decomposed.dequantize_per_channel.default(
            self.values, self.scale, self.zero, 0, -128, 127, torch.int8
        )


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.depthwise = Weights(16, 3, 3, 3), Weights(16, 1, 3, 3)
        self.point, self.last = Weights(16, 16, 1, 1), Weights(10, 16)

    def forward(self, x):
        x = functional.relu(functional.conv2d(rounded(x, 0.03, 128), self.first(), self.first.bias, 2, 1))
        x = rounded(x, 0.02, 0)
        y = functional.relu6(functional.conv2d(x, self.depthwise(), self.depthwise.bias, 1, 1, groups=16))
        y = functional.relu(functional.conv2d(rounded(y, 0.02, 0), self.point(), self.point.bias) + x)
        y = rounded(functional.max_pool2d(y, 2), 0.03, 0)
        y = functional.adaptive_avg_pool2d(y, 1).flatten(1)
        return functional.linear(rounded(y, 0.02, 0), self.last(), self.last.bias)


@pytest.mark.parametrize("whole", [True, False])
def test_an_exported_program_runs_in_integers(whole):
    importlib.import_module("torch.ao.quantization.fx._decomposed")  # enters the operators
    torch.manual_seed(0)
    model, x = Net().eval(), torch.randn(2, 3, 24, 24)
    program = torch.export.export(model, (x,))
    fused = convert(program if whole else program.module(), fuse=True)
    with torch.inference_mode():
        got, want = fused(x), model(x)
    assert (got - want).abs().max() <= 0.02 * want.abs().max()  # a tie may fall on the other side
    assert (got.argmax(1) == want.argmax(1)).all()
    names = layers(fused)
    assert names.count("quantized_convolution") == 4
    assert not {"convolution", "linear", "apply", "add", "activate"} & set(names)


def test_what_torchao_quantizes_runs_in_integers():
    """PT2E, as it is now: calibrated, converted, exported again."""
    pytest.importorskip("torchao", reason="torchao, which quantizes PyTorch's programs, is not installed")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pt2e = importlib.import_module("torchao.quantization.pt2e.quantize_pt2e")
        x86 = importlib.import_module("torchao.quantization.pt2e.quantizer.x86_inductor_quantizer")
        torch.manual_seed(0)
        model = nn.Sequential(
            nn.Conv2d(3, 16, 3, 2, 1), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 32, 1), nn.ReLU(),
            nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10),
        ).eval()  # fmt: skip
        x = torch.randn(2, 3, 24, 24)
        quantizer = x86.X86InductorQuantizer().set_global(x86.get_default_x86_inductor_quantization_config())
        prepared = pt2e.prepare_pt2e(torch.export.export(model, (x,)).module(), quantizer)
        prepared(x)
        converted = pt2e.convert_pt2e(prepared)
        fused = convert(torch.export.export(converted, (x,)), fuse=True)
        with torch.inference_mode():
            got, want = fused(x), converted(x)
    assert (got - want).abs().max() <= 0.02 * want.abs().max()
    assert layers(fused).count("quantized_convolution") == 3
