"""How many kernels a training step launches: each pass over memory is one, and nothing is copied that need not be."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from small_net import LABELS, net, normal

from convdispatch.device.programs import kernels
from convdispatch.nn import SGD, Adam, BatchNorm2d, Conv2d, MaxPool2d, Parameter, Sequential, Tape, functional
from convdispatch.tensor import Tensor


@pytest.fixture
def launched(monkeypatch):
    """Kernels launched so far, by name and first line of their text."""
    count: Counter[str] = Counter()
    real = kernels.Launch.__call__

    def call(launch, *args, **kwargs):
        count[launch.kernel.name] += 1
        return real(launch, *args, **kwargs)

    monkeypatch.setattr(kernels.Launch, "__call__", call)
    return count


OPTIMIZERS = {
    "sgd": lambda p: SGD(p, 0.1),
    "momentum": lambda p: SGD(p, 0.1, momentum=0.9, weight_decay=0.1),
    "nesterov": lambda p: SGD(p, 0.1, momentum=0.9, nesterov=True),
    "adam": lambda p: Adam(p, 0.1, weight_decay=0.1),
}


@pytest.mark.parametrize("which", OPTIMIZERS)
def test_an_optimisers_step_is_one_kernel(queue, launched, which):
    parameters = [Parameter(Tensor.from_numpy(normal(n, seed=n), queue)) for n in range(1, 21)]
    optimizer = OPTIMIZERS[which](parameters)
    for parameter in parameters:
        parameter.grad.write(np.ones(parameter.shape))
    for _ in range(3):
        launched.clear()
        optimizer.step()
        assert launched == {"apply": 1}


def passes(queue, launched, module, x):
    """Element-wise kernels, reductions and poolings of a forward and backward pass, once gradients have memory."""
    dy = None
    for _ in range(2):
        launched.clear()
        with Tape() as tape:
            y = module(x)
        dy = dy or Tensor.from_numpy(np.ones(y.shape, np.float32), queue)
        tape.backward(y, dy)
    return {name: launched[name] for name in ("apply", "reduce_over", "pool", "pool_backward") if launched[name]}


def test_a_convolution_with_relu_before_a_pooling_adds_four(queue, launched):
    """Pooling, its gradient, the ReLU's slope and the bias' gradient."""
    module = Sequential(Conv2d(3, 4, 3, activation="relu", queue=queue), MaxPool2d(2))
    x = Tensor.from_numpy(normal(2, 3, 10, 10), queue)
    assert passes(queue, launched, module, x) == {"apply": 1, "pool": 1, "pool_backward": 1, "reduce_over": 1}


def test_a_convolution_with_relu_adds_two(queue, launched):
    """The slope, and its sum over images and pixels."""
    x = Tensor.from_numpy(normal(2, 3, 10, 10), queue)
    assert passes(queue, launched, Conv2d(3, 4, 3, activation="relu", queue=queue), x) == {"apply": 1, "reduce_over": 1}


@pytest.mark.parametrize("residual", [False, True])
def test_a_batch_norm_reads_its_input_four_times(queue, launched, residual):
    """Statistics, result; sums, gradient. Beside them a kernel over the channels in each direction."""
    module = BatchNorm2d(4, activation="relu", queue=queue)
    x, other = (Parameter(Tensor.from_numpy(normal(2, 4, 6, 6, seed=i), queue)) for i in range(2))
    for parameter in (x, other):
        parameter.grad = Tensor.empty(x.shape, queue=queue)
    seen = passes(queue, launched, lambda x: module(x, residual=other if residual else None), x)
    delivered = 1 + residual  # here x and the residual are Parameters, to whose gradients is copied
    assert seen == {"reduce_over": 2, "apply": 4 + delivered + residual}  # the slope, where a residual needs it too


def test_a_whole_step_launches_no_more_than_it_did(queue, launched):
    module = net(queue)
    optimizer = SGD(module.parameters(), 0.1, momentum=0.9)
    x = Tensor.from_numpy(normal(4, 3, 14, 14), queue)
    labels = Tensor.from_numpy(LABELS, queue)
    for _ in range(2):
        launched.clear()
        with Tape() as tape:
            loss = functional.cross_entropy(module(x), labels)
        tape.backward(loss)
        optimizer.step()
    # Batch norm's four; a convolution's slope; the optimiser. The loss's slope is its gradient as it is.
    assert launched["apply"] == 4 + 1 + 1
    # Batch norm's two, a convolution's and a linear map's bias, the mean of the losses.
    assert launched["reduce_over"] == 2 + 2 + 1
