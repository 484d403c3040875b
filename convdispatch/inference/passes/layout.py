"""Rewrites a graph for the other layout: pictures lie the other way, and are reordered only where they must.

Reorders are needed at the net's input and output, where pictures are flattened to vectors, and around operations that
do not say how they treat axes. The graph may then be timed in both layouts, reorders included.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ...device.tracing import operation
from ...elementwise import apply
from ...elementwise.interleaving import interleaved
from ...elementwise.tensor import Tensor
from ...nn.quantized import quantize_pixels
from ..graph import Graph, Node, Ref, Value, is_planned, map_operands, operands
from .views import in_layout, of_original, permuted, strides_of, view

LAYOUTS = ("nchw", "nhwc")
_ORDER = {"nhwc": (0, 2, 3, 1), "nchw": (0, 3, 1, 2)}
"""The order of axes that transposes a tensor from the other layout into this one."""
_AWARE = frozenset({
    "convolution", "transposed_convolution", "max_pool", "avg_pool", "adaptive_avg_pool",
    "global_average_pool", "batch_norm", "local_response_norm", "quantized_convolution", "dequantized_average",
    "table_norm",
})  # fmt: skip
"""The operations that have an option ``layout``."""
_POINTWISE = frozenset({"apply", "activate", "quantize", "dequantize"})
_OVER_AXES = frozenset({"reduce", "mean", "standardize"})
"""The operations that have an option ``axes``, over which they compute."""


@operation
def reorder(x: Tensor, axes: tuple[int, ...]) -> Tensor:
    """The axes of x in another order, copied."""
    interleaved_x = interleaved(x) if tuple(axes) == _ORDER["nhwc"] else None
    return apply("x", x=x.transpose(*axes)) if interleaved_x is None else interleaved_x


def relayout(graph: Graph, layout: str) -> Graph:
    """Return a new graph of the same net that computes in ``layout``; inputs and outputs keep their layout."""
    return _Relayout(graph, layout).run()


def _can_turn(node: Node) -> bool:
    """Return whether the operation computes the same result on tensors of the other layout."""
    pictures = _pictures(node)
    if not pictures or not isinstance(node.result, Ref):
        return False
    if node.name in _POINTWISE:
        tensors = list(operands((node.args, node.kwargs)))
        few_axes = node.name != "apply" and any(len(each.shape) < 4 for each in tensors)
        return len(node.result.shape) == 4 and not few_axes and all(len(each.shape) <= 4 for each in tensors)
    if node.name in _OVER_AXES:
        return _can_turn_axes(node)
    if node.name in ("sampled", "concatenate"):
        return all(ref.is_whole for ref in pictures)
    return node.name in _AWARE


def _can_turn_axes(node: Node) -> bool:
    """Whether a reduction's operands all have four axes, and those that its result keeps are in the same order in both
    layouts: at most one beside the images, unless reduced axes stay with length 1."""
    axes = node.kwargs.get("axes")
    tensors = list(operands((node.args, node.kwargs)))
    if node.args or axes is None or any(len(each.shape) != 4 for each in tensors):
        return False
    reduced = {axis % 4 for axis in _tuple(axes)}
    kept = [size for axis, size in enumerate(tensors[0].shape) if axis and axis not in reduced and size > 1]
    return len(node.result.shape) == 4 or len(kept) <= 1


def _tuple(axes: Any) -> tuple[int, ...]:
    return (axes,) if isinstance(axes, int) else tuple(axes)


def _pictures(node: Node) -> list[Ref]:
    return [ref for ref in node.refs if len(ref.shape) == 4]


class _Relayout:
    def __init__(self, graph: Graph, layout: str) -> None:
        self.old, self.layout = graph, layout
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
            of_turned = self._broadcast_operand if node.name == "apply" else self._other_operand
            change = of_turned if turns else self._plain_operand
            arguments = dict(node.kwargs)
            # Weights are transposed when the plan packs them, because they may not be computed yet.
            weights = {"w": arguments.pop("w").transpose(*self.order)} if turns and is_planned(node) else {}
            args, kwargs = map_operands(change, node.args), map_operands(change, arguments) | weights
            if turns and node.name in _AWARE:
                kwargs["layout"] = self.layout
            if turns and (node.name == "sampled" or node.name in _OVER_AXES):
                kwargs["axes"] = tuple(self.order.index(axis % 4) for axis in _tuple(kwargs["axes"]))
            if turns and node.name == "concatenate":
                kwargs["axis"] = self.order.index(kwargs.get("axis", 1) % 4)
            self._add(node, Node(node.function, args, kwargs, sources=node.sources), turns)
        self.new.output = map_operands(self._plain_operand, self.old.output)
        self.new.prune()
        return self.new

    def _turns(self, node: Node) -> bool:
        """Whether the operation is computed on pictures that lie the other way."""
        if not _can_turn(node):
            return False
        if node.name in _AWARE:
            return node.kwargs.get("layout", "nchw") != self.layout
        # An operation that works in either layout changes only if an operand lies in the other one already.
        return any(map(self._is_turned, _pictures(node)))

    def _is_turned(self, ref: Ref) -> bool:
        """Whether a picture is contiguous in the other layout, and not in its own."""
        views = self._views(ref)
        is_plain = any(each.strides is None for each in views)
        return not is_plain and any(permuted(each, self.order).strides is None for each in views)

    def _views(self, ref: Ref) -> list[Ref]:
        """The views of the new graph that hold the elements of an old graph's view, in its order of axes: first of what
        a copy was made from, which then may be needless."""
        views, maker = list[Ref | None](), ref.value.node
        if maker is not None and maker.name == "contiguous" and isinstance(maker.kwargs["x"], Ref):
            original = of_original(ref, maker.kwargs["x"])
            views += [] if original is None else self._views(original)
        if ref.value in self._plain:
            views.append(replace(ref, value=self._plain[ref.value]))
        if ref.value in self._other:
            views.append(in_layout(ref, self._other[ref.value], self.layout))
        return [each for each in views if each is not None]

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
        views = (permuted(each, self.order) for each in self._views(operand))
        contiguous = next((each for each in views if each.strides is None), None)
        if contiguous is not None:
            return contiguous
        if not operand.is_whole:
            return permuted(self._plain_operand(operand), self.order)
        self._other[operand.value] = self._reordered(self._plain[operand.value], self.order)
        return self._other[operand.value].whole

    def _broadcast_operand(self, operand: Any) -> Any:
        """An operand of a formula, with four axes: numbers along the last axes broadcast along others when turned."""
        missing = 4 - len(operand.shape)
        if isinstance(operand, Tensor):
            return self._other_weights(operand, missing)
        if not missing:
            return self._other_operand(operand)
        plain = self._plain_operand(operand)
        wide = view(plain.value, (1,) * missing + plain.shape, (0,) * missing + strides_of(plain), plain.offset)
        return permuted(wide, self.order)

    def _plain_operand(self, operand: Any) -> Any:
        if isinstance(operand, Tensor):
            return operand
        views = self._views(operand)
        contiguous = [each for each in views if each.strides is None]
        if contiguous or (views and operand.strides is not None):
            return (contiguous or views)[0]
        value = operand.value
        self._plain[value] = self._reordered(self._other[value], self.back)
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

    def _other_weights(self, w: Tensor, missing: int = 0) -> Tensor:
        """A constant tensor in the other layout, with ``missing`` axes of length 1 before its own."""
        if id(w) not in self._weights:
            self._weights[id(w)] = w[(None,) * missing + (...,)].transpose(*self.order).copy()
        return self._weights[id(w)]
