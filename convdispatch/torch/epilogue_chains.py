"""What may follow a convolution into it: chains of a traced graph in which nobody else reads what lies between.

A chain ends at the place of its last operation, so a convolution moves down to there. Where something between might
write to what it reads, the chain ends before.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx, nn

from ..api.activations import ACTIVATIONS, Torch

F = torch.nn.functional
_NUMBERLESS = {
    each.torch.function: name for name, each in ACTIVATIONS.items() if each.torch and not each.torch.attributes
}
_SIMPLE = {name + end: ours for name, ours in _NUMBERLESS.items() for end in ("", "_") if hasattr(torch.Tensor, name)}
"""Methods without arguments."""
_FUNCTIONS: dict[Any, str] = {
    found: ours
    for name, ours in _NUMBERLESS.items()
    for home in (torch, F)
    for end in ("", "_")
    if (found := getattr(home, name + end, None)) is not None
}
"""Functions of a tensor, and of ``inplace`` at most."""


def _words_of(name: str, theirs: Torch) -> Callable[[Any], str | None]:
    def words(layer: Any) -> str | None:
        if any(getattr(layer, key, value) != value for key, value in theirs.only.items()):
            return None
        numbers = ", ".join(repr(float(getattr(layer, each))) for each in theirs.attributes)
        return f"{name}({numbers})" if numbers else name

    return words


MODULES: dict[type, Callable[[Any], str | None]] = {
    getattr(nn, each.torch.module): _words_of(name, each.torch) for name, each in ACTIVATIONS.items() if each.torch
}
"""Layers, as ``conv()``'s words; None where it has none."""
_SUMS = (operator.add, operator.iadd, torch.add)
_BATCH_NORMS = {nn.BatchNorm1d: 1, nn.BatchNorm2d: 2, nn.BatchNorm3d: 3}
_WRITING = {getattr(operator, name) for name in dir(operator) if name.startswith("i") and not name.startswith("is")}


@dataclass
class Chain:
    """A convolution, and the operations that it may take in, in their order."""

    convolution: fx.Node
    rest: list[fx.Node] = field(default_factory=list)
    batch_norm: Any = None
    sum: fx.Node | None = None
    activation: str | None = None

    @property
    def residual(self) -> fx.Node | None:
        """What is added, as the graph has it now: it may be the result of a chain that was replaced."""
        if self.sum is None:
            return None
        return _added(self.sum, [self.convolution, *self.rest][self.rest.index(self.sum)])

    @property
    def last(self) -> fx.Node:
        """Whose result the chain's is."""
        return self.rest[-1] if self.rest else self.convolution

    @property
    def words(self) -> list[str]:
        """Its operations by their names in the model."""
        return [str(n.target) if n.op == "call_module" else n.name for n in (self.convolution, *self.rest)]


def chains(graph: fx.Graph, modules: dict[str, nn.Module], kinds: Any) -> Iterator[Chain]:
    """A chain for each call of a module of ``kinds`` (exact types), the last ones first: of two convolutions that are
    added, the later one takes in the other's result."""
    taken: set[fx.Node] = set()
    place = {node: number for number, node in enumerate(graph.nodes)}
    nodes = list(graph.nodes)
    for node in reversed(nodes):
        module = modules.get(str(node.target)) if node.op == "call_module" else None
        if type(module) not in kinds or has_hooks(module) or len(node.args) + len(node.kwargs) != 1:
            continue
        chain = Chain(node)
        while (after := _next(chain, modules, taken)) is not None:
            inside = {node, *chain.rest, after}
            between = nodes[place[node] + 1 : place[after]]
            if any(each not in inside and _may_write(each, modules) for each in between):
                break
            _take(chain, after, modules)
        taken.update(chain.rest)
        yield chain


def _next(chain: Chain, modules: dict[str, nn.Module], taken: set[fx.Node]) -> fx.Node | None:
    """The only reader of what the chain computes so far, where the chain can take it in."""
    last = chain.last
    if len(last.users) != 1 or chain.activation is not None:
        return None
    (after,) = last.users
    if after in taken or after.op == "output":
        return None
    module = modules.get(str(after.target)) if after.op == "call_module" else None
    if module is not None and has_hooks(module):
        return None
    first = not chain.rest and type(module) in _BATCH_NORMS and _folds(modules[str(chain.convolution.target)], module)
    if first or (_added(after, last) is not None and chain.sum is None) or _activation(after, module, last):
        return after
    return None


def _take(chain: Chain, node: fx.Node, modules: dict[str, nn.Module]) -> None:
    module = modules.get(str(node.target)) if node.op == "call_module" else None
    if type(module) in _BATCH_NORMS:
        chain.batch_norm = module
    elif _added(node, chain.last) is not None:
        chain.sum = node
    else:
        chain.activation = _activation(node, module, chain.last)
    chain.rest.append(node)


def _folds(conv: Any, norm: Any) -> bool:
    """Whether a batch norm is an affine map of the convolution's channels."""
    if norm.training or norm.running_mean is None or _BATCH_NORMS[type(norm)] != len(conv.kernel_size):
        return False
    return norm.num_features == conv.out_channels and norm.running_mean.dtype == conv.weight.dtype


def _added(node: fx.Node, mine: fx.Node) -> fx.Node | None:
    """The other operand of a sum with ``mine``; where the sum is written in place, only over ``mine``."""
    function = node.op == "call_function" and node.target in _SUMS
    method = node.op == "call_method" and node.target in ("add", "add_")
    if not (function or method) or len(node.args) != 2 or node.kwargs:
        return None
    one, other = node.args
    if (node.target in (operator.iadd, "add_") or one is mine) and one is not mine:
        return None
    other = other if one is mine else one
    return other if isinstance(other, fx.Node) and other is not mine else None


def _activation(node: fx.Node, module: Any, mine: fx.Node) -> str | None:
    """An activation in ``conv()``'s words; None where the node is none."""
    if not node.args or node.args[0] is not mine:
        return None
    if node.op == "call_module":
        found = MODULES.get(type(module))
        return None if found is None or len(node.args) + len(node.kwargs) != 1 else found(module)
    if node.op == "call_method":
        return _SIMPLE.get(str(node.target)) if len(node.args) == 1 and not node.kwargs else None
    if node.op == "call_function" and len(node.args) <= 2 and not set(node.kwargs) - {"inplace"}:
        if len(node.args) == 2 and not isinstance(node.args[1], bool):
            return None
        return _FUNCTIONS.get(node.target)
    return None


def has_hooks(module: Any) -> bool:
    """Whether somebody looks at a module's calls, or changes them."""
    before = module._forward_pre_hooks or module._backward_pre_hooks
    return bool(before or module._forward_hooks or module._backward_hooks)


def _may_write(node: fx.Node, modules: dict[str, nn.Module]) -> bool:
    """Whether a node may write to a tensor that was there before it."""
    if node.op in ("placeholder", "get_attr", "output"):
        return False
    if node.kwargs.get("inplace") or "out" in node.kwargs:
        return True
    if node.op == "call_module":
        module = modules[str(node.target)]
        known = type(module).__module__.partition(".")[0] in ("torch", "convdispatch")
        return not known or has_hooks(module) or bool(getattr(module, "inplace", False))
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
    if node.op == "call_method":
        return (name.endswith("_") and not name.endswith("__")) or name in ("__setitem__", "set_")
    if node.target in _WRITING or node.target is operator.setitem or any(each is True for each in node.args[1:]):
        return True
    home = getattr(node.target, "__module__", None) or ""
    known = home.partition(".")[0] in ("torch", "_operator", "math", "builtins", "")
    return not known or (name.endswith("_") and not name.endswith("__"))
