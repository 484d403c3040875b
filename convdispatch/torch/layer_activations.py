"""PyTorch's activation layers as activation strings of ``conv()``, for layers that fuse the activation that follows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn

from ..api.activations import ACTIVATIONS, Torch


def _words_of(name: str, theirs: Torch) -> Callable[[Any], str | None]:
    def words(layer: Any) -> str | None:
        if any(getattr(layer, key, value) != value for key, value in theirs.only.items()):
            return None
        numbers = ", ".join(repr(float(getattr(layer, each))) for each in theirs.attributes)
        return f"{name}({numbers})" if numbers else name

    return words


MODULES: dict[type, Callable[[Any], str | None]] = {
    getattr(nn, each.torch.module): _words_of(name, each.torch) for name, each in ACTIVATIONS.items() if each.torch
}
"""For each activation layer class, a function that returns the activation string of ``conv()``, or None."""


def has_hooks(module: Any) -> bool:
    """Whether a module has hooks, which see or change its calls."""
    early_hooks = module._forward_pre_hooks or module._backward_pre_hooks
    return bool(early_hooks or module._forward_hooks or module._backward_hooks)
