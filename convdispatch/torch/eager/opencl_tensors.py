"""The device "opencl": PyTorch's tensors whose storage is an OpenCL buffer; views alias it, copies cross to the host.

The buffer hangs on the storage's own object (``storage.buf``): attributes of tensors are lost where autograd saves
them. All threads share one queue in order, so a backward thread needs no events.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyopencl as cl
import torch

from ...api.problem import ConvProblem
from ...calls.framework.fallback import refuse_dtype
from ...calls.queue_call import QueueCall
from ...device import runtime
from ...device.commands.queues import commands_of
from ...elementwise.apply import compute
from ...elementwise.tensor import Tensor
from ..counting import solved

NAME = "opencl"
NUMPY = {
    torch.float32: np.dtype(np.float32),
    torch.float64: np.dtype(np.float64),
    torch.float16: np.dtype(np.float16),
    torch.int64: np.dtype(np.int64),
    torch.int32: np.dtype(np.int32),
    torch.uint8: np.dtype(np.uint8),
    torch.bool: np.dtype(np.bool_),
}
"""The dtypes that our kernels copy and cast."""
_CPU = torch._C.DispatchKeySet(torch._C.DispatchKey.CPU)
_aten = torch.ops.aten


@functools.lru_cache(maxsize=1)
def queue() -> Any:
    """The device's in-order queue, which all threads share."""
    return cl.CommandQueue(runtime.context(runtime.default_device()))


def on_metadata(operator: Any, *arguments: Any, **options: Any) -> Any:
    """Run PyTorch's own kernel of an operator that only changes sizes, strides and storages."""
    return operator.redispatch(_CPU, *arguments, **options)


def _storage(nbytes: int) -> Any:
    storage = torch._C._construct_storage_from_data_pointer(0, torch.device(NAME, 0), nbytes)  # type: ignore[attr-defined]
    storage.buf = runtime.allocate(queue(), max(nbytes, 1))
    return storage


def empty_strided(size: Sequence[int], stride: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """A new tensor on the device with undefined values."""
    count = 1 + sum((s - 1) * t for s, t in zip(size, stride, strict=True)) if all(size) else 0
    tensor = torch._C._acc.create_empty_tensor(list(size), dtype)  # type: ignore[attr-defined]
    set_ = _aten.set_.source_Storage_storage_offset
    on_metadata(set_, tensor, _storage(count * dtype.itemsize), 0, list(size), list(stride))
    return tensor


def resize(tensor: torch.Tensor, size: Sequence[int]) -> torch.Tensor:
    """``resize_``: makes a tensor contiguous from the same first element on; values stay if the storage is large
    enough."""
    stride = list(torch.empty(tuple(size), device="meta").stride())
    needed = (tensor.storage_offset() + int(np.prod(size))) * tensor.dtype.itemsize
    storage = tensor.untyped_storage()
    if storage.nbytes() < needed:
        storage = _storage(needed)
    set_ = _aten.set_.source_Storage_storage_offset
    return on_metadata(set_, tensor, storage, tensor.storage_offset(), list(size), stride)


def seen(tensor: torch.Tensor) -> Tensor:
    """A PyTorch tensor of the device as a ``Tensor`` of convdispatch, over the same memory. Its dtype is among
    NUMPY."""
    unit = tensor.dtype.itemsize
    strides = tuple(step * unit for step in tensor.stride())
    offset = tensor.storage_offset() * unit
    return Tensor(tensor.untyped_storage().buf, tuple(tensor.shape), NUMPY[tensor.dtype], queue(), strides, offset)


def _bytes_of(tensor: torch.Tensor) -> np.ndarray:
    """The bytes of a contiguous host tensor."""
    memory = (ctypes.c_ubyte * tensor.nbytes).from_address(tensor.data_ptr())
    return np.frombuffer(memory, np.uint8)


def to_host(tensor: torch.Tensor) -> torch.Tensor:
    """A copy in host memory, of the same shape; waits for the device."""
    if not tensor.is_contiguous() and tensor.dtype in NUMPY:
        tensor = tensor.contiguous()
    if tensor.is_contiguous():
        copied = torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu")
        if copied.nbytes:
            buffer, offset = tensor.untyped_storage().buf, tensor.storage_offset() * tensor.dtype.itemsize
            commands_of(queue()).read(buffer, _bytes_of(copied), offset)
        return copied
    return _whole(tensor).clone()


def _whole(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor's view of a host copy of its whole storage."""
    storage = tensor.untyped_storage()
    host_bytes = torch.empty(storage.nbytes(), dtype=torch.uint8, device="cpu")
    commands_of(queue()).read(storage.buf, _bytes_of(host_bytes))
    return host_bytes.view(tensor.dtype).as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())


def written(target: torch.Tensor, values: torch.Tensor) -> None:
    """Write a host tensor's values, broadcast and cast, into a tensor of the device."""
    if not target.numel():
        return
    values = values.detach().to(target.dtype).expand(target.shape)
    if target.is_contiguous():
        values = values.contiguous()
        offset = target.storage_offset() * target.dtype.itemsize
        commands_of(queue()).write(target.untyped_storage().buf, _bytes_of(values), offset)
    elif target.dtype in NUMPY:
        dense = empty_strided(target.shape, torch.empty(target.shape, device="meta").stride(), target.dtype)
        written(dense, values)
        compute("x", {"x": seen(dense)}, out=seen(target))
    else:
        host_storage = _whole(target)
        host_storage.copy_(values)
        base = host_storage.as_strided((target.untyped_storage().nbytes() // target.dtype.itemsize,), (1,), 0)
        commands_of(queue()).write(target.untyped_storage().buf, _bytes_of(base))


def copy(source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """``_copy_from``: copies between the host and the device, or inside the device, with a cast; returns ``target``."""
    if source.device.type != NAME:
        written(target, source)
    elif target.device.type != NAME:
        target.copy_(to_host(source))
    elif source.dtype in NUMPY and target.dtype in NUMPY and not source.is_neg() and target.numel():
        compute("x", {"x": seen(source.expand(target.shape))}, out=seen(target))
    elif target.numel():
        written(target, to_host(source))
    return target


def own_kernel(*tensors: torch.Tensor) -> bool:
    """Whether our kernels compute with the tensors: all on the device, of one floating dtype."""
    return all(t.device.type == NAME and t.dtype == tensors[0].dtype for t in tensors) and tensors[0].dtype in (
        torch.float32,
        torch.float64,
    )


class OpenClTensors(QueueCall):
    """A convolution problem on the device's queue, for PyTorch's tensors; calls return before the device has
    finished."""

    def __init__(self, problem: ConvProblem, shape: tuple[int, ...], dtype: torch.dtype) -> None:
        """Build the call of an operator that writes a tensor of a shape. Raises Fallback."""
        refuse_dtype(problem, queue().device)
        super().__init__(problem.replace(constant_weights=False), queue(), Tensor, count=solved)
        self.shape, self._torch_dtype = shape, dtype
        self._stride = torch.empty(shape, device="meta").stride()

    def __call__(self, *tensors: Any) -> torch.Tensor:
        """Enqueue the kernels on x, w, y, bias, constant and residual; returns the tensor that they will write."""
        out = empty_strided(self.shape, self._stride, self._torch_dtype)
        if self.empty:
            return out.zero_()
        x, w, y, bias, _, residual = (*tensors, None, None, None)[:6]
        operands = [None if each is None else seen(each.contiguous()) for each in (x, w, y, bias, residual)]
        operands[self.written] = seen(out)
        super().__call__(*operands[:4], None, operands[4], self.known)  # type: ignore[arg-type]
        return out
