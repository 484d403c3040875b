"""Rewrites a graph for the other layout: pictures lie the other way, and are reordered only where they must.

Reorders are needed at the net's input and output, where pictures are flattened to vectors, and around operations that
do not say how they treat axes. The graph may then be timed in both layouts, reorders included.
"""

from __future__ import annotations

from collections.abc import Set
from dataclasses import replace
from typing import Any

import numpy as np

from ...device.tracing import operation
from ...elementwise import apply
from ...elementwise.interleaving import interleaved
from ...elementwise.tensor import Tensor
from ...nn.quantized import quantize_pixels
from ..graph import Graph, Node, Ref, Value, is_planned, map_operands, operands

LAYOUTS = ("nchw", "nhwc")
MIXED = "mixed"
"""The name of a form in which some operations compute in NCHW and others in NHWC."""
_ORDER = {"nhwc": (0, 2, 3, 1), "nchw": (0, 3, 1, 2)}
"""The order of axes that transposes a tensor from the other layout into this one."""
_AWARE = frozenset({
    "convolution", "transposed_convolution", "max_pool", "avg_pool", "adaptive_avg_pool", "adaptive_max_pool",
    "global_average_pool", "batch_norm", "local_response_norm", "quantized_convolution", "dequantized_average",
    "table_norm",
})  # fmt: skip
"""The operations that have an option ``layout``."""
_POINTWISE = frozenset({"apply", "activate", "add", "dropout", "relu", "quantize", "dequantize"})


@operation
def reorder(x: Tensor, axes: tuple[int, ...]) -> Tensor:
    """The axes of x in another order, copied."""
    interleaved_x = interleaved(x) if tuple(axes) == _ORDER["nhwc"] else None
    return apply("x", x=x.transpose(*axes)) if interleaved_x is None else interleaved_x


def relayout(graph: Graph, layout: str, turned: Set[Node] | None = None) -> Graph:
    """Return a new graph of the same net that computes in ``layout``; inputs and outputs keep their layout.

    With ``turned`` the pictures of these operations alone, of which ``can_turn`` holds, are turned.
    """
    return _Relayout(graph, layout, turned).run()


def traced_layout(graph: Graph) -> str | None:
    """The layout that all operations of a graph that have one were traced in; None where they differ, or none has."""
    layouts = {node.kwargs.get("layout", "nchw") for node in graph.nodes if node.name in _AWARE and _pictures(node)}
    return layouts.pop() if len(layouts) == 1 else None


def can_turn(node: Node) -> bool:
    """Return whether the operation computes the same result on tensors of the other layout."""
    pictures = _pictures(node)
    if not pictures or not all(ref.is_whole or _is_vector(ref) for ref in pictures):
        return False
    # A pointwise operation may change layout if all operands have four axes: they broadcast along the same axes.
    if node.name in _POINTWISE:
        return all(len(operand.shape) == 4 for operand in operands((node.args, node.kwargs)))
    if node.name in ("sampled", "concatenate"):
        return all(ref.is_whole for ref in pictures)
    return node.name in _AWARE


def _pictures(node: Node) -> list[Ref]:
    return [ref for ref in node.refs if len(ref.shape) == 4]


class _Relayout:
    def __init__(self, graph: Graph, layout: str, turned: Set[Node] | None) -> None:
        self.old, self.layout, self.turned = graph, layout, turned
        self.order = _ORDER[layout]
        self.back = _ORDER[LAYOUTS[1 - LAYOUTS.index(layout)]]
        self.new = Graph(list(graph.inputs))
        self._other: dict[Value, Value] = {}
        """The values of the old graph (4-D tensors), each with its counterpart in the new layout."""
        self._plain: dict[Value, Value] = {value: value for value in graph.inputs}
        """The values of the old graph, each with its counterpart in the old layout."""
        self._weights: dict[int, Tensor] = {}

    def run(self) -> Graph:
        for node in self.old.nodes:
            turns = self._turns(node)
            change = self._other_operand if turns else self._plain_operand
            arguments = dict(node.kwargs)
            # Weights are transposed when the plan packs them, because they may not be computed yet.
            weights = {"w": arguments.pop("w").transpose(*self.order)} if turns and is_planned(node) else {}
            args, kwargs = map_operands(change, node.args), map_operands(change, arguments) | weights
            if turns and node.name in _AWARE:
                kwargs["layout"] = self.layout
            if turns and node.name == "sampled":
                kwargs["axes"] = tuple(self.order.index(axis % 4) for axis in kwargs["axes"])
            if turns and node.name == "concatenate":
                kwargs["axis"] = self.order.index(kwargs.get("axis", 1) % 4)
            self._add(node, Node(node.function, args, kwargs, sources=node.sources), turns)
        self.new.output = map_operands(self._plain_operand, self.old.output)
        self.new.prune()
        return self.new

    def _turns(self, node: Node) -> bool:
        """Whether the operation is computed on pictures that lie the other way."""
        if self.turned is not None:
            return node in self.turned
        if not can_turn(node):
            return False
        if node.name in _AWARE:
            return node.kwargs.get("layout", "nchw") != self.layout
        # An operation that works in either layout changes only if an operand has changed already.
        return any(ref.value in self._other for ref in _pictures(node))

    def _add(self, old: Node, new: Node, turns: bool) -> None:
        for value in old.values:
            picture = turns and len(value.shape) == 4
            shape = tuple(value.shape[a] for a in self.order) if picture else value.shape
            new_value = Value(shape, value.dtype, new)
            (self._other if picture else self._plain)[value] = new_value

        def result(ref: Ref) -> Ref:
            new_value = (self._other if ref.value in self._other else self._plain)[ref.value]
            return new_value.whole if ref.is_whole else replace(ref, value=new_value)

        new.result = map_operands(result, old.result)
        self.new.nodes.append(new)

    def _other_operand(self, operand: Any) -> Any:
        if isinstance(operand, Tensor):
            return self._other_weights(operand) if len(operand.shape) == 4 else operand
        if len(operand.shape) != 4:
            return self._plain_operand(operand)
        value = operand.value
        # A vector viewed as an image of one pixel has the same bytes in both layouts.
        if not operand.is_whole:
            return replace(self._plain_operand(operand), shape=tuple(operand.shape[a] for a in self.order))
        if value not in self._other:
            self._other[value] = self._reordered(self._plain[value], self.order)
        return self._other[value].whole

    def _plain_operand(self, operand: Any) -> Any:
        if isinstance(operand, Tensor):
            return operand
        value = operand.value
        if value not in self._plain:
            transposed = self._other[value]
            if np.prod(value.shape[2:] if self.layout == "nhwc" else value.shape[1:3]) == 1:
                return replace(operand, value=transposed)  # An image of one pixel has the same bytes in both layouts.
            self._plain[value] = self._reordered(transposed, self.back)
        return replace(operand, value=self._plain[value])

    def _reordered(self, value: Value, axes: tuple[int, ...]) -> Value:
        maker = value.node
        if maker is not None and maker.name == "quantize" and axes == _ORDER["nhwc"] and maker.kwargs["x"].is_whole:
            # ``quantize_pixels`` reads the floating-point tensor itself, and writes it quantized in the new layout.
            node = Node(quantize_pixels, (), dict(maker.kwargs), sources=maker.sources)
        else:
            node = Node(reorder, (), {"x": value.whole, "axes": axes})
        reordered = Value(tuple(value.shape[a] for a in axes), value.dtype, node)
        node.result = reordered.whole
        self.new.nodes.append(node)
        return reordered

    def _other_weights(self, w: Tensor) -> Tensor:
        if id(w) not in self._weights:
            self._weights[id(w)] = w.transpose(*self.order).copy()
        return self._weights[id(w)]


def _is_vector(ref: Ref) -> bool:
    return ref.is_flat and sorted(ref.shape)[:2] == [1, 1] and (ref.shape[1:3] == (1, 1) or ref.shape[2:] == (1, 1))
