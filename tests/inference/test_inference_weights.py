"""Constant weights on their way into plans: folded aside, packed once, and the same however long that takes."""

import threading

import numpy as np
import pyopencl as cl
import pytest
import small_net

from convdispatch import inference, nn
from convdispatch.device import runtime
from convdispatch.inference import building, graph
from convdispatch.inference.passes import fusion as fusing
from convdispatch.inference.passes import slicing
from convdispatch.nn import functional
from convdispatch.selection.prepared import Constant
from convdispatch.tensor import Tensor

SHAPE = (2, 5, 9, 11)


def normed(queue, channels, seed=0, scale=1.0):
    """A batch norm with values of its own."""
    rng, made = np.random.default_rng(seed), nn.BatchNorm2d(channels, queue=queue)
    for parameter in (made.weight, made.bias, made.running_mean):
        parameter.write((scale * rng.standard_normal(channels)).astype(np.float32))
    made.running_var.write((0.1 + rng.random(channels)).astype(np.float32))
    return made.eval()


class Twice(nn.Module):
    """Two norms after one convolution, and one convolution's weights under two norms."""

    def __init__(self, queue, scale):
        self.conv = nn.Conv2d(5, 7, 3, padding=1, queue=queue)
        self.last = nn.Conv2d(7, 4, 1, bias=False, queue=queue)
        self.norms = [normed(queue, 7, seed, scale) for seed in range(3)]

    def forward(self, x):
        first = self.norms[1](self.norms[0](self.conv(x)))
        return self.last(first + self.norms[2](self.conv(x)))


@pytest.mark.parametrize("layout", ["nchw", "nhwc", None])
@pytest.mark.parametrize("scale", [1.0, 2.0**40])
def test_norms_that_follow_each_other_or_share_weights(queue, layout, scale):
    net, x = Twice(queue, scale).eval(), small_net.normal(*SHAPE)
    wanted = net(Tensor.from_numpy(x, queue)).numpy()
    got = inference.build(net, SHAPE, queue=queue, layout=layout)(x)
    np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-5 * np.abs(wanted).max())


@pytest.mark.parametrize("kernel", [1, 3])
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
def test_weights_are_rounded_once(queue, dtype, kernel):
    if dtype == "float64" and not queue.device.double_fp_config:
        pytest.skip("the device has no float64")
    rng = np.random.default_rng(2)
    w = (rng.standard_normal((6, 5, kernel, kernel)) * 2.0 ** rng.integers(-8, 8, (6, 1, 1, 1))).astype(dtype)
    parts = [rng.standard_normal(6).astype(dtype) for _ in range(3)] + [(0.1 + rng.random(6)).astype(dtype)]

    def net(x):
        y = functional.convolution(x, Tensor.from_numpy(w, queue), padding=kernel // 2)
        return functional.batch_norm(y, *(Tensor.from_numpy(part, queue) for part in parts), training=False)

    graph = building.traced_and_fused(net, [SHAPE], np.dtype(dtype), queue, None)
    graph.background.end()
    (node,) = graph.nodes
    factor, bias = functional.folding(*parts)
    np.testing.assert_array_equal(node.kwargs["w"].numpy(), (w * factor.reshape(-1, 1, 1, 1)).astype(dtype))
    np.testing.assert_array_equal(node.kwargs["bias"].numpy(), bias.astype(dtype))


@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
def test_plans_wait_for_weights_that_are_still_computed(queue, monkeypatch, layout):
    """Everything else is planned before the first product is made."""
    net, x = small_net.net(queue).eval(), small_net.normal(1, 3, 13, 13)
    wanted = inference.build(net, x.shape, queue=queue, layout=layout)(x)
    gate, multiply = threading.Event(), np.multiply

    def late(*args, **kwargs):
        assert gate.wait(300)
        return multiply(*args, **kwargs)

    class Slow:
        """NumPy whose products wait."""

        multiply = staticmethod(late)

        def __getattr__(self, name):
            return getattr(np, name)

    monkeypatch.setattr(fusing, "np", Slow())
    take = graph.Weights.take

    def taken(self, *given):
        threading.Timer(0.2, gate.set).start()
        return take(self, *given)

    monkeypatch.setattr(graph.Weights, "take", taken)
    got = inference.build(net, x.shape, queue=queue, layout=layout)(x)
    np.testing.assert_array_equal(got, wanted)


def test_slices_share_packed_weights(queue, monkeypatch):
    packed, real = [], Constant.packed
    monkeypatch.setattr(Constant, "packed", lambda self, *given: packed.append(self) or real(self, *given))
    monkeypatch.setattr(slicing, "LARGE", 1)
    monkeypatch.setattr(slicing, "SLICE_BYTES", 1)
    cpu = type("Info", (), {"type": "cpu"})()
    monkeypatch.setattr(building, "sliced", lambda graph, device, real=slicing.sliced: real(graph, cpu))
    net = nn.Sequential(nn.Conv2d(5, 8, 3, padding=1, queue=queue), nn.Conv2d(8, 6, 1, queue=queue))
    x = small_net.normal(*SHAPE)
    form = inference.build(net, SHAPE, queue=queue, layout="nchw")
    assert len([layer for layer in form.layers if layer.problem is not None]) == 4
    assert len(packed) <= 2
    wanted = net(Tensor.from_numpy(x, queue)).numpy()
    np.testing.assert_allclose(form(x), wanted, rtol=1e-4, atol=1e-5)


def test_the_weights_may_lie_elsewhere(device):
    """Another context stands for another device."""
    model = small_net.net(runtime.queue(device)).eval()
    here = inference.build(model, (2, 3, 14, 14), queue=runtime.queue(device), layout="nchw")
    context = cl.Context([device])
    other = cl.CommandQueue(context)
    there = inference.build(model, (2, 3, 14, 14), queue=other, layout="nchw")
    assert there.queue.context == context
    x = small_net.normal(2, 3, 14, 14)
    np.testing.assert_array_equal(there(x), here(x))
