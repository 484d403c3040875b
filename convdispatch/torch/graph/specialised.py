"""A graph of Dynamo's for the sizes and weights of one call: sizes become numbers, weights become attributes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import fx
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.utils._pytree import tree_leaves, tree_map_only

__all__ = ["alias", "release_fakes", "specialised"]


def release_fakes(graph: fx.GraphModule) -> bool:
    """Replace the graph's fake tensors, whose mode holds weak references to the model's tensors for as long as they live,
    by tensors of the meta device; PyTorch swaps no tensor that has a weak reference. Whether the sizes are numbers: where
    they are symbols, the fake tensors go without replacement."""
    static = True
    for node in graph.graph.nodes:
        if "val" not in node.meta:
            continue
        leaves = tree_leaves(node.meta["val"])
        static = static and not any(isinstance(each, torch.SymInt | torch.SymFloat | torch.SymBool) for each in leaves)
        tensors = [each for each in leaves if isinstance(each, torch.Tensor)]
        static = static and not any(isinstance(size, torch.SymInt) for each in tensors for size in each.shape)
    with unset_fake_temporarily():
        for node in graph.graph.nodes:
            value = node.meta.pop("val", None)
            node.meta.clear()
            if static and value is not None:
                node.meta["val"] = tree_map_only(torch.Tensor, _on_meta, value)
    return static


def _on_meta(x: torch.Tensor) -> torch.Tensor:
    if x.layout is not torch.strided:
        return torch.empty(x.shape, dtype=x.dtype, device="meta")
    return torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device="meta")


def specialised(
    graph: fx.GraphModule, static: bool, inputs: Sequence[Any], constants: Sequence[int]
) -> fx.GraphModule:
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
        place = placeholders.index(node) if node.op == "placeholder" else -1
        if place in fixed:
            name = f"constant_{place}"
            attributes[name] = alias(inputs[place])
            values[node] = copied.get_attr(name)
            values[node].meta = dict(node.meta)
        else:
            values[node] = copied.node_copy(node, values.__getitem__)
    held = {name: getattr(graph, name) for name in _attribute_names(graph)}
    return fx.GraphModule(held | attributes, copied)


def alias(x: torch.Tensor) -> torch.Tensor:
    """Another tensor of the same memory. ``x.detach()`` would hold ``x``, which PyTorch then swaps for no other."""
    with torch.no_grad():
        return torch.empty(0, dtype=x.dtype, device=x.device).set_(x.untyped_storage(), x.storage_offset(), x.shape, x.stride())


def _attribute_names(graph: fx.GraphModule) -> list[str]:
    return [str(node.target) for node in graph.graph.nodes if node.op == "get_attr"]


def _traced(graph: fx.GraphModule, inputs: Sequence[Any], fixed: set[int]) -> fx.GraphModule:
    from torch.fx.experimental.proxy_tensor import make_fx

    free = [place for place, each in enumerate(inputs) if isinstance(each, torch.Tensor) and place not in fixed]

    weights = [alias(each) if isinstance(each, torch.Tensor) else each for each in inputs]

    def run(*tensors: torch.Tensor) -> Any:
        given = list(weights)
        for place, tensor in zip(free, tensors, strict=True):
            given[place] = tensor
        return graph(*given)

    with torch.no_grad():
        trace = make_fx(run, tracing_mode="fake", _allow_non_fake_inputs=True)
        traced = trace(*(weights[place] for place in free))
    traced.graph.eliminate_dead_code()
    return traced  # type: ignore[no-any-return]
