"""JAX's door: ``lax.conv_general_dilated`` on these engines, under ``jit``, ``grad`` and ``vmap``, over XLA's buffers.

A convolution of a program becomes a foreign call, whose handler takes XLA's buffers in place. A new transformation of
operands goes to ``geometry``. Needs jax, of which private modules are used: ``pip install 'convdispatch[jax]'``.

- ``calls``: the handlers, and the calls that they run.
- ``counting``: counts of calls here, and of those left to XLA.
- ``explaining``: ``explain``.
- ``ffi``: XLA's foreign calls by ctypes.
- ``geometry``: a convolution of jax's as a problem.
- ``lowering``: the step from jax's operator to XLA's.
- ``primitive``: ``conv_general_dilated`` and ``enable``.
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
