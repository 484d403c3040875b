"""Replaces convolutions of a graph of ATen operators, and the operators that follow them, by our operators.

``use_our_operators`` is the pass for graphs that PyTorch's inductor compiles or that run operator by operator: frozen
batch norms go into the weights (in float64), and a convolution takes in a sum with another tensor and an activation
where nothing else reads what lies between. Forms have their own fuser (``inference/passes``) and get the graph
without this.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch import fx, nn
from torch.nn.utils.fusion import fuse_conv_bn_weights

from ...api.activations import ACTIVATIONS
from ..compile import fused_operator, operators
from ..geometry import has_sides

_aten = torch.ops.aten
_CONVOLUTIONS = (_aten.convolution.default, torch.ops.convdispatch.convolution.default)
_BATCH_NORMS = (_aten._native_batch_norm_legit_no_training.default,)


def fold_batch_norms(graph: fx.GraphModule) -> None:
    """Fold batch norms of frozen statistics into the convolutions before them, if nothing else reads the
    convolution."""
    for node in list(graph.graph.nodes):
        if node.target not in _BATCH_NORMS or any(user.target is not operator.getitem for user in node.users):
            continue
        convolution, *norm = node.args[:5]
        results = {user.args[1]: user for user in node.users}
        if not isinstance(convolution, fx.Node) or convolution.target not in _CONVOLUTIONS or set(results) != {0}:
            continue
        operands = (*convolution.args[1:3], *norm)
        tensors = [_constant(graph, each) for each in operands]
        missing = any(t is None and operand is not None for t, operand in zip(tensors, operands))
        if len(convolution.users) != 1 or missing or convolution.args[6] or tensors[0] is None:
            continue
        weight, bias, scale, shift, mean, variance = (None if t is None else t.double() for t in tensors)
        folded = fuse_conv_bn_weights(weight, bias, mean, variance, float(node.args[6]), scale, shift)  # type: ignore[arg-type]
        with graph.graph.inserting_before(convolution):
            for index, value in enumerate(folded, 1):
                name = f"{convolution.name}_{index}"
                graph.register_parameter(name, nn.Parameter(value.to(tensors[0].dtype), requires_grad=False))
                convolution.update_arg(index, attribute := graph.graph.get_attr(name))
                attribute.meta["val"] = value.to("meta", tensors[0].dtype)
        results[0].replace_all_uses_with(convolution)
    graph.graph.eliminate_dead_code()
    graph.delete_all_unused_submodules()
    graph.recompile()


def use_our_operators(graph: fx.Graph) -> int:
    """Replace convolutions and their gradients by our operators, with the epilogues of those whose result nothing else
    reads; returns the number of convolutions."""
    order = {node: index for index, node in enumerate(graph.nodes)}
    count = 0
    for node in reversed(list(graph.nodes)):
        if node.target is _aten.convolution_backward.default:
            node.target = operators.convolution_backward
            count += 1
        elif node.target in _CONVOLUTIONS:
            count += 1
            if node.args[6]:  # the convolution is transposed
                node.target = operators.convolution
            else:
                _fuse(graph, node, order)
    graph.lint()
    return count


def freeze_weights(graph: fx.GraphModule) -> None:
    """Make the weights of our operators parameters without gradients, whose packed forms are cached."""
    for node in graph.graph.nodes:
        if node.target in (fused_operator.fused_convolution, operators.convolution):
            weight = _constant(graph, node.args[1])
            if weight is not None and not isinstance(weight, nn.Parameter):
                delattr(graph, str(node.args[1].target))
                graph.register_parameter(str(node.args[1].target), nn.Parameter(weight, requires_grad=False))


def _fuse(graph: fx.Graph, node: fx.Node, order: dict[fx.Node, int]) -> None:
    chain, residual, activation = [node], None, None
    user = _only_user(node)
    if user is not None and (residual := _residual(user, node, order)) is not None:
        chain.append(user)
    user = _only_user(chain[-1])
    if user is not None and user.args[:1] == (chain[-1],) and (activation := activation_text(user)) is not None:
        chain.append(user)
    last_node = chain[-1]
    x, w, bias, stride, padding, dilation, _, _, groups = node.args
    # A graph of symbolic sizes has no values, and one number for all axes does not say how many there are.
    ndim = node.meta["val"].ndim - 2 if "val" in node.meta else len(stride)
    if ndim > 1 or "val" in node.meta:
        x, padding = _without_pads(x, padding, ndim)
    with graph.inserting_before(last_node):
        fused_node = graph.call_function(
            fused_operator.fused_convolution,
            (x, w, bias, residual, activation, stride, padding, dilation, groups),
        )
    fused_node.meta = dict(last_node.meta)
    order[fused_node] = order[last_node]
    last_node.replace_all_uses_with(fused_node)
    for each in reversed(chain):
        graph.erase_node(each)


def _without_pads(x: fx.Node, padding: Sequence[int], ndim: int) -> tuple[fx.Node, Sequence[int]]:
    """A convolution's input without the zeros that only convolutions read, and its padding with them. Memory that is
    padded for anything else too, as a gradient's input, is there anyway."""
    taken_in = None
    while x.target is _aten.constant_pad_nd.default and x.kwargs.get("value", (*x.args, 0)[2]) == 0:
        pads: Any = x.args[1]
        zeros = all(isinstance(pad, int) and pad >= 0 for pad in pads) and len(pads) <= 2 * ndim
        readers = (user is taken_in or (_pads_itself(user) and user.args[0] is x) for user in x.users)
        if not zeros or not all(readers):
            break
        sides = [*padding] * ndim if len(padding) == 1 else [*padding]
        sides = sides if has_sides(sides, ndim) else [*sides, *sides]
        for number, pad in enumerate(pads):  # both sides of the last axis, then those of the one before
            sides[ndim * (number % 2) + ndim - 1 - number // 2] += pad
        taken_in = x
        x, padding = x.args[0], sides[:ndim] if sides[:ndim] == sides[ndim:] else sides  # type: ignore[assignment]
    return x, padding


def _pads_itself(node: fx.Node) -> bool:
    """Whether an operator of a graph is, or will be, a convolution that pads its input."""
    return node.target is fused_operator.fused_convolution or (node.target in _CONVOLUTIONS and not node.args[6])


def _only_user(node: fx.Node) -> fx.Node | None:
    return next(iter(node.users)) if len(node.users) == 1 else None


def _residual(node: fx.Node, convolution: fx.Node, order: dict[fx.Node, int]) -> fx.Node | None:
    """The other operand of a sum with ``convolution``, if it has the same shape and type."""
    if node.target is not _aten.add.Tensor or node.kwargs.get("alpha", 1) != 1 or len(node.args) != 2:
        return None
    first_operand, other_operand = node.args
    other_operand = other_operand if first_operand is convolution else first_operand
    if not isinstance(other_operand, fx.Node) or other_operand is convolution:
        return None
    values = [each.meta.get("val") for each in (other_operand, convolution, node)]
    if not all(isinstance(each, torch.Tensor) for each in values) or len({each.dtype for each in values}) > 1:
        return None
    return other_operand if values[0].shape == values[1].shape else None


@functools.cache
def _activations() -> dict[Any, str]:
    """The name of each activation by its operator, and by its functions in Dynamo's graphs."""
    return {
        getattr(each, "default", each): name
        for name, entry in ACTIVATIONS.items()
        if entry.torch is not None
        for room in (_aten, torch, torch.nn.functional)
        if (each := getattr(room, entry.torch.function, None)) is not None
    }


def activation_text(node: fx.Node) -> str | None:
    """An operator or function as an activation of ``conv()`` of its first argument; None if it is none."""
    name = _activations().get(node.target)
    if name is None or not node.args:
        return None
    entry: Any = ACTIVATIONS[name].torch
    names = [*entry.attributes, *entry.only]
    if not isinstance(node.target, torch._ops.OpOverload):
        names.append("inplace")
    values = {**dict(zip(names, node.args[1:])), **node.kwargs}
    if len(node.args) > len(names) + 1 or any(isinstance(each, fx.Node) for each in values.values()):
        return None
    return fused_operator.named_activation(name, values)


def _constant(graph: fx.GraphModule, node: Any) -> torch.Tensor | None:
    value = getattr(graph, str(node.target), None) if isinstance(node, fx.Node) and node.op == "get_attr" else None
    return value if isinstance(value, torch.Tensor) else None
