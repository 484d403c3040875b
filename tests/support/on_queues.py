"""Fixtures of warm calls on OpenCL's queues: arrays, how they are read, and how often launches were given again."""

from __future__ import annotations

import numpy as np
import pyopencl.array as cla
import pytest
from checking import make_operands

import convdispatch as cd
from convdispatch import ConvProblem, Tensor
from convdispatch.device.places.queue import QueueLaunches

PROBLEM = ConvProblem.parse("mb1ic4ih8oc8kh3ph1")


@pytest.fixture
def given(monkeypatch):
    """The launches of executables that ran, one after the other."""
    found, own = [], QueueLaunches.run
    monkeypatch.setattr(QueueLaunches, "run", lambda *rest: found.append(rest[0]) or own(*rest))
    return found


@pytest.fixture(params=["array", "tensor"])
def bring(request, queue):
    """From NumPy to a kind of array; ``bring.queue`` is the queue."""

    def made(array, queue=queue):
        return cla.to_device(queue, array) if request.param == "array" else Tensor.from_numpy(array, queue)

    made.queue = queue
    return made


def values(array):
    return array.get() if isinstance(array, cla.Array) else array.numpy()


def turns(problem, bring, count):
    """Operands on the queue and what they give, of several calls in turn."""
    made = (make_operands(problem, seed=seed) for seed in range(count))
    return [({name: bring(array) for name, array in ops.present().items()}, expected) for ops, expected in made]


def warm(bring, new):
    """(x, w, out or None, the expected result) of a call that has been made three times."""
    ((arrays, expected),) = turns(PROBLEM, bring, 1)
    out = None if new else bring(np.zeros(PROBLEM.out_shape, np.float32))
    for _ in range(3):
        cd.conv(arrays["x"], arrays["w"], padding=1, out=out)
    return arrays["x"], arrays["w"], out, expected
