"""One memory, several libraries: NumPy and torch over tensors, tensors over theirs; on CUDA, PyTorch and CuPy."""

from __future__ import annotations

import gc

import numpy as np
import pytest

import convdispatch
from convdispatch.api.errors import InvalidArgument
from convdispatch.calls.arrays import interchange
from convdispatch.device import runtime
from convdispatch.tensor import Tensor


@pytest.fixture
def values():
    return np.arange(24, dtype=np.float32).reshape(2, 3, 4)


@pytest.fixture
def host(queue):
    """The queue, where its device's memory is the host's."""
    if runtime.device_info(queue.device).type != "cpu":
        pytest.skip("a CPU device only")
    return queue


@pytest.fixture
def cuda(queue):
    """The queue, where CUDA drives its device too."""
    if interchange.dlpack_device_of(queue)[0] != interchange.CUDA:
        pytest.skip("an NVIDIA device with CUDA's driver only")
    return queue


def test_numpy_views_the_memory(host, values):
    tensor = Tensor.from_numpy(values, host)
    view = np.asarray(tensor)
    assert np.array_equal(view, values)
    assert np.shares_memory(view, np.from_dlpack(tensor))
    view[1, 2, 3] = -7
    assert tensor.numpy()[1, 2, 3] == -7


def test_views_keep_strides_and_offset(host, values):
    tensor = Tensor.from_numpy(values, host).transpose(2, 0, 1)[1:, :, ::2]
    for view in (np.asarray(tensor), np.from_dlpack(tensor)):
        assert np.array_equal(view, values.transpose(2, 0, 1)[1:, :, ::2])
        assert view.strides == tensor.strides


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "int32", "uint8", "int64", "complex64"])
@pytest.mark.parametrize("shape", [(), (1,), (0, 3), (2, 1, 5)])
def test_shapes_and_dtypes(host, dtype, shape):
    given = np.asarray(np.random.default_rng(0).integers(0, 9, shape)).astype(dtype)
    tensor = Tensor.from_numpy(given, host)
    back = Tensor.from_dlpack(tensor, host)
    for got in (np.from_dlpack(tensor), back.numpy()):
        assert (got.shape, got.dtype) == (given.shape, given.dtype)
        assert np.array_equal(got, given)


def test_an_export_outlives_its_tensor_and_is_forgotten(host, values):
    gc.collect()
    before = len(interchange._exports)
    view = np.from_dlpack(Tensor.from_numpy(values, host))
    gc.collect()
    other = [Tensor.from_numpy(values * 0, host) for _ in range(4)]  # would take the block if it were free
    assert np.array_equal(view, values)
    assert len(interchange._exports) == before + 1
    del view, other
    gc.collect()
    assert len(interchange._exports) == before
    capsule = Tensor.from_numpy(values, host).__dlpack__()
    del capsule  # nobody took it
    assert len(interchange._exports) == before


def test_tensors_over_an_array(host, values):
    tensor = Tensor.from_dlpack(values, host)
    assert np.array_equal(tensor.numpy(), values)
    values[0] = 5
    assert np.array_equal(tensor.numpy(), values)
    flipped = Tensor.from_dlpack(values.transpose(1, 0, 2)[:, 1:], host)
    assert np.array_equal(flipped.numpy(), values.transpose(1, 0, 2)[:, 1:])
    with pytest.raises(InvalidArgument, match="strides of 0 or more"):
        Tensor.from_dlpack(values[::-1], host)


def test_conv_on_foreign_memory(host):
    random = np.random.default_rng(0)
    x, w = (random.integers(-3, 4, shape).astype(np.float32) for shape in ((1, 4, 9, 9), (8, 4, 3, 3)))
    y = np.asarray(convdispatch.conv(Tensor.from_dlpack(x, host), Tensor.from_dlpack(w, host)))
    assert np.array_equal(y, convdispatch.conv(x, w, queue=host))


def test_one_memory_with_torch(host, values):
    torch = pytest.importorskip("torch", reason="torch is not installed (extra: torch)")
    tensor = Tensor.from_numpy(values, host)
    theirs = torch.from_dlpack(tensor)
    theirs[0, 0, 0] = 42
    assert tensor.numpy()[0, 0, 0] == 42
    ours = Tensor.from_dlpack(torch.ones(3, 5).t(), host)
    assert (ours.shape, ours.strides) == ((5, 3), (4, 20))
    half = torch.arange(6).bfloat16().reshape(2, 3)
    assert torch.equal(torch.from_dlpack(Tensor.from_dlpack(half, host)), half)
    torch.from_dlpack(Tensor.from_dlpack(half, host))[0, 0] = 9
    assert half[0, 0] == 9


def test_no_cuda_interface_on_a_cpu(host, values):
    tensor = Tensor.from_numpy(values, host)
    assert not hasattr(tensor, "__cuda_array_interface__")
    assert tensor.__dlpack_device__() == (interchange.CPU, 0)
    with pytest.raises(BufferError, match="copy"):
        tensor.__dlpack__(copy=True)


def test_one_memory_with_torch_on_cuda(cuda, values):
    torch = pytest.importorskip("torch", reason="torch is not installed (extra: torch)")
    tensor = Tensor.from_numpy(values, cuda)
    theirs = torch.from_dlpack(tensor)
    assert theirs.is_cuda
    assert np.array_equal(theirs.cpu().numpy(), values)
    theirs[1, 2, 3] = -7
    torch.cuda.synchronize()
    assert tensor.numpy()[1, 2, 3] == -7
    back = Tensor.from_dlpack(theirs[1], cuda)
    assert np.array_equal(back.numpy(), theirs[1].cpu().numpy())
    assert torch.as_tensor(tensor, device="cuda").data_ptr() == theirs.data_ptr()
    with pytest.raises(InvalidArgument, match="OpenCL cannot see"):
        Tensor.from_dlpack(torch.ones(4, device="cuda"), cuda)
    assert not hasattr(tensor, "__array_interface__")


def test_one_memory_with_cupy(cuda, values):
    cupy = pytest.importorskip("cupy")
    tensor = Tensor.from_numpy(values, cuda)
    theirs = cupy.asarray(tensor)
    theirs *= 2
    cupy.cuda.Device().synchronize()
    assert np.array_equal(tensor.numpy(), values * 2)
    assert int(theirs.data.ptr) == tensor.__cuda_array_interface__["data"][0]
