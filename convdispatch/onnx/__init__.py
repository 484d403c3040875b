"""ONNX's door: ``load`` makes a net of a model file, ``Backend`` is ONNX's own interface to it, ``InferenceSession``
onnxruntime's. Needs the onnx package: ``pip install 'convdispatch[onnx]'``.

A file is read with its sizes checked, its nodes are walked over tensors while ``inference.build`` traces them, and a
form of the net is cached for each set of input shapes. A new operator goes to a module of ``operators``.

- ``arrays``: a caller's arrays to tensors, and results to arrays of the caller's kind.
- ``backend``: ONNX's backend interface.
- ``binding``: onnxruntime's memory, OrtValue and IOBinding.
- ``call``: one node as its operator sees it.
- ``constants``: what Constant nodes hold.
- ``folding``: nodes of known values, computed by onnx's reference.
- ``interpreter``: walks a graph's nodes.
- ``model``: a model file to a net that is called with arrays.
- ``operators``: ONNX's operators as operations of tensors.
- ``qoperators``: onnxruntime's quantized operators in ONNX's own.
- ``reading``: a file to a ModelProto whose sizes are checked.
- ``session``: onnxruntime's InferenceSession.
- ``session_options``: onnxruntime's options and providers.
- ``types``: ONNX's element types as NumPy's.
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
    "backend": "Backend",
    "binding": "IOBinding OrtValue",
    "model": "OnnxNet load",
    "session": "InferenceSession ModelMetadata NodeArg",
    "session_options": "ExecutionMode GraphOptimizationLevel RunOptions SessionOptions "
    "get_available_providers get_device",
}
"""What each module has for callers; it is imported when one of its names is asked for."""
_HOMES = {name: module for module, names in _NAMES.items() for name in names.split()}

__all__ = [*_HOMES]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(f".{_HOMES[name]}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
