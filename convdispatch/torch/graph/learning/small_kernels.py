"""Kernels of few numbers in a training step's graphs, joined to a few launches.

Inductor fuses kernels that read the same tensors. Casts of weights and of their gradients, tables and gradients of
batch norms, and the counters of batches each read tensors of their own, so a step of a net with 53 convolutions would
launch more than 200 kernels that take less time than their launch. Of an operator ``_foreach_*`` inductor makes one.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable
from typing import Any

import torch
from torch import fx

from ...compile import fused_operator, normed_operators, operators

_aten, _prims = torch.ops.aten, torch.ops.prims
_CAST = _prims.convert_element_type.default
_VIEWS = {operator.getitem, _aten.select.int, _aten.view.default, _aten.unsqueeze.default, _aten.expand.default,
          _aten.reshape.default, _aten.permute.default, _aten.squeeze.dims}  # fmt: skip
_MOST = 1 << 22
"""The numbers of the largest result that is joined: larger ones gain little, and all together would take memory."""
_PARAMETERS = {
    operators.convolution: (1, 2),
    operators.convolution_backward: (2,),
    fused_operator.fused_convolution: (1, 2),
    normed_operators.normed_convolution: (1, 2, 3),
    normed_operators.normed_convolution_backward: (2, 3),
    _aten.addmm.default: (0, 2),
    _aten.mm.default: (1,),
}
"""The arguments of convolutions that are weights, biases and norms' tables; those of linear layers are the matrices and
vectors that are cast as the graph gets them."""


def join_counters(graph: fx.GraphModule) -> None:
    """In Dynamo's graph, advance the counters of batches that norms have all at once."""
    nodes = [node for node in graph.graph.find_nodes(op="call_method", target="add_") if _counts(node)]
    if len(nodes) > 1:
        with graph.graph.inserting_before(nodes[-1]):
            graph.graph.call_function(torch._foreach_add_, ([node.args[0] for node in nodes], 1))
        for node in nodes:
            graph.graph.erase_node(node)
        graph.recompile()


def _counts(node: fx.Node) -> bool:
    """Whether a node adds 1 to an integer that nothing else reads."""
    counter, *numbers = node.args
    value = counter.meta.get("example_value") if isinstance(counter, fx.Node) else None
    if numbers != [1] or node.kwargs or node.users or not isinstance(value, torch.Tensor):
        return False
    return counter.op == "placeholder" and len(counter.users) == 1 and not value.ndim


def join_small_kernels(graph: fx.Graph) -> None:
    """In a graph of AOTAutograd's, compute what products read beside pictures at the start, all at once, where it
    depends on the graph's inputs alone; and casts and single channels' numbers among the results at the end."""
    _join_parameters(graph)
    output = graph.output_node()
    results = [each for each in output.all_input_nodes if _is_late(each)]
    if len(results) > 1:
        with graph.inserting_before(output):
            _join(graph, results, {output})


def _join_parameters(graph: fx.Graph) -> None:
    order = {node: index for index, node in enumerate(graph.nodes)}
    known: set[fx.Node] = set()
    """Nodes that no kernel but pointwise ones precedes."""
    parameters: dict[fx.Node, None] = {}
    for node in graph.nodes:
        is_pointwise = _is_pointwise(node) or node.target in _VIEWS
        if node.op == "placeholder" or (is_pointwise and known.issuperset(node.all_input_nodes)):
            known.add(node)
        for at in _PARAMETERS.get(node.target, ()):
            operand = node.args[at]
            while isinstance(operand, fx.Node) and operand.target in _VIEWS:
                operand = operand.args[0]
            if operand not in known or not _is_small(operand):
                continue
            is_cast = operand.target is _CAST and operand.args[0].op == "placeholder" and operand.meta["val"].ndim <= 2
            if is_cast or node.target not in (_aten.addmm.default, _aten.mm.default):
                parameters[operand] = None
    if len(parameters) < 2:
        return
    before = _with_sources(parameters)
    last = max((node for node in graph.nodes if node.op == "placeholder"), key=order.__getitem__)
    for node in sorted(before, key=order.__getitem__):
        if order[node] > order[last]:
            last.append(node)
            last = node
    with graph.inserting_after(last):
        _join(graph, list(parameters), {user for node in parameters for user in node.users} - before)


def _with_sources(nodes: Iterable[fx.Node]) -> set[fx.Node]:
    """Nodes and all that they are computed from, the graph's inputs left out."""
    found: set[fx.Node] = set()
    waiting = list(nodes)
    while waiting:
        node = waiting.pop()
        if node not in found and node.op == "call_function":
            found.add(node)
            waiting += node.all_input_nodes
    return found


def _join(graph: fx.Graph, nodes: list[fx.Node], users: set[fx.Node]) -> None:
    """Copy nodes' results at the insertion point, in one kernel that computes them too, and let ``users`` read the
    copies."""
    joined = graph.call_function(_aten._foreach_copy.default, (nodes, nodes))
    joined.meta["val"] = [node.meta["val"] for node in nodes]
    with graph.inserting_after(joined):
        for index, node in reversed(list(enumerate(nodes))):
            copy = graph.call_function(operator.getitem, (joined, index))
            copy.meta = dict(node.meta)
            node.replace_all_uses_with(copy, delete_user_cb=users.__contains__)


def _is_pointwise(node: Any) -> bool:
    """Whether a node computes each number of its result by the same numbers of operands, or from none."""
    target = getattr(node, "target", None)
    if not isinstance(target, torch._ops.OpOverload) or not isinstance(node.meta.get("val"), torch.Tensor):
        return False
    makes = target in (_aten.full.default, _prims.iota.default)
    is_pointwise = makes or target is _CAST or torch.Tag.pointwise in target.tags
    return is_pointwise and torch.Tag.nondeterministic_seeded not in target.tags


def _is_small(node: fx.Node) -> bool:
    """Whether a node is pointwise, of known sizes and on no CPU, and its kernel takes about as long as its launch."""
    if not _is_pointwise(node):
        return False
    value = node.meta["val"]
    return not value.is_cpu and all(type(size) is int for size in value.shape) and value.numel() <= _MOST


def _is_late(node: fx.Node) -> bool:
    """Whether a result of the graph has few numbers, or is what a kernel that is not pointwise left, in another
    type."""
    if not _is_small(node):
        return False
    if node.meta["val"].ndim <= 1:
        return True
    source = node.args[0]
    return node.target is _CAST and len(node.users) == 1 and not _is_pointwise(source) and source.op == "call_function"
