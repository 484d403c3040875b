"""A form's prologue: what PyTorch computes from integer and mask inputs, before the form computes the rest.

Forms compute numbers of one type. What a model makes of token ids, masks and bytes alone, up to the first numbers that
come of them (an embedding, a comparison, a conversion), is a few small operators, which PyTorch runs at each call: with
its own checks, so that an id beyond the table is the error that it is in the model.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

from .quantized import Missing


class Prologue:
    """The nodes of the prologue. ``takes`` each node in the graph's order, then ``finish``, then ``prologue(inputs)``
    at each call."""

    def __init__(self, graph: fx.Graph) -> None:
        self._placeholders = [node for node in graph.nodes if node.op == "placeholder"]
        self._nodes: dict[fx.Node, None] = {
            node: None for node in self._placeholders if not node.meta["val"].is_floating_point()
        }
        self._module: fx.GraphModule | None = None
        self._made: list[fx.Node] = []
        self.feeds: list[fx.Node] = []
        """The form's inputs in order: floating-point inputs of the graph, and floating-point results of the
        prologue."""

    def __contains__(self, node: Any) -> bool:
        return node in self._nodes

    def takes(self, node: fx.Node, constants: Any) -> bool:
        """Whether this operator belongs to the prologue: it takes integers or masks, and nothing that the form
        computes.

        Raises Missing for one that would write to what is given.
        """
        parts = [each for each in node.all_input_nodes if each not in constants]
        if not parts or any(each not in self._nodes for each in parts):
            return False
        picks = str(node.target) == "<built-in function getitem>"
        if not picks and all(map(_is_number, parts)):
            return False  # the form computes floating-point operators
        if not picks and node.target._schema.is_mutable:
            raise Missing(f"{node.target} writes to an input")
        self._nodes[node] = None
        return True

    def finish(self, root: Any, constants: dict[fx.Node, torch.Tensor], dtype: torch.dtype) -> None:
        """Determine the form's inputs. Raises Missing if one of them is not of the floating-point type ``dtype``."""
        inside = [node for node in self._nodes if node.op != "placeholder"]
        asked = [node for node in self._nodes if any(user not in self._nodes for user in node.users)]
        taken = [node for node in asked if any(user.op != "output" and user not in self._nodes for user in node.users)]
        for node in taken:
            if node.meta["val"].dtype != dtype or not node.meta["val"].numel():
                raise Missing(f"{_word(node)}, which is no numbers of {dtype}, meets numbers")
        self._made = [node for node in asked if node.op != "placeholder"]
        self.feeds = [node for node in self._placeholders if node not in self._nodes] + [
            node for node in taken if node in self._made
        ]
        if not inside:
            return
        graph, new_nodes = fx.Graph(), {}
        for node in self._placeholders:
            new_nodes[node] = graph.placeholder(node.name)
        for node in inside:
            for part in node.all_input_nodes:
                if part not in new_nodes:  # a constant of the model, or one that ``AtenNet.check`` computed
                    constant_name = f"held_{len(new_nodes)}"
                    setattr(root, constant_name, constants[part])
                    new_nodes[part] = graph.get_attr(constant_name)
            new_nodes[node] = graph.node_copy(node, new_nodes.__getitem__)
        graph.output(tuple(new_nodes[node] for node in self._made))
        self._module = fx.GraphModule(root, graph)

    def __call__(self, inputs: Sequence[torch.Tensor]) -> dict[fx.Node, torch.Tensor]:
        """The inputs and the prologue's results, by node."""
        value_by_node = dict(zip(self._placeholders, inputs, strict=True))
        if self._module is not None:
            with torch.no_grad():
                value_by_node |= zip(self._made, self._module(*inputs), strict=True)
        return value_by_node


def _is_number(node: fx.Node) -> bool:
    value = node.meta.get("val")
    return isinstance(value, torch.Tensor) and value.is_floating_point()


def _word(node: fx.Node) -> str:
    return "an input" if node.op == "placeholder" else f"what {node.target} makes of the inputs"
