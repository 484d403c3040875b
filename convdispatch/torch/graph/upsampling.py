"""Upsampling stays one operator in the graphs that AOTAutograd makes for forms.

PyTorch's tracer would decompose it to gathers at computed places, which no form can read as an upsampling any more.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch

__all__ = ["whole_upsampling"]

_NAMES = "nearest1d nearest2d nearest3d linear1d bilinear2d trilinear3d"
_KEYS = (torch._C.DispatchKey.Autograd, torch._C.DispatchKey.CompositeImplicitAutograd)
"""Keys under which PyTorch enters decompositions that are written in Python."""


@contextlib.contextmanager
def whole_upsampling() -> Iterator[None]:
    """While it holds, tracing does not decompose upsampling. The caller holds Dynamo's lock: other threads trace
    nothing."""
    taken: list[tuple[Any, Any, Any]] = []
    for name in _NAMES.split():
        packet = getattr(torch.ops.aten, f"upsample_{name}")
        for operator in (packet.default, packet.vec):
            taken += [(operator, key, operator.py_kernels.pop(key)) for key in _KEYS if key in operator.py_kernels]
            operator._dispatch_cache.clear()
    try:
        yield
    finally:
        for operator, key, kernel in taken:
            operator.py_kernels[key] = kernel
            operator._dispatch_cache.clear()
