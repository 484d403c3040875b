"""Passes over a quantized net: between a dequantization and the next quantization nothing leaves the integers.

A quantized convolution takes in an activation, the addition of another tensor of integers and the quantization that
follow it; the largest of windows, joined parts and views are of integers as they are of their numbers. This runs before
other convolutions take in what follows them; what is left becomes part of formulas at last (``integer_formulas``).

Every result is ONNX's, rounding by rounding, but that sums of products are exact and not float32's.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from ...nn.quantized import dequantized_average, quantize
from ..graph import Graph, Node, Ref, Value
from .integer_convolutions import slow_to_numbers
from .integer_nodes import (
    CONVOLUTION,
    DEQUANTIZE,
    QUANTIZE,
    alone,
    form_of,
    give,
    insert,
    integers_of,
    maker_of,
    now_of_integers,
)
from .integer_norms import norms_by_tables

_FUSED = ("relu", "relu6", "clip")


def to_integers(graph: Graph) -> Graph:
    """Apply the rules until none finds anything; the graph is changed in place and returned."""
    if any(node.name in (CONVOLUTION, QUANTIZE, DEQUANTIZE) for node in graph.nodes):
        slow_to_numbers(graph)
        while sum(_one(graph, node) for node in list(graph.nodes) if node in graph.nodes):
            graph.prune()
        norms_by_tables(graph)
    return graph


def _one(graph: Graph, node: Node) -> bool:
    rules = {
        "max_pool": _after_pool, "concatenate": _after_join,
        "adaptive_avg_pool": _average, "global_average_pool": _average, QUANTIZE: _requantize,
        "activate": _activate,
    }  # fmt: skip
    rule = rules.get(node.name)
    return rule is not None and rule(graph, node)


def _after_pool(graph: Graph, node: Node) -> bool:
    """The largest number is the largest integer's."""
    maker = maker_of(node.kwargs["x"], DEQUANTIZE)
    if maker is None:
        return False
    node.kwargs["x"] = integers_of(node.kwargs["x"])
    now_of_integers(graph, node, form_of(maker))
    return True


def _after_join(graph: Graph, node: Node) -> bool:
    """Parts of one scale are joined as they are; others once each has the scale of what is joined."""
    parts = node.kwargs["tensors"]
    makers = [maker_of(part, DEQUANTIZE) for part in parts]
    if any(maker is None for maker in makers):
        return False
    forms = {form_of(maker) for maker in makers if maker is not None}
    if len(forms) == 1:
        node.kwargs["tensors"] = [integers_of(part) for part in parts]
        now_of_integers(graph, node, forms.pop())
        return True
    reader = next(
        (each for each in graph.nodes if each.name == QUANTIZE and each.kwargs["x"].value is node.result.value), None
    )
    if reader is None or not alone(graph, node) or not reader.kwargs["x"].is_whole:
        return False
    integers, form = [], form_of(reader)
    for part, maker in zip(parts, makers, strict=True):
        assert maker is not None
        if form_of(maker) == form:
            integers.append(integers_of(part))
            continue
        turned = insert(graph, maker, quantize, part, scale=form[0], zero_point=form[1], dtype=form[2])
        give(turned, Value(part.shape, np.dtype(form[2])))
        integers.append(turned.result)
    node.kwargs["tensors"] = integers
    give(node, reader.result.value)
    graph.nodes.remove(reader)
    return True


def _average(graph: Graph, node: Node) -> bool:
    """A mean over whole pictures reads the integers."""
    x = node.kwargs["x"]
    maker = maker_of(x, DEQUANTIZE)
    size = node.kwargs.get("size", 1)
    sizes = {*size} if isinstance(size, list | tuple) else {size}
    if maker is None or sizes != {1} or len(x.shape) != 4 or node.result.value.dtype != np.float32:
        return False
    scale, zero, _ = form_of(maker)
    layout = node.kwargs.get("layout", "nchw")
    value = node.result.value
    node.function = dequantized_average
    node.kwargs = {"x": integers_of(x), "scale": scale, "zero_point": zero, "layout": layout}
    value.shape = (x.shape[0], x.shape[1], 1, 1) if layout == "nchw" else (x.shape[0], 1, 1, x.shape[3])
    node.result = value.whole
    return True


def _activate(graph: Graph, node: Node) -> bool:
    """Bounds of a convolution whose result is numbers yet."""
    activation = node.kwargs["activation"]
    producer = _floating(graph, node.kwargs["x"])
    if producer is None or activation.partition("(")[0] not in _FUSED or producer.kwargs.get("activation") is not None:
        return False
    graph.take_in(producer, node, activation=activation)
    return True


def _floating(graph: Graph, ref: Any) -> Node | None:
    """The convolution whose numbers ``ref`` is, and nobody else reads."""
    producer = maker_of(ref, CONVOLUTION)
    if producer is None or producer.kwargs["quantization"].dtype not in ("float32", "float16"):
        return None
    return producer if alone(graph, producer) else None


def _requantize(graph: Graph, node: Node) -> bool:
    """What a quantization follows: its own inverse, a convolution, or the addition that a convolution takes in."""
    x, form = node.kwargs["x"], form_of(node)
    maker = maker_of(x, DEQUANTIZE)
    if maker is not None and form_of(maker) == form:
        source = maker.kwargs["x"]
        if not source.is_whole:
            return False
        graph.substitute(node.result.value, source.value)
        graph.nodes.remove(node)
        return True
    producer = _floating(graph, x)
    if producer is not None and producer.kwargs.get("residual") is None:
        numbers = {"y_scale": form[0], "y_zero_point": form[1], "dtype": form[2]}
        graph.take_in(producer, node, quantization=replace(producer.kwargs["quantization"], **numbers))
        return True
    return _before_pool(graph, node) or _take_in_addition(graph, node)


def _before_pool(graph: Graph, node: Node) -> bool:
    """The largest number's integer is the largest integer: what is pooled is rounded first."""
    pool = maker_of(node.kwargs["x"], "max_pool")
    if pool is None or not alone(graph, pool) or not node.kwargs["x"].is_whole:
        return False
    scale, zero, dtype = form_of(node)
    x = pool.kwargs["x"]
    quantizing = Node(quantize, (), {"x": x, "scale": scale, "zero_point": zero, "dtype": dtype}, sources=node.sources)
    graph.nodes.insert(graph.nodes.index(pool), quantizing)
    give(quantizing, Value(x.shape, np.dtype(dtype)))
    pool.kwargs["x"] = quantizing.result
    give(pool, node.result.value)
    graph.nodes.remove(node)
    return True


def _take_in_addition(graph: Graph, node: Node) -> bool:
    """``quantize(activation(convolution + integers))``, whether the convolution was rounded before or was not."""
    activating = maker_of(node.kwargs["x"], "activate")
    activation = None if activating is None else activating.kwargs["activation"]
    total = maker_of((node if activating is None else activating).kwargs["x"], "apply")
    if total is None or not alone(graph, total) or (activating is not None and not alone(graph, activating)):
        return False
    sides, form = graph.summands(total), form_of(node)
    if not sides or (activation or "relu").partition("(")[0] not in _FUSED:
        return False
    for own_side, residual_side in (sides, sides[::-1]):
        added = maker_of(residual_side, DEQUANTIZE)
        if added is None or form_of(added)[2] != form[2]:
            continue
        summand = _summand(graph, own_side, form)
        if summand is None:
            continue
        producer, numbers = summand
        scale, zero, _ = form_of(added)
        numbers |= {"y_scale": form[0], "y_zero_point": form[1], "dtype": form[2], "residual_scale": scale}
        quantization = replace(producer.kwargs["quantization"], residual_zero_point=zero, **numbers)
        residual = replace(added.kwargs["x"], shape=producer.result.shape)
        for between in (total, activating):
            if between is not None:
                graph.nodes.remove(between)
        graph.take_in(producer, node, quantization=quantization, residual=residual, activation=activation)
        return True
    return False


def _summand(graph: Graph, ref: Ref, form: tuple[float, int, str]) -> tuple[Node, dict[str, Any]] | None:
    """The convolution behind one side of a sum, and how it was rounded before."""
    producer, numbers = _floating(graph, ref), {}
    rounded = maker_of(ref, DEQUANTIZE)
    if producer is None and rounded is not None and alone(graph, rounded):
        producer = maker_of(rounded.kwargs["x"], CONVOLUTION)
        quantization = None if producer is None else producer.kwargs["quantization"]
        if (
            producer is None
            or quantization.dtype != form[2]
            or quantization.y_scale is None
            or not alone(graph, producer)
        ):
            return None
        numbers = {"sum_scale": quantization.y_scale, "sum_zero_point": quantization.y_zero_point}
    if producer is None or any(producer.kwargs.get(name) is not None for name in ("residual", "activation")):
        return None
    return producer, numbers
