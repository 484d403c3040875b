"""A fused model's arguments with defaults: calls that give others run by a graph of their own, of the same layers.

torch.fx traces a model for the values of its arguments. A call with other values than the defaults is traced anew, once
a set of values (tensors stay arguments), and the layers that were fused serve that graph too, so that the weights are
the same tensors. Where the model's code asks a tensor for its sizes to decide what to do, there is a graph a set of
sizes.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

from ...api.errors import InvalidArgument

_MOST = 16
"""Sets of values whose graphs are kept."""


class Arguments:
    """What ``forward`` of a model takes, and the graphs for other values; made before its layers are fused."""

    def __init__(self, root: nn.Module, trace: Callable[..., Any]) -> None:
        """``trace(root, concrete, layers, tensors)`` makes a fused model of ``layers`` where the arguments have values,
        and where given, the tensors' sizes."""
        self.root, self.trace = root, trace
        self.signature = inspect.signature(root.forward)
        found = self.signature.parameters.values()
        self.defaults = {p.name: p.default for p in found if p.default is not p.empty}
        self.plain = all(p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY) for p in found)
        self.layers: list[tuple[Any, Any, Any]] = []
        """(convolution, batch norm or None, fused layer) of the graph for the defaults."""
        self._made: dict[Any, Any] = {}
        self._sized: set[str] = set()
        """Sets of values for which the model asks for sizes."""

    def others(self, inputs: tuple[Any, ...], named: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]] | None:
        """(required arguments, those that differ from their defaults); None where none does. Raises TypeError."""
        if not self.plain:
            return None
        given = self.signature.bind(*inputs, **named).arguments
        other = {n: v for n, v in given.items() if n in self.defaults and not _same(v, self.defaults[n])}
        return {n: v for n, v in given.items() if n not in self.defaults}, other

    def __call__(self, model: nn.Module, required: dict[str, Any], other: dict[str, Any]) -> Any:
        """The result for other values. Raises InvalidArgument where they cannot be traced with the layers that are."""
        concrete = {n: v for n, v in (self.defaults | other).items() if not isinstance(v, torch.Tensor)}
        values, given = required | self.defaults | other, {}
        tensors = {n: v for n, v in values.items() if isinstance(v, torch.Tensor)}
        words = repr([(n, type(v), v) for n, v in concrete.items()])
        key = words, tuple((n, v.shape, v.dtype, v.device) for n, v in tensors.items())
        made = self._made.get(key if words in self._sized else words)
        if made is None or not self._same_layers(model, made):
            try:
                made = self._graph(words, concrete, tensors)
            except Exception as error:  # whatever the model's code raises
                raise InvalidArgument(
                    f"the fused model was traced for {self._words(self.defaults)}, and cannot be for "
                    f"{self._words(other)} ({error}): convert the model without fuse for such calls"
                ) from error
            if len(self._made) >= _MOST:
                self._made.clear()
            self._made[key if words in self._sized else words] = made
        for node in made.graph.nodes:
            if node.op == "placeholder":  # torch.fx adds a number to the name of an argument that has its value
                name = str(node.target)
                given[name] = values[name if name in values else name.rpartition("_")[0]]
        return made(**given)

    def _graph(self, words: str, concrete: dict[str, Any], tensors: dict[str, torch.Tensor]) -> Any:
        if words not in self._sized:
            try:
                return self.trace(self.root, concrete, self.layers)
            except torch.fx.proxy.TraceError:
                made = self.trace(self.root, concrete, self.layers, tensors)
                self._sized.add(words)
                return made
        return self.trace(self.root, concrete, self.layers, tensors)

    def _same_layers(self, model: nn.Module, made: nn.Module) -> bool:
        """Whether the graph's weights are the model's, which may have got others since."""
        own = {id(p) for p in model.parameters()}
        return all(id(p) in own for p in made.parameters())

    @staticmethod
    def _words(values: Mapping[str, Any]) -> str:
        said = (f"{n}={'a tensor' if isinstance(v, torch.Tensor) else repr(v)}" for n, v in values.items())
        return ", ".join(said)


def _same(value: Any, default: Any) -> bool:
    if value is default:
        return True
    plain = type(value) is type(default) and isinstance(value, bool | int | float | str | tuple)
    return plain and value == default
