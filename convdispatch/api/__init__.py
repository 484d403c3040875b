"""The header: all that a caller or a plugin may import. Names load when first used.

Callers: ``conv`` and its relatives, ``constant``, ``policy``, ``frozen``, ``explain``, ``ConvProblem``, the errors.
Plugins: ``Solver``, ``Declared``, ``Plan``, ``DeviceInfo``, ``hookimpl``, ``KernelPlan``, ``StepPlan``, and the shared
kernel text and matrix product that plans are made of. ``convdispatch.api.cuda`` has what plugins over CUDA's libraries
need.
"""

from __future__ import annotations

import sys
import types
from typing import Any

from .lazy import lazy_names

_load, __all__ = lazy_names(globals())


class _Header(types.ModuleType):
    """A package whose names load on first use, also those that a submodule shares (``conv``, ``policy``).

    Importing ``convdispatch.calls.conv`` would bind the submodule over the function; that assignment is dropped.
    """

    def __getattr__(self, name: str) -> Any:
        return _load(name)

    def __setattr__(self, name: str, value: Any) -> None:
        if not (name in __all__ and isinstance(value, types.ModuleType)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Header
