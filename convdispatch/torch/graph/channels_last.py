"""Channels last in graphs for inference that inductor compiles for a GPU: our convolutions read and write that order.

Inductor orders memory for its own convolutions; of an operator of ours it knows the strides that the graph says. Where
an operand's are another order, the operator itself would copy it, so the graph gets the copy, which inductor fuses with
what computes the operand. A concat of resized images is written channels first, whatever the graph says, and copied: so
their axes are permuted first, and both are computed in the order of memory. What else reads a result keeps its strides.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx

from ..compile import fused_operator, operators
from ..dispatch.routing import settings_in_force
from ..geometry import FORMATS
from ..settings import DEFAULT, math_of, switches

_aten = torch.ops.aten
_OPERANDS: dict[Any, tuple[int, ...]] = {
    fused_operator.fused_convolution: (0, 1, 3),
    operators.convolution: (0, 1),
}
"""The indices of a convolution's input, weight and residual."""
_LAST, _FIRST = (0, 2, 3, 1), (0, 3, 1, 2)
"""Permutations from channels first to channels last, and back."""
MIN_RESIZED_CHANNELS = 16
"""PyTorch writes resized images of fewer channels channels first on CUDA devices."""


def lay_channels_last(graph: fx.GraphModule, device: torch.device) -> None:
    """Have the convolutions of a graph with our operators read and write channels last; changes the graph in place.

    A model that is channels first becomes so where tensor cores compute: in 16-bit types, and TF32 if that is allowed.
    """
    math = math_of(settings_in_force() or DEFAULT, switches(device.type == "cuda"), "float32")
    layout = _Layout(graph.graph, math in ("tf32", "fast"))
    for node in list(graph.graph.nodes):
        if node.target in _OPERANDS:
            layout.convolution(node)
        elif node.target is _aten.upsample_bilinear2d.default:
            layout.resizing(node)
        elif node.target is _aten.cat.default:
            layout.concat(node)
    graph.graph.eliminate_dead_code()
    _lay_weights(graph)
    graph.recompile()


class _Layout:
    """The values of a graph that are there in another order than the graph's own."""

    def __init__(self, graph: fx.Graph, tf32: bool) -> None:
        self._graph = graph
        self._on_tensor_cores = {torch.float16, torch.bfloat16} | ({torch.float32} if tf32 else set())
        self._last: dict[fx.Node, fx.Node] = {}
        """The channels-last value of a node that is channels first."""
        self._permuted: dict[fx.Node, fx.Node] = {}
        """The value of a node with its channels as the last axis."""

    def convolution(self, node: fx.Node) -> None:
        y = node.meta["val"]
        form = FORMATS.get(y.ndim)
        if form is None or not (_is_last(y) or y.dtype in self._on_tensor_cores):
            return
        with self._graph.inserting_before(node):
            for index in _OPERANDS[node.target]:
                operand = self._last_of(node.args[index])
                if operand is not None and not operand.meta["val"].is_contiguous(memory_format=form):
                    operand = self._copy(operand, form)
                node.update_arg(index, operand)
        self._replace(node, node, y)

    def resizing(self, node: fx.Node) -> None:
        x = self._last_of(node.args[0])
        value = x.meta["val"]
        floating = value.is_floating_point() and value.dtype is not torch.float64
        if floating and _is_last(value) and value.shape[1] >= MIN_RESIZED_CHANNELS:
            with self._graph.inserting_before(node):
                self._replace_by_permuted(node, resized, (self._axes_last(x), *node.args[1:]))

    def concat(self, node: fx.Node) -> None:
        """A concat of images along their channels, if the axes of one of them are permuted."""
        axis = node.args[1] if len(node.args) > 1 else node.kwargs.get("dim", 0)
        images: Any = node.args[0]
        parts = [self._last_of(each) for each in images]
        along_channels = axis in (1, 1 - len(_LAST)) and all(part.meta["val"].ndim == len(_LAST) for part in parts)
        if along_channels and any(part in self._permuted for part in parts):
            with self._graph.inserting_before(node):
                permuted = [self._axes_last(part) for part in parts]
                self._replace_by_permuted(node, _aten.cat.default, (permuted, len(_LAST) - 1))

    def _last_of(self, node: Any) -> Any:
        """The channels-last value of an operand, if it has one, else the operand."""
        return self._last.get(node, node)

    def _replace_by_permuted(self, node: fx.Node, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
        result = self._graph.call_function(function, arguments)
        output = self._graph.call_function(_aten.permute.default, (result, _FIRST))
        value = node.meta["val"]
        output.meta = node.meta | {"val": value.contiguous(memory_format=FORMATS[value.ndim])}
        result.meta["val"] = output.meta["val"].permute(_LAST)
        self._permuted[output] = result
        self._replace(node, output, value)

    def _replace(self, node: fx.Node, by: fx.Node, value: torch.Tensor) -> None:
        """Replace the readers' ``node``, of a ``value``, by one that is channels last; they get the strides of
        ``value``."""
        form = FORMATS[value.ndim]
        by.meta["val"] = value.contiguous(memory_format=form)
        if by.meta["val"].stride() == value.stride():
            node.replace_all_uses_with(by)
            return
        with self._graph.inserting_after(by):
            copy = self._copy(by, torch.contiguous_format, value)
        node.replace_all_uses_with(copy, delete_user_cb=lambda user: user is not copy)
        self._last[copy] = by

    def _copy(self, node: fx.Node, form: torch.memory_format, value: torch.Tensor | None = None) -> fx.Node:
        copy = self._graph.call_function(_aten.clone.default, (node,), {"memory_format": form})
        copy.meta["val"] = node.meta["val"].contiguous(memory_format=form) if value is None else value
        return copy

    def _axes_last(self, node: fx.Node) -> fx.Node:
        if node not in self._permuted:
            self._permuted[node] = self._graph.call_function(_aten.permute.default, (node, _LAST))
            self._permuted[node].meta["val"] = node.meta["val"].permute(_LAST)
        return self._permuted[node]


def _lay_weights(graph: fx.GraphModule) -> None:
    """Have the attributes that are only copied, all to the same order of memory, be in that order."""
    reads = Counter(node.target for node in graph.graph.nodes if node.op == "get_attr")
    for node in graph.graph.nodes:
        copies, name = list(node.users), str(node.target)
        if node.op != "get_attr" or reads[name] > 1 or not copies:
            continue
        form = copies[0].kwargs.get("memory_format")
        if any(each.target is not _aten.clone.default or each.kwargs != {"memory_format": form} for each in copies):
            continue
        laid = getattr(graph, name).detach().contiguous(memory_format=form)
        delattr(graph, name)
        graph.register_parameter(name, torch.nn.Parameter(laid, requires_grad=False))
        for each in copies:
            each.replace_all_uses_with(node)
            node.meta["val"] = each.meta["val"]
            graph.graph.erase_node(each)


def resized(x: torch.Tensor, sizes: Sequence[int], align_corners: bool, *scales: float | None) -> torch.Tensor:
    """``aten::upsample_bilinear2d`` of images whose last axis is the channels.

    The steps, and so the roundings, are those of PyTorch's decomposition. Images that keep their size are copied, as
    PyTorch's CUDA kernel does.
    """
    if list(sizes) == list(x.shape[1:3]) and all(scale in (None, 1) for scale in scales):
        return x.clone()
    taps = []
    for axis, (size, scale) in enumerate(zip(sizes, scales or (None, None), strict=True), 1):
        place = torch.arange(size, device=x.device).to(torch.float32)
        if align_corners:
            place = place * ((x.shape[axis] - 1) / (size - 1) if size > 1 else 0)
        else:
            place = (place + 0.5) * (1 / scale if scale is not None and scale > 0 else x.shape[axis] / size) - 0.5
        place = place.clamp(min=0.0).reshape(-1, *[1] * (3 - axis))
        low = place.to(torch.int64)
        taps.append((low, (low + 1).clamp(max=x.shape[axis] - 1), (place - low).clamp(0.0, 1.0)))
    (top, bottom, down), (left, right, across) = taps

    def value(row: torch.Tensor, column: torch.Tensor) -> torch.Tensor:
        return _aten._unsafe_index.Tensor(x, [None, row.squeeze(-1), column.squeeze(-1)]).to(torch.float32)

    corner_values = [(value(row, left), value(row, right)) for row in (top, bottom)]
    first, second = (start + (end - start) * across for start, end in corner_values)
    return (first + (second - first) * down).to(x.dtype)


def _is_last(x: torch.Tensor) -> bool:
    form = FORMATS.get(x.ndim)
    return form is not None and x.is_contiguous(memory_format=form) and not x.is_contiguous()
