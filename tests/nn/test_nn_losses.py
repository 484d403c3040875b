"""Cross-entropy, and softmax as a device gets it and in a GPU's form: few rows and many, narrow and wide."""

import numpy as np
import pytest
from as_gpu import as_gpu
from checking import compare
from small_net import normal

from convdispatch.nn import Parameter, Tape, functional, losses
from convdispatch.tensor import Tensor


@pytest.fixture
def gpu(monkeypatch):
    """Kernels as a GPU gets them."""
    as_gpu(monkeypatch, losses)
    losses._softmax.cache_clear()
    yield
    losses._softmax.cache_clear()


SHAPES = [(1, 1), (5, 10), (7, 1000), (37, 70), (1200, 12), (3, 20_000)]


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_cross_entropy(queue, shape, reduction):
    rows, width = shape
    x, labels = 4 * normal(rows, width), np.random.default_rng(2).integers(0, width, rows).astype(np.int32)
    wide = x.astype(np.float64)
    wide -= wide.max(1, keepdims=True)
    each = np.log(np.exp(wide).sum(1)) - wide[np.arange(rows), labels]
    expected = {"mean": each.mean(), "sum": each.sum(), "none": each}[reduction]
    slope = np.exp(wide) / np.exp(wide).sum(1, keepdims=True)
    slope[np.arange(rows), labels] -= 1
    logits, labels = Parameter(Tensor.from_numpy(x, queue)), Tensor.from_numpy(labels, queue)
    with Tape() as tape:
        loss = functional.cross_entropy(logits, labels, reduction=reduction)
    np.testing.assert_allclose(loss.numpy(), expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(functional.cross_entropy(logits, labels, reduction=reduction).numpy(), loss.numpy())
    dy = normal(*loss.shape, seed=1)
    tape.backward(loss, Tensor.from_numpy(dy, queue))
    scale = 1 / rows if reduction == "mean" else 1
    compare(logits.grad.numpy(), slope * dy.reshape(-1, 1) * scale, 1e-5)


@pytest.mark.parametrize("rows", [3, 50])
def test_a_label_that_is_no_class(queue, rows):
    labels = np.zeros(rows, np.int32)
    labels[1] = 4
    x = Parameter(Tensor.from_numpy(normal(rows, 4), queue))
    with Tape() as tape:
        loss = functional.cross_entropy(x, Tensor.from_numpy(labels, queue))
    assert np.isnan(loss.numpy())
    tape.backward(loss)
    assert np.isnan(x.grad.numpy()).all(1).tolist() == (labels == 4).tolist()


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("shape", [(1,), (3, 1), (2, 3, 70), (5, 64), (2, 65), (3, 256), (3, 257), (3, 5000)], ids=str)
def test_softmax(queue, gpu, shape, dtype):
    """Values up to 5e4 of one sign, and of both."""
    if dtype == "float64" and not queue.device.double_fp_config:
        pytest.skip("the device has no float64")
    x = (4 * normal(*shape)).astype(dtype)
    x[..., 0], x[-1] = 1000, x[-1] - (5e4 if len(shape) > 1 else 0)
    expected = np.exp(x.astype(np.float64) - x.max(-1, keepdims=True))
    expected /= expected.sum(-1, keepdims=True)
    compare(functional.softmax(Tensor.from_numpy(x, queue)).numpy(), expected, 2e-6)


@pytest.mark.parametrize(("rows", "width"), [(1, 1), (130, 2), (96, 15), (5, 16), (400, 17), (64, 49), (3, 1000)])
def test_softmax_of_rows_by_themselves(queue, rows, width):
    """The device's own kernel: rows of a group, ends of rows, masked elements, and a NaN that stays in its row."""
    memory = 4 * normal(rows + 1, width)
    memory[1:, width // 2] = -np.inf if width > 1 else 0
    memory[rows, -1] = np.nan
    got = functional.softmax(Tensor.from_numpy(memory, queue)[1:]).numpy()
    x = memory[1:].astype(np.float64)
    expected = np.exp(x - x.max(1, keepdims=True))
    expected /= expected.sum(1, keepdims=True)
    compare(got[:-1], expected[:-1], 2e-6)
    assert np.isnan(got[-1]).all()


def test_small_slopes_of_halves_survive_a_large_gradient(queue):
    """Losses in float16 are scaled up before they are differentiated; a mean's 1/mb must not come before that."""
    x = np.zeros((512, 1000), np.float16)
    logits = Parameter(Tensor.from_numpy(x, queue))
    with Tape() as tape:
        loss = functional.cross_entropy(logits, np.zeros(512, np.int32))
    tape.backward(loss, Tensor.from_numpy(np.float16(4096), queue))
    got = logits.grad.numpy().astype(np.float64)
    np.testing.assert_allclose(got[:, 1:], 4096 / 512 / 1000, rtol=2e-3)
