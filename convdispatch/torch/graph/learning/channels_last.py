"""One layout for a whole training graph on a GPU: channels last, in which tensor cores read 16-bit types and TF32.

The conversion stands in Dynamo's graph, so PyTorch derives strides and gradients of everything between as it does for
a user who calls ``model.to(memory_format=torch.channels_last)``. Results keep the strides that the model's own would
have.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from ...geometry import FORMATS
from ...settings import switches

_CONVOLUTIONS = {torch.conv2d, torch.conv3d, torch.nn.functional.conv2d, torch.nn.functional.conv3d}


def pays(device: str) -> bool:
    """Whether convolutions on devices of this type run in TF32 or in a 16-bit type now."""
    return switches(device == "cuda")[0] or torch.is_autocast_enabled(device)


def lay_channels_last(graph: fx.GraphModule) -> None:
    """Make every 2-D and 3-D convolution of a graph of Dynamo's read its input and weight channels last."""
    convolutions = [node for node in graph.graph.nodes if node.target in _CONVOLUTIONS and len(node.args) >= 2]
    for node in convolutions:
        rank = _rank(node.args[1])
        if rank not in FORMATS:
            continue
        with graph.graph.inserting_before(node):
            laid = [_laid(graph.graph, each, FORMATS[rank]) for each in node.args[:2]]
        node.args = (*laid, *node.args[2:])
    if not convolutions:
        return
    output = graph.graph.output_node()
    with graph.graph.inserting_before(output):
        output.args = (fx.map_arg(output.args[0], lambda each: _as_it_was(graph.graph, each)),)
    graph.recompile()


def _rank(node: Any) -> int:
    value = node.meta.get("example_value") if isinstance(node, fx.Node) else None
    return value.ndim if isinstance(value, torch.Tensor) else 0


def _laid(graph: fx.Graph, node: fx.Node, form: torch.memory_format) -> fx.Node:
    return graph.call_method("contiguous", (node,), {"memory_format": form})


def _as_it_was(graph: fx.Graph, node: fx.Node) -> fx.Node:
    value = node.meta.get("example_value")
    if node.op == "placeholder" or not isinstance(value, torch.Tensor) or value.ndim not in FORMATS:
        return node
    return graph.call_method("contiguous", (node,)) if value.is_contiguous() else node
