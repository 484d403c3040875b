"""The call of an operator on the device "opencl": tensors' buffers as OpenCL arrays, on the device's queue."""

from __future__ import annotations

from typing import Any

import torch

from ...api.problem import ConvProblem
from ...calls.framework.host import refuse_dtype
from ...calls.queue_call import QueueCall
from ...elementwise.tensor import Tensor
from ..counting import solved
from .opencl_tensors import empty_strided, queue, seen


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
