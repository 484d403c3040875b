"""Specialises a graph of Dynamo's for the sizes and weights of one call: sizes become numbers, weights attributes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import fx
from torch._decomp.decompositions_for_rng import PhiloxStateTracker
from torch._subclasses.fake_tensor import FakeTensor, unset_fake_temporarily
from torch.utils._pytree import tree_leaves, tree_map_only

from ..fake_modes import forget_originals, note_capture
from ..weights import forget_before_swaps

_SYMBOLS = (torch.SymInt, torch.SymFloat, torch.SymBool)


def let_go_of_capture(compiled: Any, graph: fx.GraphModule) -> Any:
    """``compiled``, which AOTAutograd made of Dynamo's ``graph``, without what holds that graph and fake tensors: the
    graph's methods, as attributes of a function, and the states of random numbers, which AOTAutograd reset last."""
    function = compiled
    while function is not None:
        attributes = getattr(function, "__dict__", {})
        for name in ("zero_grad", "named_parameters", "named_buffers"):
            attributes.pop(name, None)
        function = attributes.get("_torchdynamo_orig_callable")
    values = (node.meta.get("example_value") for node in graph.graph.nodes)
    modes = {each.fake_mode for each in tree_leaves(list(values)) if isinstance(each, FakeTensor)}
    context = torch._guards.TracingContext.try_get()
    modes.add(getattr(context, "fake_mode", None))
    forget_originals()
    forget_before_swaps()
    note_capture(each for each in (context, *modes) if each is not None)
    with unset_fake_temporarily():
        PhiloxStateTracker.reset()
    return compiled


def without_fakes(graph: fx.GraphModule) -> tuple[fx.GraphModule, bool]:
    """A copy of the graph, with tensors of the meta device for its fake tensors, whose mode lives as long as they do;
    and whether the sizes are numbers: where they are symbols, nothing replaces the fake tensors.

    A copy, for a graph also keeps the nodes that were erased.
    """
    static = True
    copied, values = fx.Graph(), {}
    with unset_fake_temporarily():
        for node in graph.graph.nodes:
            new_node = values[node] = copied.node_copy(node, values.__getitem__)
            value = new_node.meta.get("val")
            new_node.meta = {}
            leaves = tree_leaves(value)
            sizes = [size for each in leaves if isinstance(each, torch.Tensor) for size in each.shape]
            static = static and not any(isinstance(each, _SYMBOLS) for each in (*leaves, *sizes))
            if static and value is not None:
                new_node.meta["val"] = tree_map_only(torch.Tensor, _on_meta, value)
    if not static:
        for node in copied.nodes:
            node.meta = {}
    return fx.GraphModule(graph, copied), static


def _on_meta(x: torch.Tensor) -> torch.Tensor:
    if x.layout is not torch.strided:
        return torch.empty(x.shape, dtype=x.dtype, device="meta")
    return torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device="meta")


def specialised(graph: fx.GraphModule, static: bool, inputs: Sequence[Any], constants: Sequence[int]) -> fx.GraphModule:
    """A copy of ``graph`` whose inputs are the tensors of ``inputs`` that are not ``constants``, in their order.

    Where its sizes are symbols, not ``static``, the graph is traced anew with the sizes of ``inputs``.
    """
    fixed = set(constants)
    placeholders = [node for node in graph.graph.nodes if node.op == "placeholder"]
    if not static:
        return _traced(graph, inputs, fixed)
    attributes: dict[str, torch.Tensor] = {}
    copied, values = fx.Graph(), {}
    for node in graph.graph.nodes:
        input_index = placeholders.index(node) if node.op == "placeholder" else -1
        if input_index in fixed:
            name = f"constant_{input_index}"
            attributes[name] = alias(inputs[input_index])
            values[node] = copied.get_attr(name)
            values[node].meta = dict(node.meta)
        else:
            values[node] = copied.node_copy(node, values.__getitem__)
    attributes |= {str(n.target): getattr(graph, str(n.target)) for n in graph.graph.find_nodes(op="get_attr")}
    return fx.GraphModule(attributes, copied)


def alias(x: torch.Tensor) -> torch.Tensor:
    """Another tensor of the same memory. ``x.detach()`` would hold ``x``, which PyTorch then swaps for no other."""
    with torch.no_grad():
        return torch.empty(0, dtype=x.dtype, device=x.device).set_(
            x.untyped_storage(), x.storage_offset(), x.shape, x.stride()
        )


def _traced(graph: fx.GraphModule, inputs: Sequence[Any], fixed: set[int]) -> fx.GraphModule:
    from torch.fx.experimental.proxy_tensor import make_fx

    tensor_indices = [
        index for index, each in enumerate(inputs) if isinstance(each, torch.Tensor) and index not in fixed
    ]

    weights = [alias(each) if isinstance(each, torch.Tensor) else each for each in inputs]

    def run(*tensors: torch.Tensor) -> Any:
        arguments = list(weights)
        for index, tensor in zip(tensor_indices, tensors, strict=True):
            arguments[index] = tensor
        return graph(*arguments)

    with torch.no_grad():
        trace = make_fx(run, tracing_mode="fake", _allow_non_fake_inputs=True)
        traced = trace(*(weights[index] for index in tensor_indices))
    traced.graph.eliminate_dead_code()
    return without_fakes(traced)[0]
