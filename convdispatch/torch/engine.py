"""``aten::convolution`` and its backward on these engines; calls are kept by all that decides them.

``forward`` and ``backward`` take the operators' own arguments and answer as PyTorch would: dtype, device and memory
format. They raise Left, with the reason, where the call is PyTorch's own kernel's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from ..api.errors import InvalidArgument, NoSolver
from ..api.policy import policy
from ..api.problem import ConvProblem
from ..device.kernels import Programs
from ..selection import dispatch
from . import background, ranks
from .geometry import DTYPES, FORMATS, Geometry, Left, format_of, problem_of
from .host import HostCall
from .host import device as cpu
from .settings import DEFAULT, Settings, math_of, policy_of, switches
from .weights import promise

__all__ = ["backward", "forward", "watch"]

_calls = Programs()
dispatch.on_forget(_calls.drop)
_watchers: list[Callable[[str, Any, Sequence[Any], Geometry], None]] = []


def forward(
    x: torch.Tensor,
    w: torch.Tensor,
    bias: torch.Tensor | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
    settings: Settings = DEFAULT,
) -> torch.Tensor:
    """``aten::convolution``. Raises Left, InvalidArgument, InvalidProblem."""
    geometry = Geometry.of(stride, padding, dilation, transposed, output_padding, groups)
    rows = geometry.rows(x.ndim - 2)
    if any(rows):
        return forward(_longer(x, rows), w, bias, *geometry.without(rows), settings=settings)
    constant = promise(w)
    call = _call("forward", geometry, x, w, None, bias, constant is not None, settings)
    result = call(None, w, x, bias, constant) if transposed else call(x, w, None, bias, constant)
    for watcher in _watchers:
        watcher("forward", call, (x, w, bias), geometry)
    return result


def backward(
    grad: torch.Tensor,
    x: torch.Tensor,
    w: torch.Tensor,
    bias_sizes: Sequence[int] | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
    output_mask: Sequence[bool],
    settings: Settings = DEFAULT,
) -> tuple[torch.Tensor | None, torch.Tensor | None, torch.Tensor | None]:
    """``aten::convolution_backward``; None for a gradient that is not asked for. Raises as ``forward`` does."""
    geometry = Geometry.of(stride, padding, dilation, transposed, output_padding, groups)
    rows = geometry.rows(x.ndim - 2)
    if any(rows):
        rest = geometry.without(rows)
        longer = backward(grad, _longer(x, rows), w, bias_sizes, *rest, output_mask, settings=settings)
        data = longer[0]
        if data is not None:
            data = data[(..., *(slice(size) for size in x.shape[2:]))].contiguous()
        return data, *longer[1:]
    data = weights = sums = None
    # Both are chosen before either runs: a call that is left is left whole.
    if output_mask[0]:
        constant = promise(w)
        data = _call("data", geometry, x, w, grad, None, constant is not None, settings)
    if output_mask[1]:
        weights = _call("weights", geometry, x, w, grad, None, False, settings)
    if data is not None:
        data = data(grad, w, None, None, constant) if transposed else data(None, w, grad, None, constant)
    if weights is not None:
        weights = weights(grad, None, x) if transposed else weights(x, None, grad)
    if output_mask[2]:
        sums = grad.sum((0, *range(2, grad.ndim)))
    return data, weights, sums


def watch(watcher: Callable[[str, Any, Sequence[Any], Geometry], None]) -> Callable[[], None]:
    """``watcher(part, call, tensors, geometry)`` after each forward, until the answer is called."""
    _watchers.append(watcher)
    return lambda: _watchers.remove(watcher)


def _call(
    part: str,
    geometry: Geometry,
    x: torch.Tensor,
    w: torch.Tensor,
    grad: torch.Tensor | None,
    bias: torch.Tensor | None,
    constant: bool,
    settings: Settings,
) -> Any:
    switched = switches(x.is_cuda)
    chosen = policy_of(settings, switched)
    key = (
        part,
        geometry,
        x.shape,
        x.stride(),
        w.shape,
        w.stride(),
        None if grad is None else (grad.shape, grad.dtype, grad.device),
        x.dtype,
        w.dtype,
        x.device,
        w.device,
        None if bias is None else (bias.shape, bias.dtype, bias.device),
        constant,
        settings,
        switched[:2],
        chosen,
    )
    call = _calls.get(key)
    if call is None:

        def make() -> Any:
            try:
                return _make(part, geometry, x, w, grad, bias, constant, settings, switched, chosen)
            except NoSolver as error:
                return _Leave(str(error).splitlines()[0])
            except Left as left:
                if not left.lasting:
                    raise
                return _Leave(str(left))

        call = _calls.make(key, make)
    if switched[2] and call.prepared is not None:
        background.consider(call.problem, call.device, chosen)
    return call


def _longer(x: torch.Tensor, rows: Sequence[int]) -> torch.Tensor:
    """``x`` with zeros appended to its spatial axes."""
    pads = [count for extra in reversed(rows) for count in (0, extra)]
    return torch.ops.aten.constant_pad_nd(x, pads, 0)


class _Leave:
    """A call that is PyTorch's, each time."""

    prepared = None

    def __init__(self, reason: str) -> None:
        self.reason = reason

    def __call__(self, *_: Any) -> Any:
        raise Left(self.reason)


def _make(
    part: str,
    geometry: Geometry,
    x: torch.Tensor,
    w: torch.Tensor,
    grad: torch.Tensor | None,
    bias: torch.Tensor | None,
    constant: bool,
    settings: Settings,
    switched: tuple[Any, ...],
    chosen: Any,
) -> Any:
    tensors = {"input": x, "weight": w, "bias": bias, "grad_output": grad}
    _check(tensors)
    try:
        form = format_of(x, w, bias, geometry)
    except RuntimeError:
        _describe(part, geometry, x, w, grad, bias, constant, settings, switched, False)  # says what is wrong
        raise
    last = form is not torch.contiguous_format
    if last and form is not FORMATS.get(x.ndim):
        raise Left(f"the memory format {form} of {x.ndim}-D tensors is none of these engines'")
    problem = _describe(part, geometry, x, w, grad, bias, constant, settings, switched, last)
    if settings.min_flops is not None and problem.flops < settings.min_flops:
        raise Left(f"fewer than min_flops={settings.min_flops:g} operations")
    if 0 in w.shape or 0 in x.shape[1:]:
        raise Left("a size of zero other than the batch's")
    shape = {"data": x.shape, "weights": w.shape}.get(part) or _result_shape(problem, last)
    with policy(solver=chosen.solver, deterministic=chosen.deterministic):
        if x.is_cuda:
            from .streams import StreamCall, device

            ranks.agree(problem, lambda: device(x), x)
            return StreamCall(problem, tuple(shape), form, x)
        if x.device.type == "opencl":
            from .buffers import BufferCall

            return BufferCall(problem, tuple(shape), x.dtype)
        if not x.is_cpu:
            raise Left(f"no engine here runs on {x.device.type}")
        ranks.agree(problem, cpu)
        return HostCall(problem, tuple(shape), form, x.dtype)


def _describe(
    part: str,
    geometry: Geometry,
    x: torch.Tensor,
    w: torch.Tensor,
    grad: torch.Tensor | None,
    bias: torch.Tensor | None,
    constant: bool,
    settings: Settings,
    switched: tuple[Any, ...],
    last: bool,
) -> ConvProblem:
    """The problem. Raises InvalidArgument, InvalidProblem."""
    dtype = DTYPES[x.dtype]
    problem = problem_of(
        part,
        geometry,
        x.shape,
        w.shape,
        None if grad is None else grad.shape,
        dtype,
        last=last,
        math=math_of(settings, switched, dtype),
        bias=bias is not None,
        constant=constant,
    )
    if bias is not None and tuple(bias.shape) != (problem.channels_out,):
        raise InvalidArgument(f"bias must have shape ({problem.channels_out},), got {tuple(bias.shape)}")
    return problem


def _result_shape(problem: ConvProblem, last: bool) -> tuple[int, ...]:
    shape = problem.out_shape
    return (shape[0], shape[-1], *shape[1:-1]) if last else shape


def _check(tensors: dict[str, torch.Tensor | None]) -> None:
    """Raises Left for what no engine here computes, InvalidArgument for tensors that do not go together."""
    x: Any = tensors["input"]
    for name, tensor in tensors.items():
        if tensor is None:
            continue
        if tensor.layout is not torch.strided:
            raise Left(f"{name} is {tensor.layout}")
        if tensor.dtype not in DTYPES:
            raise Left(f"{str(tensor.dtype).removeprefix('torch.')} is none of {', '.join(DTYPES.values())}")
        if tensor.dtype != x.dtype:
            raise InvalidArgument(f"{name} must be {x.dtype} as input is, got {tensor.dtype}")
        if tensor.device != x.device:
            raise InvalidArgument(f"{name} must be on {x.device} as input is, got {tensor.device}")
    if not 3 <= x.ndim <= 5:
        raise Left(f"{x.ndim - 2} axes of space, not 1 to 3")
