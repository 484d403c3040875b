"""Keeps upsampling one operator in the graphs that AOTAutograd makes for forms.

PyTorch's tracer would decompose it to gathers at computed indices, which no form can read as an upsampling any more.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from typing import Any

import torch
from torch import sym_int

_NAMES = "nearest1d nearest2d nearest3d linear1d bilinear2d trilinear3d"
_KEYS = (torch._C.DispatchKey.Autograd, torch._C.DispatchKey.CompositeImplicitAutograd)
"""Dispatch keys under which PyTorch registers decompositions that are written in Python."""


@contextlib.contextmanager
def whole_upsampling() -> Iterator[None]:
    """A context in which tracing does not decompose upsampling. The caller holds Dynamo's lock: other threads trace
    nothing."""
    saved_kernels: list[tuple[Any, dict[Any, Any]]] = []
    for name in _NAMES.split():
        packet = getattr(torch.ops.aten, f"upsample_{name}")
        for operator in (packet.default, packet.vec):
            saved_kernels.append((operator, dict(operator.py_kernels)))
            for key in _KEYS:
                operator.py_kernels.pop(key, None)
            operator._dispatch_cache.clear()
        packet.vec.py_kernels |= dict.fromkeys(_KEYS, functools.partial(_by_sizes, packet.default))
    try:
        yield
    finally:
        for operator, kernels in saved_kernels:
            operator.py_kernels.clear()
            operator.py_kernels.update(kernels)
            operator._dispatch_cache.clear()


def _by_sizes(operator: Any, x: torch.Tensor, sizes: Any, *rest: Any) -> torch.Tensor:
    """An upsampling by sizes or scales, by the operator that takes both, also for symbolic sizes."""
    *corners, scales = rest
    if sizes is None:
        sizes = [sym_int(size * scale) for size, scale in zip(x.shape[2:], scales, strict=True)]
        return operator(x, sizes, *corners, *scales)  # type: ignore[no-any-return]
    return operator(x, sizes, *corners)  # type: ignore[no-any-return]
