"""ONNX's door: ``load`` makes a net of a model file, ``Backend`` is ONNX's own interface to it.

A file is read with its sizes checked (``reading``), its nodes walked over tensors while ``inference.build`` traces them
(``walking``, ``operators``), what is known on the host folded by onnx's own reference (``folding``), and a form kept
for each set of input shapes (``model``). Needs the onnx package: ``pip install 'convdispatch[onnx]'``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .backend import Backend
    from .model import OnnxNet, load

__all__ = ["Backend", "OnnxNet", "load"]


def __getattr__(name: str) -> Any:
    if name == "Backend":
        from .backend import Backend

        return Backend
    if name in ("OnnxNet", "load"):
        from . import model

        return getattr(model, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
