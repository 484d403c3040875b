"""Of which type a traced graph's constants are, and how its answers lie in memory, as PyTorch has both."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

from .quantized import Missing

__all__ = ["formats_known", "of_its_type", "order_of"]

_FORMATS = (torch.channels_last, torch.channels_last_3d)


def of_its_type(constant: torch.Tensor, dtype: torch.dtype, operator: str) -> torch.Tensor:
    """A constant as an operator whose numbers are ``dtype`` takes it: one number alone has no say in a result's type.
    Raises Missing for numbers of another type, as weights that PyTorch refuses for such an input."""
    if not isinstance(constant, torch.Tensor) or not constant.is_floating_point() or constant.dtype == dtype:
        return constant
    if constant.ndim or dtype not in (torch.float32, torch.float64):  # narrow ones are computed in float32
        raise Missing(f"{operator} takes numbers of {constant.dtype} with those of {dtype}")
    return constant.to(dtype)


def formats_known(graph: fx.Graph, given: Sequence[Any]) -> bool:
    """Whether answers lie as the model's own: channels lie last in what is ``given``, inputs or weights, or an operator
    asks for it, and no
    convolution took in the sum with what lies otherwise. A graph of fused layers may make other formats of what is
    contiguous; then answers are contiguous, which all code takes."""
    pictures = (x for x in given if isinstance(x, torch.Tensor) and x.ndim > 3)
    asked = any(node.kwargs.get("memory_format") in _FORMATS for node in graph.nodes)
    return (asked or any(map(order_of, pictures))) and not any(map(_of_two_formats, graph.nodes))


def _of_two_formats(node: fx.Node) -> bool:
    """Whether a convolution took in the sum with what lies otherwise: whose format the model's own sum has, which of
    its operands came first, is not known any more."""
    if str(node.target) != "convdispatch.fused_convolution.default" or not isinstance(node.args[3], fx.Node):
        return False
    return order_of(node.args[3].meta["val"]) != order_of(node.meta["val"])


def order_of(x: torch.Tensor) -> tuple[int, ...] | None:
    """A tensor's axes, the outermost in memory first; None where that is their order, or where there are gaps."""
    if x.is_contiguous() or not x.is_floating_point():
        return None
    order = sorted(range(x.ndim), key=lambda axis: -x.stride(axis))
    return tuple(order) if x.permute(order).is_contiguous() else None
