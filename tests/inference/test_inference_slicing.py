"""The first layers of a net run for slices of the batch where pictures of all images are too large for the caches."""

import numpy as np
import pytest

from convdispatch import inference, nn
from convdispatch.api.device import DeviceInfo
from convdispatch.elementwise import concatenate
from convdispatch.inference import building
from convdispatch.inference.passes import slicing
from convdispatch.inference.passes.layout import relayout
from convdispatch.nn import functional
from convdispatch.tensor import Tensor

SHAPE = (4, 3, 16, 16)
CPU, GPU = DeviceInfo("cpu", "intel", "cpu", ""), DeviceInfo("gpu", "nvidia", "gpu", "")


class Block(nn.Module):
    """Large pictures with a residual and a join of channels, then a pool, a small layer and a linear map."""

    def __init__(self):
        self.stem, self.one, self.two = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1), nn.Conv2d(8, 8, 1)
        self.joined, self.last = nn.Conv2d(16, 6, 3, stride=2), nn.Conv2d(6, 6, 2)
        self.flat, self.linear = nn.Flatten(), nn.Linear(6 * 2 * 2, 5)

    def forward(self, x):
        x = self.stem(x)
        y = self.two(self.one(x)) + x
        x = self.joined(concatenate([functional.relu(x), y]))
        return self.linear(self.flat(self.last(functional.max_pool(x, 2, 2))))


def images(graph):
    """How many images each convolution takes."""
    return [node.result.shape[0] for node in graph.nodes if node.name == "convolution"]


@pytest.fixture
def small(monkeypatch):
    """Sizes at which four images of the net's first layers are too large: they move 70,240 to 131,072 bytes."""
    monkeypatch.setattr(slicing, "LARGE", 70_000)
    monkeypatch.setattr(slicing, "SLICE_BYTES", 100_000)


@pytest.mark.parametrize(
    ("slice_bytes", "batch", "taken"),
    [
        (70_000, 4, [2] * 5 * 2 + [4]),
        (60_000, 4, [1] * 4 * 4 + [4, 4]),
        (1, 4, [1] * 4 * 4 + [4, 4]),  # one image may be more than a slice's bytes
        (100_000, 6, [3] * 5 * 2 + [6]),
        (100_000, 1, [1] * 6),
    ],
)
def test_slices_are_as_large_as_the_cache(queue, monkeypatch, small, slice_bytes, batch, taken):
    monkeypatch.setattr(slicing, "SLICE_BYTES", slice_bytes)
    graph = building.traced_and_fused(Block(), [(batch, *SHAPE[1:])], np.float32, queue, None)
    assert images(slicing.sliced(graph, CPU)) == taken


def test_small_pictures_and_gpus_are_left_alone(queue, small, monkeypatch):
    graph = building.traced_and_fused(Block(), [SHAPE], np.float32, queue, None)
    assert slicing.sliced(graph, GPU) is graph
    monkeypatch.setattr(slicing, "LARGE", 1 << 20)
    assert slicing.sliced(graph, CPU) is graph


def test_layers_of_large_weights_are_computed_for_all_images(queue, small):
    net = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.Conv2d(16, 128, 16), nn.Conv2d(128, 16, 1))
    graph = building.traced_and_fused(net, [SHAPE], np.float32, queue, None)
    assert images(slicing.sliced(graph, CPU)) == [2, 2, 4, 4]


@pytest.mark.parametrize("groups", [2, 16])
@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
def test_layers_in_groups_are_sliced(queue, small, monkeypatch, groups, layout):
    layers = [nn.Conv2d(16, 16, 1), nn.Conv2d(16, 16, 3, padding=1, groups=groups), nn.Conv2d(16, 8, 1)]
    net, shape = nn.Sequential(*layers), (4, 16, 16, 16)
    graph = building.traced_and_fused(net, [shape], np.float32, queue, None)
    assert images(slicing.sliced(graph, CPU)) == [2] * 6
    x = np.random.default_rng(2).standard_normal(shape).astype(np.float32)
    wanted = net(Tensor.from_numpy(x, queue)).numpy()
    monkeypatch.setattr(building, "sliced", lambda graph, device: slicing.sliced(graph, CPU))
    built = inference.build(net, shape, queue=queue, layout=layout)
    assert {layer.problem.mb for layer in built.layers if layer.problem is not None} == {2}
    np.testing.assert_allclose(built(x), wanted, rtol=1e-4, atol=1e-5 * np.abs(wanted).max())


def test_what_is_handed_on_is_written_in_place(queue, small):
    """Only convolutions write into a part of a larger memory: a pool's result is not cut."""
    net = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.MaxPool2d(3, 1, 1), nn.Flatten())
    graph = building.traced_and_fused(net, [SHAPE], np.float32, queue, None)
    cut = slicing.sliced(graph, CPU)
    assert [node.name for node in cut.nodes[:3]] == ["convolution", "convolution", "concatenate"]
    assert [node.result.shape[0] for node in cut.nodes if node.name == "max_pool"] == [4]


@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
def test_slices_compute_what_the_net_computes(queue, small, monkeypatch, layout):
    x, net = np.random.default_rng(1).standard_normal(SHAPE).astype(np.float32), Block()
    wanted = net(Tensor.from_numpy(x, queue)).numpy()
    graph = building.traced_and_fused(net, [SHAPE], np.float32, queue, None)
    assert images(slicing.sliced(relayout(graph, layout), CPU))[0] < 4
    monkeypatch.setattr(slicing, "sliced", lambda graph, device, real=slicing.sliced: real(graph, CPU))
    monkeypatch.setattr(building, "sliced", slicing.sliced)
    built = inference.build(net, SHAPE, queue=queue, layout=layout)
    assert next(layer.problem.mb for layer in built.layers if layer.problem is not None) < 4
    np.testing.assert_allclose(built(x), wanted, rtol=1e-4, atol=1e-5 * np.abs(wanted).max())
    mine = inference.problems(net, SHAPE, queue=queue, layout=layout)
    assert {p.mb for p in mine} >= {2, 4} or {p.mb for p in mine} >= {1, 4}
