"""Mixed precision: what autocast rounds, gradients' dtypes, batch norm's float32 sums, loss scaling."""

import numpy as np
import pytest

from convdispatch import nn
from convdispatch.api.errors import InvalidArgument
from convdispatch.inference.passes.precision import dtype_of
from convdispatch.nn import functional
from convdispatch.nn.functional import cross_entropy
from convdispatch.tensor import Tensor


class Block(nn.Module):
    def __init__(self, rng):
        self.conv1 = nn.Conv2d(3, 8, 3, padding=1, bias=False, rng=rng)
        self.norm = nn.BatchNorm2d(8, activation="relu")
        self.conv2 = nn.Conv2d(8, 8, 3, padding=1, rng=rng)
        self.head = nn.Linear(8, 4, rng=rng)

    def forward(self, x):
        x = self.norm(self.conv1(x))
        x = functional.relu(self.conv2(x) + x)
        return self.head(functional.global_average_pool(x).reshape(x.shape[0], 8))


def gradients(dtype, scale=1.0):
    rng = np.random.default_rng(0)
    net = Block(rng)
    x = Tensor.from_numpy((30 * rng.standard_normal((6, 3, 9, 7)) + 100).astype(np.float32))
    labels = Tensor.from_numpy((np.arange(6) % 4).astype(np.int32))
    with nn.autocast(dtype), nn.Tape() as tape:
        logits = net(x)
        loss = cross_entropy(logits.astype(np.float32), labels)
    tape.backward(loss, nn.LossScaler(scale).gradient)
    assert logits.dtype == dtype_of(dtype)
    return float(loss.numpy()), {n: p.grad.numpy() / scale for n, p in net.named_parameters()}, net


@pytest.mark.parametrize(("dtype", "scale", "limit"), [("bfloat16", 1.0, 0.1), ("float16", 1024.0, 0.02)])
def test_gradients_follow_float32(dtype, scale, limit):
    loss, wanted, plain = gradients("float32")
    half, found, net = gradients(dtype, scale)
    assert half == pytest.approx(loss, rel=limit)
    for name, gradient in wanted.items():
        assert found[name].dtype == np.float32
        error = np.linalg.norm(found[name] - gradient) / np.linalg.norm(gradient)
        assert 0 < error < limit, name  # not 0: something was rounded
    # Sums of 63 * 6 squares of a hundred or more are above float16's largest number: statistics are float32's.
    for name in ("running_mean", "running_var"):
        kept, other = (getattr(each.norm, name).numpy() for each in (net, plain))
        np.testing.assert_allclose(kept, other, rtol=limit, atol=limit)


def test_a_cast_has_a_gradient_of_its_operands_dtype():
    x = nn.Parameter(Tensor.from_numpy(np.ones(4, np.float16)))
    with nn.Tape() as tape:
        y = x.astype(np.float32) * 3.0
        total = functional.sum(y) if hasattr(functional, "sum") else y.reshape(4)[0:1]
    (got,) = tape.backward(total, Tensor.from_numpy(np.ones(total.shape, np.float32)), keep=[x])
    assert got.dtype == np.float16


@pytest.mark.parametrize("make", [lambda p: nn.SGD(p, 0.1), lambda p: nn.SGD(p, 0.1, 0.9, 0.01, True), nn.Adam])
def test_a_step_with_an_infinite_gradient_changes_the_scale_alone(make):
    values = np.arange(1, 6, dtype=np.float32)
    plain, scaled = (nn.Parameter(Tensor.from_numpy(values)) for _ in range(2))
    first, second, scaler = make([plain]), make([scaled]), nn.LossScaler(8.0, interval=2)
    slope = np.array([1, -2, 3, 0.5, 0], np.float32)

    def step(bad=None):
        given = slope * np.float32(scaler.scale)
        if bad is not None:
            given[2] = bad
        scaled.grad.write(given)
        second.step(scaler)
        if bad is None:
            plain.grad.write(slope)
            first.step()

    step()
    np.testing.assert_allclose(scaled.numpy(), plain.numpy(), rtol=1e-6)
    for bad, scale in ((np.inf, 4.0), (np.nan, 2.0), (-np.inf, 1.0), (np.inf, 1.0)):  # 1 is the least
        before, state = scaled.numpy(), {n: t.numpy() for n, t in second.state.items()}
        step(bad)
        np.testing.assert_array_equal(scaled.numpy(), before)
        for name, array in state.items():
            np.testing.assert_array_equal(second.state[name].numpy(), array)
        assert scaler.scale == scale
    first.steps = second.steps
    step()
    assert scaler.scale == 1.0
    first.steps = second.steps
    step()
    assert scaler.scale == 2.0  # two steps went well
    np.testing.assert_allclose(scaled.numpy(), plain.numpy(), rtol=1e-5)


def test_what_is_refused():
    with pytest.raises(InvalidArgument, match="autocast takes float16, bfloat16 or float32, got float64"):
        nn.autocast(np.float64)
    with pytest.raises(InvalidArgument, match="a scale is 1 to"):
        nn.LossScaler(0.5)
    with pytest.raises(InvalidArgument, match="state is scale and well"):
        nn.LossScaler().load_state_dict({"scale": np.ones(1)})
