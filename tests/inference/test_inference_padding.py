"""Zeros round a picture become the padding of the convolution that reads it; nothing else does."""

import numpy as np
import pytest

from convdispatch import inference, nn
from convdispatch.elementwise import sample
from convdispatch.inference.building import traced_and_fused
from convdispatch.nn import functional
from convdispatch.runtime import queue
from convdispatch.tensor import Tensor

SHAPE = (2, 6, 9, 7)


def table(size: int, before: int, after: int) -> tuple[np.ndarray, None]:
    indices = np.arange(-before, size + after)
    return np.where((indices >= 0) & (indices < size), indices, -1), None


def layer(**options: int) -> nn.Conv2d:
    return nn.Conv2d(6, 8, 3, stride=2, **options)


def padded(x: Tensor, top: int = 0, bottom: int = 1, left: int = 1, right: int = 2, fill: float = 0.0) -> Tensor:
    return sample(x, {2: table(x.shape[2], top, bottom), 3: table(x.shape[3], left, right)}, fill)


def names(net) -> list[str]:
    return [node.name for node in traced_and_fused(net, [SHAPE], np.float32, queue(), None).nodes]


@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
def test_a_convolution_pads_by_itself(layout):
    first, second = layer(padding=1), layer()

    def net(x):
        return first(padded(x)), second(padded(x))

    assert names(net) == ["convolution", "convolution"]
    x = np.random.default_rng(0).standard_normal(SHAPE, dtype=np.float32)
    built = inference.build(net, SHAPE, layout=layout)
    for got, wanted in zip(built(x), net(Tensor.from_numpy(x)), strict=True):
        np.testing.assert_allclose(got, wanted.numpy(), rtol=1e-5, atol=1e-5)


def of_ones(x: Tensor) -> Tensor:
    return padded(x, fill=1.0)


def edges(x: Tensor) -> Tensor:
    return sample(x, {2: (np.clip(np.arange(-1, x.shape[2] + 1), 0, x.shape[2] - 1), None)})


def cropped(x: Tensor) -> Tensor:
    return sample(x, {2: (np.arange(-1, x.shape[2] - 1), None)})


def of_images(x: Tensor) -> Tensor:
    return sample(x, {0: table(x.shape[0], 0, 1)})


def averaged(x: Tensor) -> Tensor:
    indices = table(x.shape[2], 1, 1)[0][:, None]
    return sample(x, {2: (indices, np.full(indices.shape, 0.5, np.float32))})


@pytest.mark.parametrize("change", [of_ones, edges, cropped, of_images, averaged])
def test_what_is_no_padding_by_zeros_stays(change):
    conv = layer()
    assert names(lambda x: conv(change(x))) == ["sampled", "convolution"]
    x = np.random.default_rng(1).standard_normal(SHAPE, dtype=np.float32)
    built = inference.build(lambda x: conv(change(x)), SHAPE, layout="nchw")
    np.testing.assert_allclose(built(x), conv(change(Tensor.from_numpy(x))).numpy(), rtol=1e-5, atol=1e-5)


def test_another_reader_gets_the_zeros():
    conv = layer()

    def net(x):
        y = padded(x)
        return conv(y), functional.max_pool(y, 3, 2)

    assert names(net) == ["sampled", "convolution", "max_pool"]
