"""Of which type a traced graph's constants are, and how its answers lie in memory, as PyTorch has both."""

from __future__ import annotations

import torch

from .quantized import Missing

__all__ = ["of_its_type", "order_of"]


def of_its_type(constant: torch.Tensor, dtype: torch.dtype, operator: str) -> torch.Tensor:
    """A constant as an operator whose numbers are ``dtype`` takes it: one number alone has no say in a result's type.
    Raises Missing for numbers of another type, as weights that PyTorch refuses for such an input."""
    if not isinstance(constant, torch.Tensor) or not constant.is_floating_point() or constant.dtype == dtype:
        return constant
    if constant.ndim or dtype not in (torch.float32, torch.float64):  # narrow ones are computed in float32
        raise Missing(f"{operator} takes numbers of {constant.dtype} with those of {dtype}")
    return constant.to(dtype)


def order_of(x: torch.Tensor) -> tuple[int, ...] | None:
    """A tensor's axes, the outermost in memory first; None where that is their order, or where there are gaps."""
    if x.is_contiguous() or not x.is_floating_point():
        return None
    order = sorted(range(x.ndim), key=lambda axis: -x.stride(axis))
    return tuple(order) if x.permute(order).is_contiguous() else None
