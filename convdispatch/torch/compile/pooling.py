"""``torch.ops.convdispatch.max_pool2d``: max pooling on CUDA at about a copy's speed.

Public machinery alone, as ``operators``. PyTorch's own runs on the CPU, and with the reason counted where a kernel of
ours cannot.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ...calls.framework.fallback import Fallback
from ...device.programs.kernels import Programs
from ...selection import dispatch
from ..dispatch.routing import routed, settings_in_force
from ..eager.planning import FallbackCall
from ..eager.recorded_launches import launched
from ..geometry import DTYPES

_aten: Any = torch.ops.aten
_library = torch.library.Library("convdispatch", "FRAGMENT")
_library.define(
    "max_pool2d(Tensor input, SymInt[] kernel_size, SymInt[] stride, SymInt[] padding, SymInt[] dilation, "
    "bool ceil_mode) -> Tensor"
)
_operator = torch.ops.convdispatch.max_pool2d.default


# --- calls --------------------------------------------------------------------------------------------------------


class _Call:
    """Max pooling of CUDA tensors like ``x``; raises Fallback where that is PyTorch's."""

    def __init__(self, x: torch.Tensor, kernel: Any, stride: Any, padding: Any, dilation: Any, ceil: bool) -> None:
        if x.layout is not torch.strided or x.ndim != 4 or x.dtype is torch.float64 or x.dtype not in DTYPES:
            raise Fallback(f"max pooling of {x.ndim}-D {str(x.dtype).removeprefix('torch.')} tensors")
        like = torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device="meta")
        y = _aten.max_pool2d_with_indices.default(like, kernel, stride, padding, dilation, ceil)[0]
        last = all(each.is_contiguous(memory_format=torch.channels_last) for each in (like, y))
        if not last and not (x.is_contiguous() and y.is_contiguous()):
            raise Fallback("max pooling of a tensor with gaps, or of transposed axes")
        self.shape, self.strides, self.dtype, self.device = y.shape, y.stride(), x.dtype, x.device
        self.launched: Any = None
        if not y.numel():
            return
        pairs = [_pair(each) for each in (kernel, stride or kernel, padding, dilation)]
        from ...nn.pooling.max_pool_kernel import Windows, max_pool_launch

        windows = Windows((x.shape[2], x.shape[3]), (y.shape[2], y.shape[3]), *pairs)
        given = (DTYPES[x.dtype], x.shape[0], x.shape[1], windows, last)
        try:
            self.launched = launched(
                "max_pool2d", x, [x.nbytes, y.nbytes], lambda c: _taking(max_pool_launch(c, *given))
            )
        except ValueError as error:
            raise Fallback(str(error)) from None

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Give the call to the current stream; the result."""
        out = torch.empty_strided(self.shape, self.strides, dtype=self.dtype, device=self.device)
        if self.launched is not None:
            self.launched(x, out)
        return out


def _taking(launch: Any) -> Any:
    return lambda commands, *memory: launch(commands, memory)


def _pair(values: Sequence[int]) -> tuple[int, int]:
    first, *rest = values
    return first, rest[0] if rest else first


_calls = Programs()
dispatch.on_forget(_calls.drop)


def _made(x: torch.Tensor, *geometry: Any) -> Any:
    try:
        return _Call(x, *geometry)
    except Fallback as left:
        if not left.lasting:
            raise
        return FallbackCall(str(left))


def _ours(x: torch.Tensor, *rest: Any) -> torch.Tensor:
    *lists, ceil, _ = rest
    key = (x.shape, x.stride(), x.dtype, x.device, *map(tuple, lists), ceil)
    call = _calls.get(key)
    if call is None:
        call = _calls.make(key, lambda: _made(x, *lists, ceil))
    return call(x)  # type: ignore[no-any-return]


# --- the operator -------------------------------------------------------------------------------------------------


def _forward(x: torch.Tensor, *rest: Any) -> torch.Tensor:
    if not x.is_cuda:
        return torch.max_pool2d(x, *rest)
    return routed("max_pool2d", _ours, lambda: torch.max_pool2d(x, *rest), (x, *rest), settings_in_force())  # type: ignore[no-any-return]


_library.impl("max_pool2d", _forward, "CompositeExplicitAutograd")


@torch.library.register_fake("convdispatch::max_pool2d", lib=_library)
def _(x: Any, *rest: Any) -> torch.Tensor:
    return _aten.max_pool2d_with_indices.default(x, *rest)[0]  # type: ignore[no-any-return]


def _keep(ctx: Any, inputs: Sequence[Any], output: Any) -> None:
    x, *ctx.geometry = inputs
    ctx.save_for_backward(x)


def _gradient(ctx: Any, grad: torch.Tensor) -> tuple[Any, ...]:
    """Where the largest stood is asked for now: a forward without gradients need not tell."""
    (x,) = ctx.saved_tensors
    places = _aten.max_pool2d_with_indices.default(x, *ctx.geometry)[1]
    return _aten.max_pool2d_with_indices_backward.default(grad, x, *ctx.geometry, places), *[None] * 5


torch.library.register_autograd("convdispatch::max_pool2d", _gradient, setup_context=_keep, lib=_library)
