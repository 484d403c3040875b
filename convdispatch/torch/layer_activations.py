"""Activation layers of PyTorch as ``conv()``'s words, for layers that take in what follows them in a sequence."""

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
"""Layers, as ``conv()``'s words; None where it has none."""


def has_hooks(module: Any) -> bool:
    """Whether somebody looks at a module's calls, or changes them."""
    before = module._forward_pre_hooks or module._backward_pre_hooks
    return bool(before or module._forward_hooks or module._backward_hooks)
