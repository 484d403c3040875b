"""Channels last in graphs for inference that inductor compiles for a GPU: what a convolution of ours reads is written
in that order.

Inductor orders memory for its own convolutions; of an operator of ours it knows the strides that the graph says. Where
the input's are another order, the operator itself would copy it, so the graph gets the copy, which inductor fuses with
what computes the input. A concat of resized images is written channels first, whatever the graph says, and copied: so
their axes are permuted first, and both are computed in the order of memory.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import fx

from ..compile import fused_operator, operators
from ..geometry import FORMATS

_aten = torch.ops.aten
_CONVOLUTIONS = (fused_operator.fused_convolution, operators.convolution)
_LAST, _FIRST = (0, 2, 3, 1), (0, 3, 1, 2)
"""Permutations from channels first to channels last, and back."""
MIN_RESIZED_CHANNELS = 16
"""PyTorch writes resized images of fewer channels channels first on CUDA devices."""


def write_channels_last(graph: fx.GraphModule) -> None:
    """Have a graph with our operators compute in channels last what they read; changes the graph in place."""
    permuted: dict[fx.Node, fx.Node] = {}
    for node in list(graph.graph.nodes):
        with graph.graph.inserting_before(node):
            if node.target is _aten.upsample_bilinear2d.default and _resizes_channels_last(node):
                arguments = (_permuted(graph.graph, node.args[0], permuted), *node.args[1:])
                result = graph.graph.call_function(resized, arguments)
            elif node.target is _aten.cat.default and _concatenates_channels(node, permuted):
                parts = [_permuted(graph.graph, each, permuted) for each in node.args[0]]
                result = graph.graph.call_function(_aten.cat.default, (parts, len(_LAST) - 1))
            else:
                if node.target in _CONVOLUTIONS:
                    _copy_operands(graph.graph, node)
                continue
            output = graph.graph.call_function(_aten.permute.default, (result, _FIRST))
        output.meta = dict(node.meta)
        result.meta["val"] = node.meta["val"].permute(_LAST)
        permuted[output] = result
        node.replace_all_uses_with(output)
    graph.graph.eliminate_dead_code()
    graph.recompile()


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


def _resizes_channels_last(node: fx.Node) -> bool:
    x = node.args[0].meta["val"]
    return x.is_floating_point() and x.dtype is not torch.float64 and _is_last(x) and x.shape[1] >= MIN_RESIZED_CHANNELS


def _concatenates_channels(node: fx.Node, permuted: dict[fx.Node, fx.Node]) -> bool:
    """Whether a concat of images along their channels has one whose axes are permuted."""
    axis = node.args[1] if len(node.args) > 1 else node.kwargs.get("dim", 0)
    value = node.meta["val"]
    images = all(each.meta["val"].ndim == value.ndim for each in node.args[0])
    return (
        value.ndim == len(_LAST)
        and _is_last(value)
        and axis in (1, -3)
        and images
        and any(each in permuted for each in node.args[0])
    )


def _is_last(x: torch.Tensor) -> bool:
    form = FORMATS.get(x.ndim)
    return form is not None and x.is_contiguous(memory_format=form) and not x.is_contiguous()


def _permuted(graph: fx.Graph, node: fx.Node, permuted: dict[fx.Node, fx.Node]) -> fx.Node:
    if node not in permuted:
        permuted[node] = graph.call_function(_aten.permute.default, (node, _LAST))
        permuted[node].meta["val"] = node.meta["val"].permute(_LAST)
    return permuted[node]


def _copy_operands(graph: fx.Graph, node: fx.Node) -> None:
    """Insert the copies of a convolution's input and residual that the operator would make: where its result is
    channels last, it reads both so."""
    form = FORMATS.get(node.meta["val"].ndim)
    if not _is_last(node.meta["val"]):
        return
    for index in (0, 3) if node.target is fused_operator.fused_convolution else (0,):
        operand = node.args[index]
        if operand is not None and not operand.meta["val"].is_contiguous(memory_format=form):
            copy = graph.call_function(_aten.clone.default, (operand,), {"memory_format": form})
            copy.meta["val"] = operand.meta["val"].contiguous(memory_format=form)
            node.update_arg(index, copy)
