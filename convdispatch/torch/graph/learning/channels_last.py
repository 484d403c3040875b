"""One layout for a whole training graph on a GPU: channels last, in which tensor cores read 16-bit types and TF32.

The conversion stands in Dynamo's graph, so PyTorch derives strides and gradients of everything between as it does for
a user who calls ``model.to(memory_format=torch.channels_last)``. Results keep the strides that the model's own would
have.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import fx

from ...geometry import FORMATS
from ...settings import switches

_RESHAPES = {"view": "reshape", "view_as": "reshape_as"}
"""Methods that refuse strides from which no view can be made, and those that copy then."""
_BY_STRIDES = {"as_strided", "as_strided_", "resize_", "set_"}
"""Functions whose result depends on the strides of the operand's memory."""
_ALIASES = (
    "view view_as reshape reshape_as permute transpose movedim swapaxes flatten unflatten squeeze unsqueeze expand "
    "expand_as narrow select chunk split unbind getitem detach contiguous to type diagonal unfold t"
)
"""Functions whose result may be memory of their first operand."""
_AUGMENTED = {
    getattr(operator, name)
    for name in operator.__all__
    if name[0] == "i" and (name[1:] in operator.__all__ or name[1:] + "_" in operator.__all__)
}
"""Python's functions of augmented assignments, which write tensors in place."""
_CONVOLUTIONS = {torch.conv2d, torch.conv3d}


def pays(device: str) -> bool:
    """Whether convolutions on devices of this type run in TF32 or in a 16-bit type now."""
    return switches(device == "cuda")[0] or torch.is_autocast_enabled(device)


def lay_channels_last(graph: fx.GraphModule) -> None:
    """Make every 2-D and 3-D convolution of a graph of Dynamo's read its input and weight channels last."""
    convolutions = [node for node in graph.graph.nodes if node.target in _CONVOLUTIONS and len(node.args) >= 2]
    if not convolutions or not _replace_views(graph.graph):
        return
    for node in convolutions:
        rank = _rank(node.args[1])
        if rank not in FORMATS:
            continue
        with graph.graph.inserting_before(node):
            laid = [_laid(graph.graph, each, FORMATS[rank]) for each in node.args[:2]]
        node.args = (*laid, *node.args[2:])
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


def _replace_views(graph: fx.Graph) -> bool:
    """Replace ``view``, which refuses the strides that values get, by ``reshape``, which then copies.

    Returns False, with nothing changed, where the copy would be told from a view, because the graph writes what both
    share in place, and where the graph reads memory by strides.
    """
    views, written = [], {}
    for index, node in enumerate(graph.nodes):
        if _name(node) in _BY_STRIDES:
            return False
        if node.op == "call_method" and node.target in _RESHAPES and not isinstance(node.args[1], torch.dtype):
            views.append((index, node))
        if _writes(node):
            written[node.args[0]] = index
    for index, view in views:
        shared = _memory_of(view.args[0])
        if any(written.get(each, -1) > index for each in shared):
            return False
    if {view for _, view in views} & {each for node in written for each in _memory_of(node)}:
        return False
    for _, view in views:
        view.target = _RESHAPES[view.target]
    return True


def _name(node: fx.Node) -> str:
    return str(getattr(node.target, "__name__", node.target)) if node.op.startswith("call_") else ""


def _writes(node: fx.Node) -> bool:
    """Whether a function writes its first operand: its name says so, or an argument of an activation does."""
    name = _name(node)
    if hasattr(operator, name):
        return node.target is operator.setitem or node.target in _AUGMENTED
    in_place = node.kwargs.get("inplace") is True or (name == "relu" and node.args[1:] == (True,))
    return in_place or (name.endswith("_") and not name.endswith("__"))


def _memory_of(node: Any) -> list[fx.Node]:
    """A node and those before it whose memory it may share."""
    nodes = []
    while isinstance(node, fx.Node):
        nodes.append(node)
        if not node.args or not (_name(node) in _ALIASES.split() or _writes(node)):
            break
        node = node.args[0]
    return nodes
