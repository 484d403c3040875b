"""How many kernels a convolution's training launches: each pass over memory is one, and nothing is copied."""

from collections import Counter

import numpy as np
import pytest
from small_net import normal

from convdispatch.device.programs import kernels
from convdispatch.nn import Conv2d, MaxPool2d, Sequential, Tape
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
