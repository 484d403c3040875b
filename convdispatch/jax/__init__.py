"""JAX's door: ``lax.conv_general_dilated`` on these engines, under ``jit``, ``grad`` and ``vmap``, over XLA's buffers.

A convolution is read as one of this package's problems (``geometry``) when a program is lowered (``lowering``), and
becomes a foreign call whose handler is Python over XLA's C API (``ffi``, ``calls``): kernels take the buffers where
they lie (``host_call``, ``cuda_call``). ``primitive`` has the function of jax's signature, and ``enable``, by which
jax's own operator is lowered so; ``counting`` and ``explaining`` tell. Needs jax, of which private modules are used:
``pip install 'convdispatch[jax]'``.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .counting import counters, reset_counters
    from .explaining import Explained, Layer, explain
    from .primitive import Enabled, conv_general_dilated, disable, enable

_NAMES = {
    "counting": ("counters", "reset_counters"),
    "explaining": ("Explained", "Layer", "explain"),
    "primitive": ("Enabled", "conv_general_dilated", "disable", "enable"),
}
_HOMES = {name: module for module, names in _NAMES.items() for name in names}

__all__ = [
    "Enabled", "Explained", "Layer", "conv_general_dilated", "counters", "disable", "enable", "explain",
    "reset_counters",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(f".{_HOMES[name]}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
