"""What a device cannot hold is said before anything is planned, in every function."""

from __future__ import annotations

import numpy as np
import pyopencl as cl
import pyopencl.array
import pytest

from convdispatch import (
    ConvProblem,
    MemoryLimit,
    Tensor,
    conv,
    conv_backward_data,
    conv_backward_weights,
    conv_transpose,
    explain,
    find,
)
from convdispatch.api.device import DeviceInfo
from convdispatch.device import runtime
from convdispatch.device.size_limits import must_fit, problem_must_fit
from convdispatch.nn import functional
from convdispatch.selection import solver_query

X, W = np.ones((1, 4, 8, 8), np.float32), np.ones((4, 4, 3, 3), np.float32)


def million(*shape: int) -> np.ndarray:
    """A million images, in the memory of one number."""
    return np.broadcast_to(np.float32(1), (10**6, *shape))


CALLS = {
    "padding 2**17": lambda: conv(X, W, padding=2**17),
    "padding 2**31": lambda: conv(X, W, padding=2**31),
    "padding 2**62": lambda: conv(X, W, padding=2**62),
    "a million images": lambda: conv(million(4, 512, 512), W, padding=1),
    "a million results": lambda: conv(million(4, 8, 8), np.ones((10**4, 4, 1, 1), np.float32)),
    "channels last": lambda: conv(X, np.ones((4, 3, 3, 8), np.float32), padding=2**17, layout="nhwc"),
    "1-D": lambda: conv(X[:, :1, 0], W[:1, :1, 0], padding=2**40),
    "data gradient": lambda: conv_backward_data(million(4, 512, 512), W, (10**6, 4, 512, 512), padding=1),
    "weights' gradient": lambda: conv_backward_weights(million(4, 512, 512), million(4, 512, 512), W.shape, padding=1),
    "large weights": lambda: conv_backward_weights(
        np.ones((1, 1, 1, 1), np.float32),
        np.ones((1, 1, 1, 1), np.float32),
        (1, 1, 2**21 + 1, 2**21 + 1),
        padding=2**20,
    ),
    "transposed": lambda: conv_transpose(X, W, stride=2**15),
    "find": lambda: find("mb1000000ic4ih512oc4kh3ph1"),
    "explain": lambda: explain("mb1ic4ih8oc4kh3ph131072"),
}


@pytest.fixture
def nobody_is_asked(device, monkeypatch):
    """Fails a test in which solvers are asked."""

    def ask(*_):
        pytest.fail("solvers were asked about what the device cannot hold")

    monkeypatch.setattr(solver_query.SolverAnswers, "__init__", ask)


@pytest.mark.parametrize("name", CALLS)
def test_before_planning(nobody_is_asked, name):
    with pytest.raises(MemoryLimit, match="take smaller batches"):
        CALLS[name]()


@pytest.mark.parametrize("kind", ["tensor", "array"])
def test_arrays_on_a_device(nobody_is_asked, queue, kind):
    def make(values):
        return Tensor.from_numpy(values, queue) if kind == "tensor" else cl.array.to_device(queue, values)

    x, w = make(X), make(W)
    for call in (lambda: conv(x, w, padding=2**17), lambda: conv_transpose(x, w, stride=2**15)):
        with pytest.raises(MemoryLimit, match="take smaller batches"):
            call()


def test_pools_and_tensors(queue):
    x = Tensor.from_numpy(X, queue)
    for call in (
        lambda: functional.adaptive_avg_pool(x, 2**17),
        lambda: Tensor.empty((2**20, 2**20), np.float32, queue),
        lambda: runtime.allocate(queue, 2**45),
        lambda: runtime.fresh(queue, 2**45),
    ):
        with pytest.raises(MemoryLimit, match="take smaller batches"):
            call()


def test_a_host_without_memory(device, monkeypatch):
    """NumPy's bare MemoryError becomes a sentence."""
    conv(X, W)

    def full(*_):
        raise MemoryError("Unable to allocate 9 TiB")

    monkeypatch.setattr(np, "empty", full)
    with pytest.raises(MemoryLimit, match="no memory left"):
        conv(X, W)


def test_the_limits_themselves():
    """One tensor against the largest allocation, all of them against the memory; what is not known is no limit."""
    problem = ConvProblem.parse("mb1ic4ih8oc4kh3ph1")  # x and y 1024 bytes, w 576

    def device(largest, memory):
        return DeviceInfo("small", "acme", "gpu", "", max_alloc_size=largest, global_mem_size=memory)

    for largest, memory in ((1024, 2624), (0, 0), (0, 2624), (1024, 0)):
        problem_must_fit(problem, device(largest, memory))
    with pytest.raises(MemoryLimit, match=r"x of shape .1, 4, 8, 8. takes 1024 bytes, but small allocates 1023 bytes"):
        problem_must_fit(problem, device(1023, 0))
    with pytest.raises(MemoryLimit, match=r"take 2624 bytes .x 1024 bytes, w 576 bytes, y 1024 bytes., but small has"):
        problem_must_fit(problem, device(0, 2623))
    with pytest.raises(MemoryLimit, match="3648 bytes"):
        problem_must_fit(problem.replace(residual=True), device(0, 2624))
    with pytest.raises(MemoryLimit, match=r"x .* takes 1.5 GiB"):
        must_fit(device(1 << 30, 0), 4, {"x": (3, 1 << 27)})
