"""Rewrites a graph for another precision: values and weights of float32 become 16-bit ones, products TF32 ones.

Runs after fusing, so that batch norms are folded into float32 weights and what is rounded is the product, once. Sums
and activations stay float32 within an operation, as everywhere.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from ...api.dtypes import numpy_dtype
from ...api.errors import InvalidArgument
from ...elementwise.tensor import Tensor
from ..graph import Graph, Ref, map_operands

_HALVES = ("float16", "bfloat16")


def dtype_of(dtype: Any) -> np.dtype:
    """A NumPy dtype, from one or its name. Raises InvalidArgument for anything else."""
    try:
        return numpy_dtype(dtype)
    except TypeError as error:
        raise InvalidArgument(f"dtype must be one of NumPy's or 'bfloat16', got {dtype!r}") from error


def traced_in(net: Callable[..., Any], dtype: np.dtype) -> np.dtype:
    """The dtype of the inputs to trace the net with: float32 where its weights are that and 16 bits are asked."""
    if dtype.name in _HALVES and any(p.dtype == np.float32 for p in getattr(net, "parameters", tuple)()):
        return np.dtype(np.float32)
    return dtype


def with_dtype(graph: Graph, dtype: np.dtype) -> Graph:
    """Values, inputs and weights of float32 in ``dtype``; the graph is changed in place and returned."""
    ratio = 4 // dtype.itemsize
    values = {*graph.inputs, *(value for node in graph.nodes for value in node.values)}
    changed = {value for value in values if value.dtype == np.float32}
    weights: dict[int, Tensor] = {}
    graph.background.end()

    def change(operand: Any) -> Any:
        if isinstance(operand, Ref):
            if operand.value not in changed:
                return operand
            strides = operand.strides and tuple(stride // ratio for stride in operand.strides)
            return replace(operand, strides=strides, offset=operand.offset // ratio)
        if operand.dtype != np.float32:
            return operand
        if id(operand) not in weights:
            weights[id(operand)] = operand.astype(dtype)
        return weights[id(operand)]

    graph.change(change)
    for node in graph.nodes:
        node.result = map_operands(change, node.result)
        if node.kwargs.get("dtype") is not None and np.dtype(node.kwargs["dtype"]) == np.float32:
            node.kwargs["dtype"] = dtype
    for value in changed:
        value.dtype = dtype
    return graph


def with_math(graph: Graph, math: str) -> Graph:
    """Convolutions of float32 by ``math``, ``conv()``'s; changed in place and returned."""
    for node in graph.nodes:
        if node.name in ("convolution", "transposed_convolution"):
            node.kwargs["math"] = math
    return graph
