"""Convolutions of integers where a device has no fast one: numbers are convolved, and integers lie between layers."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from ...api.device import DeviceInfo
from ...api.errors import ConvDispatchError
from ...api.policy import current_policy
from ...api.problem import ConvProblem
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
    without_residual = replace(problem_of(node), residual=False)
    numbers = replace(without_residual, dtype="float32", out_dtype=None)
    device_rates, elements = rates(device), math.prod(without_residual.x_shape) + math.prod(without_residual.y_shape)
    # Converting to float32 and back to integers costs two launches and the traffic of both tensors.
    around = 2 * device_rates.launch + 8 * elements / device_rates.bandwidth
    times = [
        min(_seconds(replace(each, layout=layout), device) for layout in LAYOUTS)
        for each in (without_residual, numbers)
    ]
    return times[0] > times[1] + around


def _seconds(problem: ConvProblem, device: DeviceInfo) -> float:
    """Return the predicted seconds of the first choice: infinite if there is none, 0 if it has no cost model."""
    try:
        best = choices(problem, device, current_policy()).first
    except ConvDispatchError:
        return math.inf
    return predicted(best.solver, problem, device, best.config) or 0.0


def _to_numbers(graph: Graph, node: Node) -> None:
    """A convolution of integers as one of their numbers, between a dequantization and a quantization."""
    arguments = dict(node.kwargs)
    quantization, w, bias = arguments.pop("quantization"), arguments.pop("w"), arguments.pop("bias", None)
    x, index, result_value = arguments["x"], graph.nodes.index(node), node.result.value
    scale = np.asarray(quantization.w_scale, np.float32).reshape(-1)
    numbers = Value(x.shape, np.dtype(np.float32))
    dequantizing = Node(dequantize, (), {"x": x, "scale": quantization.x_scale, "zero_point": quantization.x_zero_point,
                                   "dtype": "float32"})  # fmt: skip
    give(dequantizing, numbers)
    graph.nodes.insert(index, dequantizing)
    weights = w.numpy().astype(np.float32) * scale.reshape(-1, *[1] * (w.ndim - 1))
    arguments |= {"x": numbers.whole, "w": Tensor.from_numpy(weights, w.queue)}
    if bias is not None:
        factor = np.broadcast_to(np.float64(quantization.x_scale) * scale, bias.shape)
        arguments["bias"] = Tensor.from_numpy((bias * factor).astype(np.float32), w.queue)
    node.function, node.kwargs = convolution, arguments
    result = Value(result_value.shape, np.dtype(np.float32))
    give(node, result)
    if quantization.dtype in ("float32", "float16"):
        following = insert(graph, node, apply, result.whole, expression="x", dtype=result_value.dtype)
        if result_value.dtype == np.float32:
            graph.nodes.remove(following)
            give(node, result_value)
            return
    else:
        form = {"scale": quantization.y_scale or 1.0, "zero_point": quantization.y_zero_point}
        following = insert(graph, node, quantize, result.whole, **form, dtype=quantization.dtype)
    give(following, result_value)
