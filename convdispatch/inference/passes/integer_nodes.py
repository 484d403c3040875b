"""Functions that passes over a quantized net share: which node computes a tensor of integers, and how operations
swap."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from ...device.runtime import device_info
from ...nn.quantized import dequantize
from ..graph import Graph, Node, Ref, Value, is_planned

CONVOLUTION, QUANTIZE, DEQUANTIZE = "quantized_convolution", "quantize", "dequantize"


def maker_of(ref: Any, *names: str) -> Node | None:
    """The operation of one of these names whose whole result ``ref`` is, whatever its shape."""
    if not isinstance(ref, Ref) or not ref.is_flat or ref.value.node is None or ref.value.node.name not in names:
        return None
    return ref.value.node


def alone(graph: Graph, node: Node) -> bool:
    """Whether one operand of the graph reads the operation's result."""
    return graph.uses().get(node.result.value) == 1


def cpu_queue(graph: Graph) -> Any:
    """The queue of the net's weights where that is a CPU's, else None."""
    queue = next((node.kwargs["w"].queue for node in graph.nodes if is_planned(node)), None)
    return None if queue is None or device_info(queue.device).type != "cpu" else queue


def form_of(node: Node) -> tuple[float, int, str]:
    """Scale, zero point and dtype of the integers that an operation makes or reads."""
    arguments = node.kwargs
    dtype = arguments["dtype"] if node.name == QUANTIZE else arguments["x"].value.dtype.name
    return float(arguments["scale"]), int(arguments["zero_point"]), np.dtype(dtype).name


def integers_of(ref: Ref) -> Ref:
    """What a dequantization's result was made of, in the same shape."""
    node = ref.value.node
    assert node is not None
    return replace(node.kwargs["x"], shape=ref.shape)


def insert(graph: Graph, after: Node, function: Any, x: Ref, **options: Any) -> Node:
    """A new operation after another one; it has no result yet."""
    node = Node(function, (), {"x": x, **options}, sources=after.sources)
    graph.nodes.insert(graph.nodes.index(after) + 1, node)
    return node


def give(node: Node, value: Value) -> None:
    """Let ``node`` make ``value``."""
    value.node, node.result = node, value.whole


def now_of_integers(graph: Graph, node: Node, form: tuple[float, int, str]) -> None:
    """What ``node`` made of numbers it makes of integers; a dequantization behind it makes the numbers."""
    numbers = node.result.value
    integers = Value(numbers.shape, np.dtype(form[2]))
    dequantizing = insert(
        graph, node, dequantize, integers.whole, scale=form[0], zero_point=form[1], dtype=numbers.dtype.name
    )
    give(node, integers)
    give(dequantizing, numbers)
