"""Batch norm's own kernels for GPUs: the same values as the formulas give, from fewer launches."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from as_gpu import as_gpu
from checking import compare
from small_net import normal

from convdispatch.device.programs.kernels import Launch
from convdispatch.nn import Parameter, Tape, capture, functional
from convdispatch.nn.normalization import batch_norm_kernel
from convdispatch.tensor import Tensor

SHAPES = {
    "rows of whole vectors": (3, 5, 4, 6),
    "single elements": (2, 7, 3, 5),
    "one image": (1, 3, 8, 8),
    "one axis": (4, 3, 20),
    "many values": (5, 2, 33, 20),
    "more items than values": (2, 4, 2, 4),
}


@pytest.fixture(params=["a group a channel", "channels shared"])
def gpu(request, monkeypatch):
    """As a GPU: small channels, and those that several groups share."""
    as_gpu(monkeypatch, batch_norm_kernel, compute_units=4)
    if request.param == "channels shared":
        monkeypatch.setattr(batch_norm_kernel, "ONE_GROUP_VALUES", 0)
        monkeypatch.setattr(batch_norm_kernel, "SHARED_VALUES", 0)
        monkeypatch.setattr(batch_norm_kernel, "SHARE_GROUP_ITEMS", 16)
    batch_norm_kernel._launches.cache_clear()
    yield request.param
    batch_norm_kernel._launches.cache_clear()


@pytest.fixture
def launched(monkeypatch):
    """Kernels launched so far, by name."""
    count: Counter[str] = Counter()
    real = Launch.__call__
    monkeypatch.setattr(
        Launch, "__call__", lambda self, *a, **k: count.update([self.kernel.name]) or real(self, *a, **k)
    )
    return count


def layer(queue, shape, start=0, seed=0):
    """x, scale, shift, residual as Parameters, running mean and variance; x begins so many elements in."""

    def lie(array):
        memory = Tensor.from_numpy(np.concatenate([np.zeros(start, np.float32), array.ravel()]), queue)
        return memory[start:].reshape(array.shape)

    c = shape[1]
    x = 2 * normal(*shape, seed=seed) + normal(c, seed=1).reshape(c, *[1] * (len(shape) - 2)) * 30
    vectors = [normal(c, seed=2) + 1, normal(c, seed=3), normal(c, seed=4), np.abs(normal(c, seed=5))]
    arrays = [x, *vectors[:2], normal(*shape, seed=6)]
    return [Parameter(lie(a)) for a in arrays], [lie(a) for a in vectors[2:]], arrays, vectors[2:]


def run(operands, running, dy, activation, residual, layout="nchw"):
    """Result, gradients, running statistics."""
    x, scale, shift, other = operands
    for operand in operands:
        operand.grad = None
    with Tape() as tape:
        options = {"activation": activation, "residual": other if residual else None, "layout": layout}
        y = functional.batch_norm(x, scale, shift, *running, training=True, momentum=0.2, **options)
    tape.backward(y, dy)
    return [y, x.grad, scale.grad, shift.grad, *([other.grad] if residual else []), *running]


@pytest.mark.parametrize("residual", [False, True])
@pytest.mark.parametrize("activation", [None, "relu"])
@pytest.mark.parametrize("name", SHAPES)
def test_values_and_gradients(queue, thinned, gpu, launched, name, activation, residual):
    thinned(list(SHAPES).index(name) % 2 ^ (activation == "relu") ^ residual)
    torch = pytest.importorskip("torch", reason="torch is not installed")
    shape = SHAPES[name]
    for start in (0, 3):
        operands, running, arrays, statistics = layer(queue, shape, start)
        theirs = [torch.tensor(a.astype(np.float64), requires_grad=True) for a in arrays]
        means = [torch.tensor(a.astype(np.float64)) for a in statistics]
        y = torch.nn.functional.batch_norm(theirs[0], *means, *theirs[1:3], training=True, momentum=0.2)
        y = y + theirs[3] if residual else y
        y = torch.relu(y) if activation else y
        dy = normal(*shape, seed=7)
        y.backward(torch.tensor(dy))
        launched.clear()
        got = run(operands, running, Tensor.from_numpy(dy, queue), activation, residual)
        assert launched["batch_norm"] == launched["batch_norm_backward"] == 1
        assert launched["batch_norm_sums"] == (gpu == "channels shared")
        assert not launched["reduce_over"]
        expected = [y.detach(), *(t.grad for t in theirs[: 4 if residual else 3]), *means]
        for mine, other in zip(got, expected, strict=True):
            compare(mine.numpy(), other.numpy(), 2e-5)


def test_nan_and_gradients_that_are_views(queue, gpu):
    operands, running, arrays, _ = layer(queue, (2, 3, 4, 4))
    dy = Tensor.from_numpy(normal(2, 4, 4, 3), queue).transpose(0, 3, 1, 2)
    first = [t.numpy() for t in run(operands, running, dy, "relu", False)]
    again, others, _, _ = layer(queue, (2, 3, 4, 4))
    second = [t.numpy() for t in run(again, others, dy.copy(), "relu", False)]
    for a, b in zip(first, second, strict=True):
        np.testing.assert_array_equal(a, b)
    arrays[0][1, 2, 3, 3] = np.nan
    operands[0].write(arrays[0])
    y = run(operands, running, dy, "relu", False)[0].numpy()
    assert np.isnan(y[:, 2]).all()
    assert not np.isnan(y[:, :2]).any()


@pytest.mark.parametrize(
    "case", ["channels last", "float16", "a view", "few pixels", "x without a gradient", "a residual that broadcasts"]
)
def test_formulas_do_the_rest(queue, gpu, launched, case):
    shape = (4, 3, 1, 2) if case == "few pixels" else (4, 3, 4, 5)
    operands, running, arrays, _ = layer(queue, shape)
    x, scale, shift, other = operands
    layout, residual = "nchw", None
    if case == "channels last":
        layout, x = "nhwc", x.transpose(0, 2, 3, 1).copy()
    elif case == "float16":
        x = x.astype("float16")
    elif case == "a view":
        x = x[:, :, ::2]
    elif case == "x without a gradient":
        x = Tensor.from_numpy(arrays[0], queue)
    elif case == "a residual that broadcasts":
        residual = other[:1]
    with Tape():
        functional.batch_norm(x, scale, shift, *running, training=True, residual=residual, layout=layout)
    assert not launched["batch_norm"]


def test_captured(queue, gpu):
    """Partial sums and statistics live in the recording's memory."""
    operands, running, _, _ = layer(queue, (3, 4, 6, 6))
    others, still, _, _ = layer(queue, (3, 4, 6, 6))

    def step(operands, running):
        return lambda dy: [t + 0 for t in run(operands, running, dy, "relu", True)]

    captured, plain = capture(step(operands, running)), step(others, still)
    for seed in range(4):
        dy = Tensor.from_numpy(normal(3, 4, 6, 6, seed=seed), queue)
        for a, b in zip(captured(dy), plain(dy), strict=True):
            np.testing.assert_array_equal(a.numpy(), b.numpy())
