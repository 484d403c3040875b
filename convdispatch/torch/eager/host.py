"""PyTorch's tensors in host memory as operands of a call, and the call of an operator on a CPU."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyopencl as cl
import torch

from ...api.problem import ConvProblem
from ...calls.framework.host import cpu_device, refuse_dtype
from ...calls.host_call import HostCall
from ...device import runtime
from ...device.commands import host_memory
from ...selection.visible_problem import operand_sizes
from ..cores import share_cores
from ..counting import solved

SMALL_BYTES = 1 << 16
"""A result of fewer bytes is allocated by NumPy, in half the time of ``torch.empty``."""
POOLED_BYTES = 1 << 25
"""A result of at least this many bytes comes from the device's pool, because the C library maps such memory anew each
time. A smaller one comes from PyTorch's allocator, which reuses memory that the last operator freed and that is in the
caches."""


class HostTensors:
    """Tensors of one memory format; see HostArrays. Results have PyTorch's ``shape`` and ``strides``."""

    def __init__(
        self, problem: ConvProblem, device: cl.Device, shape: tuple[int, ...], form: Any, dtype: torch.dtype
    ) -> None:
        self.shape, self._form, self.dtype, self._device, self._layout = shape, form, dtype, device, problem.layout
        self._out_shape, self._size = problem.out_shape, operand_sizes(problem)["xwy".index(problem.written)]
        self._pooled = host_memory.has_system_svm(device) and self._size >= POOLED_BYTES
        # The NumPy dtype of a small result; None if the result is large, channels last, or of a dtype that NumPy lacks.
        plain = self._size < SMALL_BYTES and problem.layout == "nchw" and dtype is not torch.bfloat16
        self._small = np.dtype(problem.dtype) if plain else None
        strides = torch.empty(shape, device="meta", memory_format=form).stride()
        # Strides are None for pooled results, because the native call path allocates by PyTorch only.
        self.strides = None if self._pooled else strides

    def input_address(self, tensor: torch.Tensor) -> int:
        return tensor.data_ptr() if tensor.is_contiguous(memory_format=self._form) and not tensor.is_neg() else 0

    output_address = input_address

    def bias_address(self, bias: torch.Tensor) -> int:
        return bias.data_ptr() if bias.is_contiguous() and not bias.is_neg() else 0

    def allocate(self) -> tuple[torch.Tensor, int]:
        """Allocate a result, see HostArrays; pooled memory is reused once nothing holds it."""
        result = self._allocated()
        return result, result.data_ptr()

    def _allocated(self) -> torch.Tensor:
        if self._small is not None and not torch._C._is_torch_function_mode_enabled():
            return torch.from_numpy(np.empty(self.shape, self._small))
        if not self._pooled or torch._C._is_torch_function_mode_enabled():
            return torch.empty(self.shape, dtype=self.dtype, device="cpu", memory_format=self._form)
        flat = torch.frombuffer(host_memory.lease(self._device, self._size), dtype=self.dtype)
        if self._layout == "nchw":
            return flat.view(self.shape)
        ndim = len(self.shape)
        return flat.view(self._out_shape).permute(0, ndim - 1, *range(1, ndim - 1))

    def compact(self, tensor: torch.Tensor) -> tuple[torch.Tensor, int]:
        form = self._form if tensor.ndim > 1 else torch.contiguous_format
        copy = tensor.contiguous(memory_format=form).resolve_neg()
        return copy, copy.data_ptr()

    def view(self, tensor: torch.Tensor) -> np.ndarray:
        """A NumPy view of a tensor, see HostArrays; of the same bytes as int16 for bfloat16, which NumPy lacks."""
        return tensor.detach().view(torch.int16 if tensor.dtype is torch.bfloat16 else tensor.dtype).numpy()

    def finished(self, made: torch.Tensor, input1: torch.Tensor) -> torch.Tensor:
        return made


def host_call(problem: ConvProblem, shape: tuple[int, ...], form: Any, dtype: torch.dtype) -> HostCall:
    """Build the call of an operator that writes a tensor of a shape. Raises Fallback."""
    device = cpu_device()
    refuse_dtype(problem, device)
    tensors = HostTensors(problem, device, shape, form, dtype)
    call = HostCall(problem, runtime.context(device), tensors, in_pytorch=True, count=solved)
    call.form, call.shape = form, shape
    if call.launches is not None and not call.launches.intraop:
        share_cores()
    return call
