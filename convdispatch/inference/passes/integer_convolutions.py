"""Convolutions of integers where a device has no fast one: numbers are convolved, and integers lie between layers."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from ...api.errors import ConvDispatchError
from ...api.policy import current_policy
from ...device.rates import rates
from ...device.runtime import device_info
from ...elementwise import apply
from ...elementwise.tensor import Tensor
from ...nn.convolution import convolution
from ...nn.quantized import dequantize, quantize
from ...selection.decision_store import choices
from ...selection.solver_query import predicted
from ..graph import Graph, Node, Value, is_planned
from ..lower import problem_of
from .integer_nodes import CONVOLUTION, give, insert
from .layout import LAYOUTS

if TYPE_CHECKING:
    from ...api.device import DeviceInfo
    from ...api.problem import ConvProblem


def slow_to_numbers(graph: Graph) -> None:
    """Convolutions of integers that are predicted to take longer than those of their numbers become these."""
    for node in [node for node in graph.nodes if is_planned(node) and node.name == CONVOLUTION]:
        if _is_slower(node):
            _to_numbers(graph, node)


def _is_slower(node: Node) -> bool:
    """Whether the same convolution of numbers is predicted to take less time on the weights' device."""
    if node.kwargs["quantization"].dtype == "int32" or node.kwargs.get("residual") is not None:
        return False
    device = device_info(node.kwargs["w"].queue.device)
    whole = replace(problem_of(node), residual=False)
    numbers = replace(whole, dtype="float32", out_dtype=None)
    known, elements = rates(device), math.prod(whole.x_shape) + math.prod(whole.y_shape)
    # Converting to float32 and back to integers costs two launches and the traffic of both tensors.
    around = 2 * known.launch + 8 * elements / known.bandwidth
    times = [min(_seconds(replace(each, layout=layout), device) for layout in LAYOUTS) for each in (whole, numbers)]
    return times[0] > times[1] + around


def _seconds(problem: ConvProblem, device: DeviceInfo) -> float:
    """Return the predicted seconds of the first choice: infinite if there is none, 0 if it has no cost model."""
    try:
        first = choices(problem, device, current_policy()).first
    except ConvDispatchError:
        return math.inf
    return predicted(first.solver, problem, device, first.config) or 0.0


def _to_numbers(graph: Graph, node: Node) -> None:
    """A convolution of integers as one of their numbers, between a dequantization and a quantization."""
    given = dict(node.kwargs)
    quantization, w, bias = given.pop("quantization"), given.pop("w"), given.pop("bias", None)
    x, place, made = given["x"], graph.nodes.index(node), node.result.value
    scale = np.asarray(quantization.w_scale, np.float32).reshape(-1)
    numbers = Value(x.shape, np.dtype(np.float32))
    before = Node(dequantize, (), {"x": x, "scale": quantization.x_scale, "zero_point": quantization.x_zero_point,
                                   "dtype": "float32"})  # fmt: skip
    give(before, numbers)
    graph.nodes.insert(place, before)
    weights = w.numpy().astype(np.float32) * scale.reshape(-1, *[1] * (w.ndim - 1))
    given |= {"x": numbers.whole, "w": Tensor.from_numpy(weights, w.queue)}
    if bias is not None:
        factor = np.broadcast_to(np.float64(quantization.x_scale) * scale, bias.shape)
        given["bias"] = Tensor.from_numpy((bias * factor).astype(np.float32), w.queue)
    node.function, node.kwargs = convolution, given
    result = Value(made.shape, np.dtype(np.float32))
    give(node, result)
    if quantization.dtype in ("float32", "float16"):
        after = insert(graph, node, apply, result.whole, expression="x", dtype=made.dtype)
        if made.dtype == np.float32:
            graph.nodes.remove(after)
            give(node, made)
            return
    else:
        form = {"scale": quantization.y_scale or 1.0, "zero_point": quantization.y_zero_point}
        after = insert(graph, node, quantize, result.whole, **form, dtype=quantization.dtype)
    give(after, made)
