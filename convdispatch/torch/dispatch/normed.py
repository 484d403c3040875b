"""Convolutions with a norm before them and sums of channels behind them, on our engines.

``forward`` and ``backward`` raise Fallback, with the reason, where the call is PyTorch's, as ``engine``'s functions do.
The calls are cached and planned as all others; they differ in their operands alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ...calls.framework.fallback import Fallback
from ..geometry import whole
from ..settings import DEFAULT, Settings
from . import engine, native


def sums_type(dtype: torch.dtype) -> torch.dtype:
    """The dtype of tables and sums of tensors of a dtype."""
    return torch.float64 if dtype is torch.float64 else torch.float32


def forward(
    x: torch.Tensor,
    w: torch.Tensor,
    bias: torch.Tensor | None,
    table: torch.Tensor | None,
    *given: Any,
    settings: Settings = DEFAULT,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """The convolution of ``norm(x)``, and the sums of the result's channels, None if they are not requested.

    ``given`` is the norm's activation, whether sums are requested, and stride, padding, dilation and groups.
    """
    norm, sums, *geometry = given
    call = _call("forward", geometry, (x, w, None, bias), (None, False, norm, sums), settings)
    y, rows = _result(call, x), None
    if sums:
        rows = x.new_empty((3, w.shape[0]), dtype=sums_type(x.dtype))
    engine.launch(call, {"x": x, "w": w, "bias": bias, "norm": table, "y": y, "sums": rows})
    native.learn([("forward", call, 0)], False, (x, w, bias, None, table), w, None)
    return y, rows


def backward(
    grad: torch.Tensor,
    x: torch.Tensor,
    w: torch.Tensor,
    *given: Any,
    settings: Settings = DEFAULT,
) -> tuple[torch.Tensor | None, torch.Tensor | None, torch.Tensor | None]:
    """The gradient of what the norm's activation reads, the weights' gradient, and the sums of the first one's
    channels; None for what is not requested. ``given`` is the table, the residual, what the convolution read or None,
    the norm's activation, stride, padding, dilation, groups and the mask of requests."""
    table, residual, activated, norm, *geometry, (wants_data, wants_weights, wants_sums) = given
    data = sums = weights = data_call = weights_call = None
    read, norm_before = (x, norm) if activated is None else (activated, None)
    learnt: list[tuple[str, Any, int]] = []
    # Both calls are planned before either runs: if one is left to PyTorch, the whole backward is.
    if wants_data:
        parts = (None, residual is not None, norm, wants_sums)
        data_call = _call("data", geometry, (x, w, grad, None), parts, settings)
    if wants_weights:
        weights_call = _call("weights", geometry, (read, w, grad, None), (None, False, norm_before, False), settings)
    if data_call is not None:
        data = _result(data_call, x)
        sums = x.new_empty((2, x.shape[1]), dtype=sums_type(x.dtype)) if wants_sums else None
        operands = {"w": w, "y": grad, "residual": residual, "norm": table, "saved": x, "sums": sums}
        engine.launch(data_call, {"x": data, **operands})
        learnt.append(("data", data_call, 0))
    if weights_call is not None:
        weights = _result(weights_call, x)
        engine.launch(weights_call, {"x": read, "w": weights, "y": grad, "norm": table})
        learnt.append(("weights" if activated is None else "activated", weights_call, 1))
    native.learn(learnt, False, (grad, x, w, table, residual, activated), w, None)
    return data, weights, sums


def _call(part: str, geometry: Sequence[Any], tensors: Any, parts: tuple[Any, ...], settings: Settings) -> Any:
    """The cached call of a part. Raises Fallback where PyTorch computes it."""
    x, w, grad, _ = tensors
    call = engine.cached_call(part, whole(*geometry), tensors, False, settings, parts)
    if not hasattr(call, "launch"):
        call(x, w, grad)  # raises the reason
        raise Fallback("an operand beside a convolution's own is on a device that takes none")
    return call


def _result(call: Any, like: torch.Tensor) -> torch.Tensor:
    return torch.empty(call.shape, dtype=like.dtype, device=like.device, memory_format=call.form)
