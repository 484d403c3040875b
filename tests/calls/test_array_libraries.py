"""PyTorch's and JAX's arrays on the host: in as they are, out as the same kind, errors in the caller's terms."""

from __future__ import annotations

import numpy as np
import pytest
from checking import make_operands

import convdispatch as cd
from bench.place import options_of
from convdispatch import ConvProblem, InvalidArgument
from convdispatch.api.problem import DIRECTIONS
from convdispatch.device.commands import host_memory

torch = pytest.importorskip("torch", reason="torch is not installed (extra: torch)")
PROBLEM = ConvProblem.parse("mb2ic5ih7iw6oc9kh3kw2sh2sw1ph1pw1")


def _call(problem, given, **more):
    keys = options_of(problem) | more
    if problem.direction == "fwd":
        return cd.conv(given["x"], given["w"], **keys)
    if problem.direction == "bwd_data":
        return cd.conv_backward_data(given["y"], given["w"], problem.x_shape, **keys)
    return cd.conv_backward_weights(given["x"], given["y"], problem.w_shape, **keys)


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_tensors_in_and_out(direction):
    problem = PROBLEM.replace(direction=direction)
    operands, expected = make_operands(problem)
    given = {name: torch.from_numpy(np.ascontiguousarray(array)) for name, array in operands.present().items()}
    y = _call(problem, given)
    assert type(y) is torch.Tensor
    assert np.array_equal(y.numpy(), expected)
    out = torch.full(y.shape, float("nan"))
    assert _call(problem, given, out=out) is out
    assert torch.equal(out, y)


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
def test_every_dtype(dtype):
    kind = getattr(torch, dtype)
    x, w = torch.ones(1, 4, 5, 5, dtype=kind), torch.ones(4, 4, 1, 1, dtype=kind)
    y = cd.conv(x, w)
    assert y.dtype is kind
    assert (y == 4).all()


def test_strides_gradients_and_constants():
    x = torch.randn(2, 8, 6, 6).to(memory_format=torch.channels_last)
    w = torch.nn.Parameter(torch.randn(8, 8, 3, 3))
    expected = torch.nn.functional.conv2d(x, w, padding=1).detach()
    for _ in range(2):  # a repeated call takes another way
        with pytest.raises(InvalidArgument, match="records no gradients"):
            cd.conv(x, w, padding=1)
        with torch.no_grad():
            assert torch.allclose(cd.conv(x, w, padding=1), expected, atol=1e-4)
    w = w.detach()
    kept = cd.constant(w)
    for _ in range(2):
        assert torch.allclose(cd.conv(x, kept, padding=1), expected, atol=1e-4)
    every_second = torch.zeros(2, 8, 12, 6)[:, :, ::2]
    cd.conv(x, w, padding=1, out=every_second)
    assert torch.allclose(every_second, expected, atol=1e-4)


def test_memory_is_not_copied(device):
    if not host_memory.has_system_svm(device):
        pytest.skip("the device has no fine-grained system SVM")
    x, w = torch.ones(1, 16, 64, 64), torch.ones(16, 16, 1, 1)
    pool = host_memory.pool_of(device)
    y = cd.conv(x, w)
    active = pool.active_blocks
    place = y.data_ptr()
    del y
    assert pool.active_blocks == active - 1
    assert cd.conv(x, w).data_ptr() == place


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"w": np.ones((4, 4, 1, 1), np.float32)}, "w must be a torch.Tensor as x is, got ndarray"),
        ({"x": np.ones((1, 4, 5, 5), np.float32)}, "w must be a NumPy array"),
        ({"w": torch.ones(4, 4, 1, 1, dtype=torch.float64)}, "w must be float32 as x is, got float64"),
        ({"x": torch.ones(1, 4, 5, 5, device="meta")}, "must be on the CPU or a CUDA device, got meta"),
        ({"w": torch.ones(4, 3, 1, 1)}, "takes 3 channels a group"),
        ({"x": torch.ones(1, 4, 5, 5, dtype=torch.int32), "w": torch.ones(4, 4, 1, 1, dtype=torch.int32)}, "int32"),
    ],
)
def test_errors(change, words):
    given = {"x": torch.ones(1, 4, 5, 5), "w": torch.ones(4, 4, 1, 1)} | change
    with pytest.raises(InvalidArgument, match=words):
        cd.conv(**given)


class Exported:
    """Any library's array: DLPack and the array API's words."""

    def __init__(self, values):
        self.values = values

    shape = property(lambda self: self.values.shape)
    dtype = property(lambda self: self.values.dtype)

    def __dlpack__(self, **options):
        return self.values.__dlpack__(**options)

    def __dlpack_device__(self):
        return self.values.__dlpack_device__()

    def __array__(self, dtype=None, copy=None):
        return self.values

    def __array_namespace__(self):
        return type("namespace", (), {"from_dlpack": staticmethod(lambda array: Exported(np.from_dlpack(array)))})


def test_whatever_has_dlpack():
    x, w = np.random.default_rng(0).standard_normal((2, 4, 6, 6), np.float32), np.ones((4, 4, 3, 3), np.float32)
    y = cd.conv(Exported(x), Exported(w))
    assert type(y) is Exported
    assert np.array_equal(y.values, cd.conv(x, w))
