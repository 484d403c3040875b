"""ONNX's door: ``load`` makes a net of a model file, ``Backend`` is ONNX's own interface to it, ``InferenceSession``
onnxruntime's.

A file is read with its sizes checked (``reading``), its nodes walked over tensors while ``inference.build`` traces them
(``walking``, ``operators``), what is known on the host folded by onnx's own reference (``folding``), and a form kept
for each set of input shapes (``model``). Needs the onnx package: ``pip install 'convdispatch[onnx]'``.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .backend import Backend
    from .binding import IOBinding, OrtValue
    from .model import OnnxNet, load
    from .session import InferenceSession, ModelMetadata, NodeArg
    from .session_options import (
        ExecutionMode,
        GraphOptimizationLevel,
        RunOptions,
        SessionOptions,
        get_available_providers,
        get_device,
    )

_NAMES = {
    "backend": ("Backend",),
    "binding": ("IOBinding", "OrtValue"),
    "model": ("OnnxNet", "load"),
    "session": ("InferenceSession", "ModelMetadata", "NodeArg"),
    "session_options": (
        "ExecutionMode", "GraphOptimizationLevel", "RunOptions", "SessionOptions", "get_available_providers",
        "get_device",
    ),
}  # fmt: skip
"""What a module of this folder has for callers; it is imported when one is asked for."""
_HOMES = {name: module for module, names in _NAMES.items() for name in names}

__all__ = [
    "Backend", "ExecutionMode", "GraphOptimizationLevel", "IOBinding", "InferenceSession", "ModelMetadata", "NodeArg",
    "OnnxNet", "OrtValue", "RunOptions", "SessionOptions", "get_available_providers", "get_device", "load",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(f".{_HOMES[name]}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
