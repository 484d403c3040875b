"""ONNX's door: ``load`` makes a net of a model file, ``Backend`` is ONNX's own interface to it, ``InferenceSession``
onnxruntime's. Needs the onnx package: ``pip install 'convdispatch[onnx]'``.

A file is read with its sizes checked, its nodes are walked over tensors while ``inference.build`` traces them, and a
form of the net is cached for each set of input shapes. A new operator goes to a module of ``operators``.

- ``arrays``: a caller's arrays to tensors, and results to arrays of the caller's kind.
- ``backend``: ONNX's backend interface.
- ``call``: one node as its operator sees it.
- ``folding``: nodes of known values, computed by onnx's reference.
- ``interpreter``: walks a graph's nodes.
- ``model``: a model file to a net that is called with arrays.
- ``operators``: ONNX's operators as operations of tensors.
- ``qoperators``: onnxruntime's quantized operators in ONNX's own.
- ``reading``: a file to a ModelProto whose sizes are checked.
- ``session``: onnxruntime's InferenceSession.
"""

from __future__ import annotations

from ..api.lazy import lazy_names

__getattr__, __all__ = lazy_names(globals())
