"""One problem on the device "opencl": tensors' buffers as OpenCL's arrays, on the device's queue."""

from __future__ import annotations

from typing import Any

import torch

from ...api.problem import ConvProblem
from ...calls.bound_call import Call
from ...calls.framework.problem import FrameworkProblem
from ...selection.prepared import Constant
from ..counting import solved
from .opencl_tensors import empty_strided, queue, seen


class BufferCall(FrameworkProblem):
    """As ``HostCall``, on the queue of the device "opencl"; returns at once."""

    def __init__(self, problem: ConvProblem, shape: tuple[int, ...], dtype: torch.dtype) -> None:
        super().__init__(problem.replace(constant_weights=False), queue().device)
        self.shape, self.dtype = shape, dtype
        self.stride = torch.empty(shape, device="meta").stride()
        self._call: Any = None

    @property
    def prepared(self) -> Any:  # type: ignore[override]
        """The plan, once it has run."""
        return None if self._call is None else self._call.prepared

    def __call__(
        self,
        x: torch.Tensor | None,
        w: torch.Tensor | None,
        y: torch.Tensor | None,
        bias: torch.Tensor | None = None,
        constant: Constant | None = None,
        residual: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Enqueue; the tensor that will be written."""
        out = empty_strided(self.shape, self.stride, self.dtype)
        if self.empty:
            return out.zero_()
        given: list[Any] = [x, w, y]
        given = [None if each is None else seen(each.contiguous()) for each in given]
        given[self.written] = seen(out)
        bias = None if bias is None else seen(bias.contiguous())  # type: ignore[assignment]
        residual = None if residual is None else seen(residual.contiguous())  # type: ignore[assignment]
        if self._call is None:
            names = ("x", "w", "y")
            kind = Call.kind_of(given, bias, residual, self.problem.direction, names)
            self._call = Call(self.problem, kind, bias, residual, queue(), given)
        self._call(*given, bias, residual, queue())
        solved(self.solver)
        return out
