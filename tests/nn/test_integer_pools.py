"""Means over windows of a quantized net's bytes, in bytes: what a dequantization, a mean and a quantization give."""

from __future__ import annotations

import numpy as np
import pytest

from convdispatch.nn.functional import avg_pool
from convdispatch.nn.pooling.quantized_average import quantized_avg_pool
from convdispatch.nn.quantized import dequantize, quantize
from convdispatch.tensor import Tensor

FORMS = [
    ((0.03, 0, "uint8"), (0.03, 0, "uint8")),  # means of an even count lie halfway often
    ((0.031, -128, "int8"), (0.0173, 7, "uint8")),
    ((1e-8, 255, "uint8"), (3e-8, 127, "int8")),
    ((1e8, 3, "int8"), (7e7, -128, "int8")),
]
WINDOWS = [
    ((2, 9, 10, 33), (2, 2), 2, 0, False, True),
    ((1, 7, 7, 64), (3, 3), 2, 1, True, False),
    ((3, 5, 6, 3), (3, 2), (2, 1), ((1, 0), (1, 1)), False, True),
    ((2, 4, 4, 1), 2, 1, 1, True, True),
    ((0, 4, 4, 8), 2, 2, 0, False, True),
]


@pytest.mark.parametrize("layout", ["nhwc", "nchw"])
@pytest.mark.parametrize(("x_form", "y_form"), FORMS)
@pytest.mark.parametrize(("shape", "kernel", "stride", "padding", "ceil", "count"), WINDOWS)
def test_bits_are_those_of_three_operations(shape, kernel, stride, padding, ceil, count, x_form, y_form, layout):
    random = np.random.default_rng(shape[3])
    values = random.integers(0, 256, shape).astype(np.uint8).view(x_form[2])
    values = values if layout == "nhwc" else np.ascontiguousarray(values.transpose(0, 3, 1, 2))
    x = Tensor.from_numpy(np.concatenate([values[:1], values]))[len(values[:1]) :]
    options = {"ceil_mode": ceil, "count_include_pad": count, "layout": layout}
    have = quantized_avg_pool(x, kernel, stride, padding, x_form=x_form, y_form=y_form, **options)
    numbers = dequantize(x, *x_form[:2])
    want = quantize(avg_pool(numbers, kernel, stride, padding, **options), *y_form)
    assert have.dtype == want.dtype
    np.testing.assert_array_equal(have.numpy(), want.numpy())


def test_a_net_with_means_of_windows_stays_in_bytes(tmp_path, monkeypatch):
    tool = pytest.importorskip("onnxruntime.quantization", reason="onnxruntime's quantizer is not installed")
    pytest.importorskip("onnx")
    import onnx_quantized as nets

    from convdispatch.inference.passes import integer_convolutions
    from convdispatch.onnx import load

    monkeypatch.setattr(integer_convolutions, "_is_slower", lambda node: False)
    shape, path = (1, 3, 16, 16), str(tmp_path / "net.onnx")
    net = nets.Net(0, shape)
    x = net.pool(net.conv("x", 24, 3, 2), 2, 2, kind="AveragePool")
    nets.quantize(net.logits(net.conv(x, 32, 1)), shape, path, activation_type=tool.QuantType.QInt8)
    names = [layer.name for layer in load(path).build(shape).layers]
    assert names.count("quantized_avg_pool") == 1
    assert names.count("dequantize") == 1  # the logits
    assert not {"avg_pool", "apply"} & set(names)
