"""ONNX's door: ``load`` makes a net of a model file, ``Backend`` is ONNX's own interface to it, ``InferenceSession``
onnxruntime's.

A file is read with its sizes checked (``reading``), its nodes walked over tensors while ``inference.build`` traces them
(``walking``, ``operators``), what is known on the host folded by onnx's own reference (``folding``), and a form kept
for each set of input shapes (``model``). Needs the onnx package: ``pip install 'convdispatch[onnx]'``.
"""

from __future__ import annotations

from ..api.lazy import lazy_names

__getattr__, __all__ = lazy_names(globals())
