"""Norms over channels in quantized nets: bytes that are looked up in the place of a dozen operations, bit for bit."""

import numpy as np
import pytest

from convdispatch.nn.normalization.table_norm import table_norm
from convdispatch.tensor import Tensor


def reference(x, values, results, size, before, zero, axis):
    of = np.moveaxis(values[x.view(np.uint8)], axis, -1)
    channels = of.shape[-1]
    of = np.pad(of, [(0, 0)] * 3 + [(before, size - 1 - before)])
    total = sum(of[..., j : j + channels] for j in range(size))
    mean = (np.rint(total / np.float64(size)).astype(int) + zero).astype(np.uint8)
    return results[np.moveaxis(mean, -1, axis), x.view(np.uint8)]


@pytest.mark.parametrize("dtype", ["uint8", "int8"])
@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
@pytest.mark.parametrize(
    ("mb", "channels", "pixels", "size", "before"),
    [(2, 64, (5, 7), 5, 2), (3, 1, (3, 2), 3, 1), (1, 3, (9, 20), 5, 2), (2, 17, (8, 9), 7, 6), (1, 700, (4, 5), 3, 0),
     (1, 16, (1, 1), 127, 63), (0, 8, (4, 4), 3, 1)],
)  # fmt: skip
def test_bytes_are_looked_up(mb, channels, pixels, size, before, layout, dtype):
    random, zero = np.random.default_rng(size), 0 if dtype == "uint8" else -7
    x = random.integers(0, 256, (mb, channels, *pixels)).astype(np.uint8).view(dtype)
    values = random.integers(-255 if zero else 0, 256, 256).astype(np.int32)
    if zero:  # means of bytes are bytes
        values = random.integers(-121, 135, 256).astype(np.int32)
    results = random.integers(0, 256, (256, 256)).astype(np.uint8).view(dtype)
    x = np.ascontiguousarray(x.transpose(0, 2, 3, 1)) if layout == "nhwc" else x
    guarded = Tensor.from_numpy(np.concatenate([np.full((1, *x.shape[1:]), 77, x.dtype), x]))
    y = table_norm(
        guarded[1:], Tensor.from_numpy(values), Tensor.from_numpy(results), size, before, zero, layout=layout
    )
    wanted = reference(x, values, results, size, before, zero, 1 if layout == "nchw" else 3)
    np.testing.assert_array_equal(y.numpy(), wanted)


def layers(path, x, monkeypatch, *, folded=True):
    """What a file computes, and its operations."""
    from convdispatch.inference.passes import integer_convolutions, quantization
    from convdispatch.onnx import load

    with monkeypatch.context() as patch:
        patch.setattr(integer_convolutions, "_is_slower", lambda node: False)
        if not folded:
            patch.setattr(quantization, "norms_by_tables", lambda graph: None)
        net = load(path)
        return net(x), [layer.name for layer in net.latest.layers]


@pytest.mark.parametrize(
    ("shape", "size", "options", "count"),
    [
        ((2, 3, 16, 16), 3, {"activation_type": "QInt8"}, 2),
        ((1, 3, 16, 16), 4, {}, 1),  # a mean of four may lie halfway between two bytes
    ],
)
def test_a_nets_norms_are_looked_up(shape, size, options, count, tmp_path, monkeypatch):
    """Equal bits, and none of the operations that the quantizer wrote is left."""
    tool = pytest.importorskip("onnxruntime.quantization", reason="onnxruntime's quantizer is not installed")
    pytest.importorskip("onnx")
    import onnx_quantized as nets

    path = str(tmp_path / "net.onnx")
    given = {key: getattr(tool.QuantType, value) for key, value in options.items()}
    nets.quantize(nets.normalized(size, shape, size), shape, path, **given)
    x = nets.pictures(7, shape)
    have, names = layers(path, x, monkeypatch)
    want, before = layers(path, x, monkeypatch, folded=False)
    np.testing.assert_array_equal(have, want)
    assert names.count("table_norm") == count
    assert before.count("pool_axes") == 2
    assert names.count("pool_axes") == 2 - count
    assert count < 2 or not {"sampled", "apply", "reorder"} & set(names)
