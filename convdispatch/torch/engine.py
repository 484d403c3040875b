"""``aten::convolution`` and its backward on these engines; calls are kept by all that decides them.

``forward`` and ``backward`` take the operators' own arguments and answer as PyTorch would: dtype, device and memory
format. They raise Left, with the reason, where the call is PyTorch's own kernel's. A call that was made before costs a
look-up; ``making`` sees the others.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from ..device.kernels import Programs
from ..selection import dispatch
from . import background
from .geometry import Geometry
from .making import Asked, made
from .settings import DEFAULT, Settings, policy_of, switches
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
    geometry = (tuple(stride), tuple(padding), tuple(dilation), transposed, tuple(output_padding), groups)
    if transposed and any(output_padding):
        rows = Geometry(*geometry).rows(x.ndim - 2)
        if any(rows):
            return forward(_longer(x, rows), w, bias, *Geometry(*geometry).without(rows), settings=settings)
    constant = promise(w)
    call = _call("forward", geometry, x, w, None, bias, constant is not None, settings)
    result = call(None, w, x, bias, constant) if transposed else call(x, w, None, bias, constant)
    if _watchers:
        for watcher in _watchers:
            watcher("forward", call, (x, w, bias), Geometry(*geometry))
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
    geometry = (tuple(stride), tuple(padding), tuple(dilation), transposed, tuple(output_padding), groups)
    if transposed and any(output_padding):
        rows = Geometry(*geometry).rows(x.ndim - 2)
        if any(rows):
            rest = Geometry(*geometry).without(rows)
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
    geometry: tuple[Any, ...],
    x: torch.Tensor,
    w: torch.Tensor,
    grad: torch.Tensor | None,
    bias: torch.Tensor | None,
    constant: bool,
    settings: Settings,
) -> Any:
    """The kept call for tensors like these; made now where it is new."""
    switched = switches(x.is_cuda)
    chosen = policy_of(settings, switched)
    key = (
        part,
        geometry,
        x.shape,
        x.stride(),
        x.dtype,
        x.device,
        w.shape,
        w.stride(),
        w.dtype,
        w.device,
        None if grad is None else (grad.shape, grad.dtype, grad.device),
        None if bias is None else (bias.shape, bias.dtype, bias.device),
        constant,
        settings,
        switched[:2],
        chosen,
    )
    call = _calls.get(key)
    if call is None:
        asked = Asked(part, Geometry(*geometry), x, w, grad, bias, constant, settings, switched, chosen)
        call = _calls.make(key, lambda: made(asked))
    if switched[2] and call.prepared is not None:
        background.consider(call.problem, call.device, chosen)
    return call


def _longer(x: torch.Tensor, rows: Sequence[int]) -> torch.Tensor:
    """``x`` with zeros appended to its spatial axes."""
    pads = [count for extra in reversed(rows) for count in (0, extra)]
    return torch.ops.aten.constant_pad_nd(x, pads, 0)
