"""Runs a net once on a recording to learn its graph: which operations it calls, on what, with what options.

Nothing reaches the device: memory is slots. Results' shapes come from rules for the operations that would compile
much, and from running the operation on the recording for the others.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyopencl as cl

from ..api.dtypes import dtype_name, numpy_dtype
from ..api.errors import InvalidArgument
from ..calls.arguments import check_bias, describe, transposed_shape
from ..calls.quantized import quantized_problem
from ..device.commands.recording import Recording, Slot
from ..device.tracing import named_arguments, source, tracing
from ..elementwise.tensor import Tensor
from .graph import Graph, Node, Ref, Value, map_operands


def trace(net: Callable[..., Any], shapes: Sequence[Sequence[int]], dtype: Any, queue: cl.CommandQueue) -> Graph:
    """The graph of ``net`` called with tensors of ``shapes``; ``dtype`` is theirs, or a list with one each.

    Raises InvalidArgument where the net makes a tensor by anything but operations of convdispatch.
    """
    tracer = _Tracer(queue)
    dtypes = dtype if isinstance(dtype, list | tuple) else [dtype] * len(shapes)
    inputs = [tracer.input(tuple(shape), np.dtype(each)) for shape, each in zip(shapes, dtypes, strict=True)]
    with tracing(tracer.note):
        results = net(*inputs)
    tracer.graph.output = map_operands(tracer.ref, results)
    tracer.graph.prune()
    return tracer.graph


class _Tracer:
    def __init__(self, queue: cl.CommandQueue) -> None:
        self.recording, self.graph = Recording(queue), Graph([])
        self._values: dict[Slot, Value] = {}

    def input(self, shape: tuple[int, ...], dtype: np.dtype) -> Tensor:
        value = Value(shape, dtype)
        self.graph.inputs.append(value)
        return self._tensor(value)

    def _tensor(self, value: Value) -> Tensor:
        slot = self.recording.allocate(value.nbytes)
        self._values[slot] = value
        return Tensor(slot, value.shape, value.dtype, self.recording)

    def ref(self, tensor: Any) -> Any:
        if not isinstance(tensor.base_data, Slot):
            return tensor
        slot = tensor.base_data
        value = self._values.get(slot.root)
        if value is None:
            raise InvalidArgument(
                f"the net made a tensor of shape {tensor.shape} by something that is no operation of convdispatch, "
                "so it cannot be replayed: use convdispatch.nn.functional and elementwise.apply"
            )
        return Ref(value, tensor.shape, None if tensor.contiguous else tensor.strides, tensor.offset + slot.offset)

    def note(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Stand for a call: note it as a node and return tensors without values."""
        arguments, options = map_operands(self.ref, args), map_operands(self.ref, kwargs)
        name = source()
        node = Node(function, arguments, options, sources=(name,) if name else ())
        with tracing(None):
            rule = _RULES.get(function.__name__)
            if rule:
                results = self._tensor(Value(*rule(**named_arguments(function, args, kwargs)), node))
            else:
                results = function(*map_operands(self._here, args), **map_operands(self._here, kwargs))
        if rule is None:
            for tensor in _fresh(results, self._values):
                self._values[tensor.base_data.root] = Value(tensor.shape, tensor.dtype, node)
        node.result = map_operands(self.ref, results)
        self.graph.nodes.append(node)
        return results

    def _here(self, tensor: Tensor) -> Tensor:
        """The same memory with the recording for a queue: an operation takes its first operand's."""
        if isinstance(tensor.base_data, Slot):
            return tensor
        return Tensor(tensor.base_data, tensor.shape, tensor.dtype, self.recording, tensor.strides, tensor.offset)


def _fresh(results: Any, known_values: dict[Slot, Value]) -> list[Tensor]:
    fresh: list[Tensor] = []

    def look(tensor: Any) -> Any:
        if isinstance(tensor.base_data, Slot) and tensor.base_data.root not in known_values:
            fresh.append(tensor)
        return tensor

    map_operands(look, results)
    return fresh


# Each function below returns the shape and dtype of an operation's result for its named arguments, without running it.


def _convolution(x: Tensor, w: Any, bias: Any = None, residual: Any = None, **options: Any) -> tuple[Any, np.dtype]:
    problem = describe("fwd", x.shape, w.shape, None, x.dtype.name, **options)
    check_bias(bias, problem.oc)
    return problem.y_shape, x.dtype


def _transposed_convolution(x: Tensor, w: Any, bias: Any = None, **options: Any) -> tuple[Any, np.dtype]:
    sizes = {name: value for name, value in options.items() if name not in ("activation", "residual", "math")}
    shape = transposed_shape(x.shape, w.shape, **sizes)[0]
    check_bias(bias, shape[1 if options.get("layout", "nchw") == "nchw" else -1])
    return shape, x.dtype


def _quantized_convolution(
    x: Tensor, w: Any, quantization: Any, bias: Any = None, x_zero_point: Any = None, **options: Any
) -> tuple[Any, np.dtype]:
    sizes = {name: value for name, value in options.items() if name not in ("activation", "residual")}
    problem = quantized_problem(x.shape, w.shape, dtype_name(x.dtype), quantization, **sizes)
    return problem.y_shape, numpy_dtype(problem.written_dtype)


def _in_dtype(x: Tensor, dtype: Any = np.float32, **_: Any) -> tuple[Any, np.dtype]:
    return x.shape, np.dtype(dtype)


def _like_first(x: Tensor, **_: Any) -> tuple[Any, np.dtype]:
    return x.shape, x.dtype


_RULES: dict[str, Callable[..., Any]] = {
    "convolution": _convolution,
    "transposed_convolution": _transposed_convolution,
    "quantized_convolution": _quantized_convolution,
    "quantize": _in_dtype,
    "dequantize": _in_dtype,
    "batch_norm": _like_first,
    "activate": _like_first,
}
