"""Passes over a quantized net: between a dequantization and the next quantization nothing leaves the integers.

``to_integers`` runs before convolutions take in what follows them. A quantized convolution takes in an activation, the
addition of another tensor of integers and the quantization that follow it; the largest of windows, joined parts and
views are of integers as they are of their numbers. ``merge_integers`` runs last: what is left of dequantizations and
quantizations becomes part of element-wise formulas, which then read and write integers.

Every result is ONNX's, rounding by rounding, but that sums of products are exact and not float32's.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from ...api.errors import ConvDispatchError
from ...elementwise import apply
from ...nn.activations import formula_of
from ...nn.quantized import DEQUANTIZED, dequantize, dequantized_average, quantize, quantized_formula
from ..graph import Graph, Node, Ref, Value

__all__ = ["merge_integers", "to_integers"]

CONVOLUTION, QUANTIZE, DEQUANTIZE = "quantized_convolution", "quantize", "dequantize"
_FUSED = ("relu", "relu6", "clip")
_ACTIVATIONS = ("activate", "relu")


def to_integers(graph: Graph) -> Graph:
    """Apply the rules until none finds anything; the graph is changed in place and returned."""
    if any(node.name in (CONVOLUTION, QUANTIZE, DEQUANTIZE) for node in graph.nodes):
        while any([_one(graph, node) for node in list(graph.nodes) if node in graph.nodes]):
            graph.prune()
    return graph


def _one(graph: Graph, node: Node) -> bool:
    rules = {
        "max_pool": _after_pool, "adaptive_max_pool": _after_pool, "concatenate": _after_join,
        "adaptive_avg_pool": _average, "global_average_pool": _average, QUANTIZE: _requantize,
        "activate": _activate, "relu": _activate,
    }  # fmt: skip
    rule = rules.get(node.name)
    return rule is not None and rule(graph, node)


def _maker(ref: Any, *names: str) -> Node | None:
    """The operation of one of these names whose whole result ``ref`` is, whatever its shape."""
    if not isinstance(ref, Ref) or not ref.is_flat or ref.value.node is None or ref.value.node.name not in names:
        return None
    return ref.value.node


def _alone(graph: Graph, node: Node) -> bool:
    """Whether one operand of the graph reads the operation's result."""
    return graph.uses().get(node.result.value) == 1


def _form(node: Node) -> tuple[float, int, str]:
    """Scale, zero point and dtype of the integers that an operation makes or reads."""
    given = node.kwargs
    dtype = given["dtype"] if node.name == QUANTIZE else given["x"].value.dtype.name
    return float(given["scale"]), int(given["zero_point"]), np.dtype(dtype).name


def _integers(ref: Ref) -> Ref:
    """What a dequantization's result was made of, in the same shape."""
    node = ref.value.node
    assert node is not None
    return replace(node.kwargs["x"], shape=ref.shape)


def _insert(graph: Graph, after: Node, function: Any, x: Ref, **options: Any) -> Node:
    """A new operation after another one; it has no result yet."""
    node = Node(function, (), {"x": x, **options}, sources=after.sources)
    graph.nodes.insert(graph.nodes.index(after) + 1, node)
    return node


def _give(node: Node, value: Value) -> None:
    """Let ``node`` make ``value``."""
    value.node, node.result = node, value.whole


def _now_of_integers(graph: Graph, node: Node, form: tuple[float, int, str]) -> None:
    """What ``node`` made of numbers it makes of integers; a dequantization behind it makes the numbers."""
    numbers = node.result.value
    made = Value(numbers.shape, np.dtype(form[2]))
    after = _insert(graph, node, dequantize, made.whole, scale=form[0], zero_point=form[1], dtype=numbers.dtype.name)
    _give(node, made)
    _give(after, numbers)


def _after_pool(graph: Graph, node: Node) -> bool:
    """The largest number is the largest integer's."""
    maker = _maker(node.kwargs["x"], DEQUANTIZE)
    if maker is None:
        return False
    node.kwargs["x"] = _integers(node.kwargs["x"])
    _now_of_integers(graph, node, _form(maker))
    return True


def _after_join(graph: Graph, node: Node) -> bool:
    """Parts of one scale are joined as they are; others once each has the scale of what is joined."""
    parts = node.kwargs["tensors"]
    makers = [_maker(part, DEQUANTIZE) for part in parts]
    if any(maker is None for maker in makers):
        return False
    forms = {_form(maker) for maker in makers if maker is not None}
    if len(forms) == 1:
        node.kwargs["tensors"] = [_integers(part) for part in parts]
        _now_of_integers(graph, node, forms.pop())
        return True
    reader = next((each for each in graph.nodes if each.name == QUANTIZE and each.kwargs["x"].value is node.result.value), None)
    if reader is None or not _alone(graph, node) or not reader.kwargs["x"].is_whole:
        return False
    found, form = [], _form(reader)
    for part, maker in zip(parts, makers, strict=True):
        assert maker is not None
        if _form(maker) == form:
            found.append(_integers(part))
            continue
        turned = _insert(graph, maker, quantize, part, scale=form[0], zero_point=form[1], dtype=form[2])
        _give(turned, Value(part.shape, np.dtype(form[2])))
        found.append(turned.result)
    node.kwargs["tensors"] = found
    _give(node, reader.result.value)
    graph.nodes.remove(reader)
    return True


def _average(graph: Graph, node: Node) -> bool:
    """A mean over whole pictures reads the integers."""
    x = node.kwargs["x"]
    maker = _maker(x, DEQUANTIZE)
    size = node.kwargs.get("size", 1)
    sizes = {*size} if isinstance(size, list | tuple) else {size}
    if maker is None or sizes != {1} or len(x.shape) != 4 or node.result.value.dtype != np.float32:
        return False
    scale, zero, _ = _form(maker)
    layout = node.kwargs.get("layout", "nchw")
    value = node.result.value
    node.function = dequantized_average
    node.kwargs = {"x": _integers(x), "scale": scale, "zero_point": zero, "layout": layout}
    value.shape = (x.shape[0], x.shape[1], 1, 1) if layout == "nchw" else (x.shape[0], 1, 1, x.shape[3])
    node.result = value.whole
    return True


def _activate(graph: Graph, node: Node) -> bool:
    """Bounds of a convolution whose result is numbers yet."""
    activation = node.kwargs.get("activation", "relu")
    producer = _floating(graph, node.kwargs["x"])
    if producer is None or activation.partition("(")[0] not in _FUSED or producer.kwargs.get("activation") is not None:
        return False
    _take_in(graph, producer, node, activation=activation)
    return True


def _floating(graph: Graph, ref: Any) -> Node | None:
    """The convolution whose numbers ``ref`` is, and nobody else reads."""
    producer = _maker(ref, CONVOLUTION)
    if producer is None or producer.kwargs["quantization"].dtype not in ("float32", "float16"):
        return None
    return producer if _alone(graph, producer) else None


def _take_in(graph: Graph, producer: Node, node: Node, **options: Any) -> None:
    """One convolution, where ``node`` stood, in the place of both."""
    value = node.result.value
    fused = Node(producer.function, (), {**producer.kwargs, **options}, sources=producer.sources + node.sources)
    value.shape = producer.result.value.shape
    _give(fused, value)
    graph.nodes[graph.nodes.index(node)] = fused
    graph.nodes.remove(producer)


def _requantize(graph: Graph, node: Node) -> bool:
    """What a quantization follows: its own inverse, a convolution, or the addition that a convolution takes in."""
    x, form = node.kwargs["x"], _form(node)
    maker = _maker(x, DEQUANTIZE)
    if maker is not None and _form(maker) == form:
        source = maker.kwargs["x"]
        if not source.is_whole:
            return False
        graph.substitute(node.result.value, source.value)
        graph.nodes.remove(node)
        return True
    producer = _floating(graph, x)
    if producer is not None and producer.kwargs.get("residual") is None:
        numbers = {"y_scale": form[0], "y_zero_point": form[1], "dtype": form[2]}
        _take_in(graph, producer, node, quantization=replace(producer.kwargs["quantization"], **numbers))
        return True
    return _take_in_addition(graph, node)


def _take_in_addition(graph: Graph, node: Node) -> bool:
    """``quantize(activation(convolution + integers))``, whether the convolution was rounded before or was not."""
    last = _maker(node.kwargs["x"], *_ACTIVATIONS)
    activation = None if last is None else last.kwargs.get("activation", "relu")
    total = _maker((node if last is None else last).kwargs["x"], "apply", "add")
    if total is None or not _alone(graph, total) or (last is not None and not _alone(graph, last)):
        return False
    if activation is None:
        activation = total.kwargs.get("activation")
    given = {name: each for name, each in total.kwargs.items() if name not in ("expression", "activation")}
    text = str(total.kwargs.get("expression", "+".join(given))).replace(" ", "")
    if len(given) != 2 or set(text.split("+")) != set(given) or (activation or "relu").partition("(")[0] not in _FUSED:
        return False
    sides = list(given.values())
    if not all(isinstance(side, Ref) and side.is_flat and side.shape == total.result.shape for side in sides):
        return False
    form, places = _form(node), {each: place for place, each in enumerate(graph.nodes)}
    sides.sort(key=lambda side: places.get(side.value.node, -1), reverse=True)
    for mine, other in (sides, sides[::-1]):
        added = _maker(other, DEQUANTIZE)
        if added is None or _form(added)[2] != form[2]:
            continue
        found = _summand(graph, mine, form)
        if found is None:
            continue
        producer, numbers = found
        scale, zero, _ = _form(added)
        numbers |= {"y_scale": form[0], "y_zero_point": form[1], "dtype": form[2], "residual_scale": scale}
        quantization = replace(producer.kwargs["quantization"], residual_zero_point=zero, **numbers)
        residual = replace(added.kwargs["x"], shape=producer.result.shape)
        for between in (total, last):
            if between is not None:
                graph.nodes.remove(between)
        _take_in(graph, producer, node, quantization=quantization, residual=residual, activation=activation)
        return True
    return False


def _summand(graph: Graph, ref: Ref, form: tuple[float, int, str]) -> tuple[Node, dict[str, Any]] | None:
    """The convolution behind one side of a sum, and how it was rounded before."""
    producer, numbers = _floating(graph, ref), {}
    rounded = _maker(ref, DEQUANTIZE)
    if producer is None and rounded is not None and _alone(graph, rounded):
        producer = _maker(rounded.kwargs["x"], CONVOLUTION)
        given = None if producer is None else producer.kwargs["quantization"]
        if producer is None or given.dtype != form[2] or given.y_scale is None or not _alone(graph, producer):
            return None
        numbers = {"sum_scale": given.y_scale, "sum_zero_point": given.y_zero_point}
    if producer is None or any(producer.kwargs.get(name) is not None for name in ("residual", "activation")):
        return None
    return producer, numbers


# --- what is left ----------------------------------------------------------------------------------------------------


def merge_integers(graph: Graph) -> Graph:
    """Put dequantizations before and quantizations behind element-wise formulas into them."""
    for node in list(graph.nodes):
        found = _formula(node) if node.name != QUANTIZE else None
        if found is not None:
            _read_integers(node, *found)
    for node in list(graph.nodes):
        if node.name != QUANTIZE:
            continue
        x = node.kwargs["x"]
        producer = _maker(x, "apply", DEQUANTIZE, *_ACTIVATIONS, "add")
        found = None if producer is None or not (x.is_whole or producer.name == DEQUANTIZE) else _formula(producer)
        if producer is None or found is None or (producer.name != DEQUANTIZE and not _alone(graph, producer)):
            continue
        text, given = found
        if producer.name == DEQUANTIZE:
            given = {"x": replace(given["x"], shape=x.shape)}
        *before, last = text.split(";")
        form = _form(node)
        text = "; ".join([*before, f"number_ = {last.strip()}", quantized_formula("number_", *form)])
        node.function, node.kwargs = apply, {"expression": text, "dtype": np.dtype(form[2]), **given}
        node.sources = producer.sources + node.sources
        graph.prune()
    graph.prune()
    return graph


def _formula(node: Node) -> tuple[str, dict[str, Any]] | None:
    """An element-wise operation that makes numbers: its text and operands."""
    given = node.kwargs
    if node.args or not isinstance(node.result, Ref) or node.result.value.dtype != np.float32:
        return None
    if node.name == DEQUANTIZE:
        return DEQUANTIZED.format("x", given["scale"], given["zero_point"]), {"x": given["x"]}
    if node.name in _ACTIVATIONS:
        return formula_of(given.get("activation", "relu")), {"x": given["x"]}
    if node.name == "add" and given.get("activation") in (None, "relu"):
        text = "x + y" if given.get("activation") is None else "s_ = x + y; where(s_ < 0, 0, s_)"
        return text, {"x": given["x"], "y": given["y"]}
    if node.name == "apply" and isinstance(given.get("expression"), str) and given.get("out") is None:
        text = given["expression"]
        if "=" not in text.split(";")[-1].replace("==", "").replace("<=", "").replace(">=", "").replace("!=", ""):
            return text, {name: each for name, each in given.items() if name not in ("expression", "out", "dtype")}
    return None


def _read_integers(node: Node, text: str, given: dict[str, Any]) -> None:
    """Read integers where a formula reads numbers that were made of them."""
    if node.name == DEQUANTIZE:
        return
    before, operands = [], {}
    for name, operand in given.items():
        maker = _maker(operand, DEQUANTIZE)
        if maker is None:
            operands[name] = operand
            continue
        before.append(f"{name} = {DEQUANTIZED.format(f'{name}_i', maker.kwargs['scale'], maker.kwargs['zero_point'])}")
        operands[f"{name}_i"] = _integers(operand)
    if before:
        node.function = apply
        node.kwargs = {"expression": "; ".join([*before, text]), "dtype": np.dtype(np.float32), **operands}
