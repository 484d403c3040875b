"""One problem on the CPU: kernels take the tensors' own memory, and the result is there when the call returns."""

from __future__ import annotations

import weakref
from typing import Any

import numpy as np
import torch

from ...api.problem import ConvProblem
from ...calls.bound_call import Call
from ...calls.fast_path import host_fast_path
from ...calls.framework.host import HostProblem, cpu_device
from ...device import runtime
from ...device.commands import host_memory
from ...device.places import intraop
from ...measurement import first_sight
from ...selection.prepared import Constant
from ..cores import share_cores
from ..counting import solved

_OFTEN = 4
"""Calls of a problem by OpenCL's own threads from which on PyTorch's leave them the cores."""
_SMALL = 1 << 16
"""Bytes of a result below which NumPy makes it."""
_POOLED = 1 << 25
"""Bytes of a result from which on it is from the device's pool: the C library maps such memory anew each time. Below,
PyTorch's own is what the operator before just let go, and warm."""


class HostCall(HostProblem):
    """``call(x, w, y, bias, constant)`` computes what ``problem`` writes; the tensor in its place is ignored.

    ``shape`` is the result's as PyTorch counts, ``form`` the memory format of all tensors.
    """

    def __init__(self, problem: ConvProblem, shape: tuple[int, ...], form: Any, dtype: torch.dtype) -> None:
        self.shape, self.form, self.dtype = shape, form, dtype
        where = cpu_device()
        first_sight.seen(where)
        super().__init__(problem, where)
        size = self.sizes[self.written]
        self._pool = host_memory.pool_of(self.device) if self.shared and size >= _POOLED else None
        # None where memory is not small, in another order, or of a dtype that NumPy has not.
        plain = size < _SMALL and problem.layout == "nchw" and dtype is not torch.bfloat16
        self._small = np.dtype(problem.dtype) if plain else None
        self._back: Any = None
        self.launches: Any = None
        """The plan's, once they are known, where launches are all it gives."""
        self.native: Any = None
        """The same for the native call path; False for what that does not take."""
        self.strides = torch.empty(shape, device="meta", memory_format=form).stride()
        self.packed_key, self.packs = 0, self.prepared is not None and bool(self.prepared.packed_size)
        if problem.layout == "nhwc":
            ndim = len(shape)
            self._back = (0, ndim - 1, *range(1, ndim - 1))
        self._views: Any = None
        self._fast_path = self._make_fast_path() if self.shared else None
        self._solver, self._long_ways = self.solver, 0

    def _make_fast_path(self) -> Any:
        form, owner = self.form, weakref.ref(self)

        def address(tensor: torch.Tensor) -> int:
            return tensor.data_ptr() if tensor.is_contiguous(memory_format=form) and not tensor.is_neg() else 0

        def of_bias(bias: torch.Tensor) -> int:
            return bias.data_ptr() if bias.is_contiguous() and not bias.is_neg() else 0

        def make() -> tuple[torch.Tensor, int]:
            made = owner().result()  # type: ignore[union-attr]
            return made, made.data_ptr()

        return host_fast_path(self, address, address, make, of_bias, apart=share_cores)

    def program(self, launcher: Any) -> Any:
        """The launches as the native call path takes them, made once; None for what that does not take."""
        if self.native is None:
            pooled = self._pool is not None
            made = None if pooled else self.launches.program(launcher, self._solver, self.shape, self.strides)
            self.native = made or False
        if self.native:
            intraop.lend_queues(self.device)
        return self.native or None

    def result(self) -> torch.Tensor:
        """A new tensor for the result; its memory is used again once nothing holds it."""
        if self._small is not None and not torch._C._is_torch_function_mode_enabled():
            return torch.from_numpy(np.empty(self.shape, self._small))  # in half of torch.empty's time
        if self._pool is None or torch._C._is_torch_function_mode_enabled():
            return torch.empty(self.shape, dtype=self.dtype, device="cpu", memory_format=self.form)
        lease = host_memory.lease(self.device, self.sizes[self.written])
        flat = torch.frombuffer(lease, dtype=self.dtype)
        if self._back is None:
            return flat.view(self.shape)
        return flat.view(self.problem.out_shape).permute(self._back)

    def __call__(
        self,
        x: torch.Tensor | None,
        w: torch.Tensor | None,
        y: torch.Tensor | None,
        bias: torch.Tensor | None = None,
        constant: Constant | None = None,
        residual: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Run; waits."""
        given: list[Any] = [x, w, y]
        out = self._short(given, bias, constant, residual)
        if out is not None:
            return out
        if self.empty:
            return self.result().zero_()
        for place in self.read:
            given[place] = self._ready(given[place], self.form)
        bias = None if bias is None else self._ready(bias, torch.contiguous_format)
        residual = None if residual is None else self._ready(residual, self.form)
        out = self._short(given, bias, constant, residual)
        if out is None:  # the device takes no pointers of the host's
            out = given[self.written] = self.result()
            self._run_by_views(given, bias, residual)
        return out

    @staticmethod
    def _ready(tensor: torch.Tensor, form: Any) -> torch.Tensor:
        return tensor.contiguous(memory_format=form).resolve_neg()

    def _short(self, given: list[Any], bias: Any, constant: Constant | None, residual: Any) -> torch.Tensor | None:
        """By the fast path; None where it does not serve."""
        if self._fast_path is None:
            return None
        lead, other = self.read
        out = self._fast_path(given[lead], given[other], None, self._queue(), bias, constant, residual)
        if out is not None:
            solved(self._solver)
        return out  # type: ignore[no-any-return]

    def _run_by_views(self, given: list[Any], bias: Any, residual: Any) -> None:
        """As NumPy's arrays, for a device that takes no pointers of the host's."""
        views = [_view(tensor, self.problem.layout) for tensor in given]
        bias = None if bias is None else _view(bias, "nchw")
        residual = None if residual is None else _view(residual, self.problem.layout)
        queue = runtime.queue(self.device)
        if self._views is None:
            names = ("x", "w", "y")
            kind = Call.kind_of(views, bias, residual, self.problem.direction, names)
            problem = self.problem.replace(constant_weights=False)
            self._views = Call(problem, kind, bias, residual, queue, views)
        self._views(*views, bias, residual, queue)
        self._long_ways += 1
        if self._long_ways == _OFTEN:  # not for the call or two by which a fused model is compared with its layers
            share_cores()
        solved(self.solver)


def _view(tensor: torch.Tensor, layout: str) -> np.ndarray:
    tensor = tensor.detach()
    if layout == "nhwc" and tensor.ndim > 2:
        tensor = tensor.permute(0, *range(2, tensor.ndim), 1)
    if tensor.dtype == torch.bfloat16:  # NumPy has it by ml_dtypes alone
        import ml_dtypes

        return tensor.view(torch.int16).numpy().view(ml_dtypes.bfloat16)
    return tensor.numpy()
