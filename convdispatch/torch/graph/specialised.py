"""A graph of Dynamo's for the sizes and weights of one call: sizes become numbers, weights become attributes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

__all__ = ["specialised"]


def specialised(graph: fx.GraphModule, inputs: Sequence[Any], constants: Sequence[int]) -> fx.GraphModule:
    """A copy of ``graph`` whose inputs are the tensors of ``inputs`` that are not ``constants``, in their order.

    Where sizes are symbols, the graph is traced anew with the sizes of ``inputs``.
    """
    fixed = set(constants)
    placeholders = [node for node in graph.graph.nodes if node.op == "placeholder"]
    if any(not isinstance(node.meta.get("val"), torch.Tensor) for node in placeholders) or _is_symbolic(placeholders):
        return _traced(graph, inputs, fixed)
    attributes: dict[str, torch.Tensor] = {}
    copied, values = fx.Graph(), {}
    for node in graph.graph.nodes:
        place = placeholders.index(node) if node.op == "placeholder" else -1
        if place in fixed:
            name = f"constant_{place}"
            attributes[name] = inputs[place].detach()
            values[node] = copied.get_attr(name)
            values[node].meta = dict(node.meta)
        else:
            values[node] = copied.node_copy(node, values.__getitem__)
    held = {name: getattr(graph, name) for name in _attribute_names(graph)}
    return fx.GraphModule(held | attributes, copied)


def _attribute_names(graph: fx.GraphModule) -> list[str]:
    return [str(node.target) for node in graph.graph.nodes if node.op == "get_attr"]


def _is_symbolic(placeholders: Sequence[fx.Node]) -> bool:
    return any(isinstance(size, torch.SymInt) for node in placeholders for size in node.meta["val"].shape)


def _traced(graph: fx.GraphModule, inputs: Sequence[Any], fixed: set[int]) -> fx.GraphModule:
    from torch.fx.experimental.proxy_tensor import make_fx

    free = [place for place, each in enumerate(inputs) if isinstance(each, torch.Tensor) and place not in fixed]

    weights = [each.detach() if isinstance(each, torch.Tensor) else each for each in inputs]

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
