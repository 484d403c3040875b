"""One problem on a CUDA device: OpenCL's programs, launched on PyTorch's current stream over PyTorch's memory.

Workspaces come from PyTorch's caching allocator, so a CUDA graph takes them into its own pool. Nothing waits.
"""

from __future__ import annotations

from typing import Any

import torch

from ...api.errors import NoDevice
from ...api.problem import ConvProblem
from ...calls.arrays.known_libraries import library_of
from ...calls.framework.fallback import Fallback
from ...calls.framework.problem import FrameworkProblem
from ...calls.stream_plan import ALIGNMENT, StreamPlan, launched
from ...device.cuda.ptx import Unlaunchable
from ...device.cuda.stream import BLOCKED
from ...selection.prepared import Constant
from ..counting import solved

CAPTURED = "new while a CUDA graph was captured: run the model once before, so that its programs are there"


def stream_of(tensor: torch.Tensor) -> Any:
    """PyTorch's current stream of a CUDA tensor's device. Raises Fallback."""
    library: Any = library_of(torch.Tensor)
    try:
        return library.stream(tensor, tensor.get_device())
    except NoDevice as error:
        raise Fallback(str(error).splitlines()[0]) from None


def device(tensor: torch.Tensor) -> Any:
    """The OpenCL device on which a CUDA tensor lies. Raises Fallback."""
    return stream_of(tensor).device


class StreamCall(FrameworkProblem):
    """As ``HostCall``, on the current stream of the tensors' device; returns at once."""

    def __init__(self, problem: ConvProblem, shape: tuple[int, ...], form: Any, like: torch.Tensor) -> None:
        stream = stream_of(like)
        super().__init__(problem, stream.device)
        self.shape, self.form = shape, form
        self.dtype, self.where, self.number = like.dtype, like.device, like.get_device()
        self.strides = torch.empty(shape, device="meta", memory_format=form).stride()
        self.library: Any = library_of(torch.Tensor)
        self.prepared: Any = None
        self.plan: Any = None
        self.launches: Any = None
        """The plan's, where launches are all it gives."""
        self.native: Any = None
        """The same for the native call path; False for what that does not take."""
        self.context = stream.place.cuda.context.value
        self.packs, self.packed_key, self.name = False, 0, self.solver
        if self.empty:
            return
        with stream.current():
            if stream.capturing():
                raise Fallback(CAPTURED, lasting=False)
            plan = self.plan = StreamPlan(problem, stream)
            try:
                plan.load(stream)
            except Unlaunchable as error:
                raise Fallback(f"{plan.name} cannot run on a CUDA stream: {error}") from None
        self.prepared, self.launches, self.name = plan.prepared, plan.launches, plan.name
        self.packs, self.packed_key = plan.packs, plan.packed_key

    def program(self, launcher: Any) -> Any:
        """The launches as the native call path takes them, made once; None for what that does not take."""
        if self.native is None:
            made = self.launches.program(launcher, self.name, self.context, self.shape, self.strides)
            self.native = made or False
        return self.native or None

    def __call__(
        self,
        x: torch.Tensor | None,
        w: torch.Tensor | None,
        y: torch.Tensor | None,
        bias: torch.Tensor | None = None,
        constant: Constant | None = None,
        residual: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Give the call to the stream; the tensor that will be written."""
        out = torch.empty_strided(self.shape, self.strides, dtype=self.dtype, device=self.where)
        if self.empty:
            return out.zero_()
        given: list[Any] = [x, w, y]
        given[self.written] = out
        if self.launches is None or not self._launched(given, bias, constant, residual):
            self._take(given, bias, constant, residual)
        solved(self.name)
        return out

    def _launched(
        self,
        given: list[torch.Tensor],
        bias: torch.Tensor | None,
        constant: Constant | None,
        residual: torch.Tensor | None,
    ) -> bool:
        """Whether the operands lay as kernels take them, and the plan's launches were given: most calls are so."""
        form = self.form
        for place in self.read:
            if not given[place].is_contiguous(memory_format=form):
                return False
        addresses = [tensor.data_ptr() for tensor in given]
        if constant is not None and self.packs:
            addresses[1] = constant.addresses.get(self.packed_key, 1)
        beside = added = 0
        if bias is not None:
            if not bias.is_contiguous():
                return False
            beside = bias.data_ptr()
        if residual is not None:
            if not residual.is_contiguous(memory_format=form):
                return False
            added = residual.data_ptr()
        if (addresses[0] | addresses[1] | addresses[2] | beside | added) % ALIGNMENT:
            return False
        stream = self.library.stream(given[self.written], self.number)
        if not self.library.is_current(stream):
            return False
        stream.place.recent.append(self.name)
        addresses += (beside, added)
        if not launched(self.launches, stream, addresses):
            return False
        if BLOCKED:
            stream.check()
        return True

    def pack(self, w: torch.Tensor, constant: Constant) -> None:
        """Pack weights that are promised to stay, before a call asks for them. Raises as a call does."""
        if not self.packs or self.packed_key in constant.addresses:
            return
        w = self._ready(w, self.form)
        stream = self.library.stream(w, self.number)
        with stream.current():
            self.plan.packed(constant, stream, w.data_ptr())

    def _take(self, given: list[Any], bias: Any, constant: Constant | None, residual: Any) -> None:
        """Give the call to the stream, whatever its operands' memory is like."""
        for place in self.read:
            given[place] = self._ready(given[place], self.form)
        if bias is not None:
            bias = self._ready(bias, torch.contiguous_format)
        if residual is not None:
            residual = self._ready(residual, self.form)
        stream = self.library.stream(given[self.written], self.number)
        with stream.current():
            try:
                beside = [0 if each is None else each.data_ptr() for each in (bias, residual)]
                self.plan.run(stream, [*(tensor.data_ptr() for tensor in given), *beside], constant)
            except Unlaunchable as error:  # of constant weights' packing, before anything else ran
                raise Fallback(f"{self.solver} cannot run on a CUDA stream: {error}") from None

    def _ready(self, tensor: Any, form: Any) -> Any:
        if not tensor.is_contiguous(memory_format=form):
            tensor = tensor.contiguous(memory_format=form)
        if tensor.data_ptr() % ALIGNMENT:
            tensor = tensor.clone(memory_format=torch.preserve_format)
        return tensor
