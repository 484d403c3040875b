"""Decides when a converted layer calls PyTorch's own operators: while it is recorded or differentiated by a transform.

``torch.func``'s transforms and forward-mode differentiation have rules for ``aten::convolution``; ``torch.jit.trace``
and the ONNX exporters know it. A custom operator would lose tangents, or be unknown to whoever loads the graph. Below
these transforms, under ``enable()``, the numbers are computed here all the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.autograd import forward_ad

_C: Any = torch._C


def plain_operators() -> bool:
    """Whether a layer's call must use PyTorch's ``convolution`` now."""
    if torch.compiler.is_compiling():  # compilers and torch.export keep custom operators whole
        return torch.onnx.is_in_onnx_export()
    if _C._get_tracing_state() is not None or forward_ad._current_level >= 0:
        return True
    return _C._functorch.peek_interpreter_stack() is not None and _transformed()


def vmap_comes_first(operands: Sequence[Any]) -> bool:
    """Whether ``torch.vmap`` is the innermost transform, and one of these operands has an axis of its: then PyTorch
    looks for vmap's rule before that of autocast."""
    innermost = _C._functorch.peek_interpreter_stack()
    if innermost is None or innermost.key() != _C._functorch.TransformType.Vmap:
        return False
    return any(isinstance(each, torch.Tensor) and _C._functorch.is_batchedtensor(each) for each in operands)


def _transformed() -> bool:
    """Whether a functorch transform other than ``functionalize``, which takes any operator, is active."""
    transform_stack = _C._functorch.get_interpreter_stack() or ()
    return any(each.key() != _C._functorch.TransformType.Functionalize for each in transform_stack)
