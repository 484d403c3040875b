"""``torch.ops.convdispatch.max_pool2d``: max pooling on CUDA at about a copy's speed, put into fused models.

Public machinery alone, as ``operators``. PyTorch's own runs on the CPU, and with the reason counted where a kernel of
ours cannot.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import fx, nn
from torch.overrides import handle_torch_function, has_torch_function_unary

from ...calls.framework.fallback import Fallback
from ...device.programs.kernels import Programs, without_numbers
from ...selection import dispatch
from ..dispatch.routing import routed, settings_in_force
from ..eager.planning import FallbackCall
from ..eager.recorded_launches import launched
from ..epilogue_chains import has_hooks
from ..geometry import DTYPES

_aten: Any = torch.ops.aten
_library = torch.library.Library("convdispatch", "FRAGMENT")
_library.define(
    "max_pool2d(Tensor input, SymInt[] kernel_size, SymInt[] stride, SymInt[] padding, SymInt[] dilation, "
    "bool ceil_mode) -> Tensor"
)
_operator = torch.ops.convdispatch.max_pool2d.default
_C: Any = torch._C


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


_calls = Programs(family=without_numbers)
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


# --- in fused models ----------------------------------------------------------------------------------------------


def max_pool2d(
    input: torch.Tensor,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: Any = False,
) -> torch.Tensor:
    """As ``torch.nn.functional.max_pool2d``: by the operator in plain inference on CUDA, else PyTorch's own, which a
    compiler fuses with its neighbours."""
    given = (input, kernel_size, stride, padding, dilation, ceil_mode)
    if has_torch_function_unary(input):  # torch.fx's proxies, when a saved model is loaded
        return handle_torch_function(max_pool2d, (input,), *given)  # type: ignore[no-any-return]
    if torch.compiler.is_compiling() or not _plain(input):
        return nn.functional.max_pool2d(input, kernel_size, stride or None, padding, dilation, bool(ceil_mode))
    kernel, pads, spread = _list(kernel_size), _list(padding), _list(dilation)
    return _operator(input, kernel, _list(stride) if stride else [], pads, spread, bool(ceil_mode))  # type: ignore[no-any-return]


def _plain(x: torch.Tensor) -> bool:
    """Whether a tensor is one of CUDA's, with numbers, and nobody asks for its gradient or stands for it."""
    if not x.is_cuda or type(x) is not torch.Tensor or (x.requires_grad and torch.is_grad_enabled()):
        return False
    return _C._functorch.peek_interpreter_stack() is None


def _list(values: Any) -> list[int]:
    return [values, values] if isinstance(values, int) else list(values)


class MaxPool2d(nn.MaxPool2d):
    """``nn.MaxPool2d`` by ``max_pool2d``."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """As PyTorch's."""
        geometry = (self.kernel_size, self.stride, self.padding, self.dilation, self.ceil_mode)
        return max_pool2d(input, *geometry)


def place(graph: fx.Graph, modules: dict[str, nn.Module], attributes: dict[str, Any]) -> None:
    """Let a traced graph's max poolings be these: its functions', and with a copy in ``attributes`` its layers'."""
    for node in graph.nodes:
        if node.op == "call_function" and node.target in (nn.functional.max_pool2d, torch.max_pool2d):
            if len(node.args) <= 6 and not node.kwargs.get("return_indices"):
                node.kwargs = {name: value for name, value in node.kwargs.items() if name != "return_indices"}
                node.target = max_pool2d
        elif node.op == "call_module" and node.target not in attributes:
            layer: Any = modules[str(node.target)]
            if type(layer) is nn.MaxPool2d and not layer.return_indices and not has_hooks(layer):
                made = attributes[str(node.target)] = copy.copy(layer)
                made.__class__ = MaxPool2d
