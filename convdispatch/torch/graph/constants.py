"""Which inputs of a graph are constant weights, and whether they still have the values that were packed.

Dynamo guards no values. So an input is taken for constant only where that pays: the operands of convolutions, matrix
products and norms, what these are computed of, and what tables are computed of. Everything else (masks, statistics) is
read anew at each call. Writes to a constant are told by PyTorch's version counter, the tensor's address, reads of a
parameter's ``.data`` (``data_reads``), and for views that somebody keeps by a sample of the memory (``sampled``).
"""

from __future__ import annotations

import functools
import gc
import operator
import sys
import weakref
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx

from .. import data_reads
from ..sampled import Sample, together, version_of

_WEIGHT_OPERANDS: dict[str, tuple[int, ...]] = {
    "aten.convolution.default": (1, 2),
    "convdispatch.convolution.default": (1, 2),
    "convdispatch.fused_convolution.default": (1, 2),
    "aten.addmm.default": (0, 2),
    "aten.mm.default": (1,),
    "aten.bmm.default": (1,),
    "aten.linear.default": (1, 2),
    "aten._native_batch_norm_legit_no_training.default": (1, 2, 3, 4),
    "aten.native_batch_norm.default": (1, 2, 3, 4),
    "aten.native_layer_norm.default": (2, 3),
    "aten.native_group_norm.default": (1, 2),
    "aten.embedding.default": (0,),
}
"""The indices of operands that a form packs or folds, by operator."""
_TAKING_CONSTANTS = _WEIGHT_OPERANDS.keys() - {
    "aten.bmm.default", "aten.native_layer_norm.default", "aten.native_group_norm.default", "aten.embedding.default",
}  # fmt: skip
"""The operators that take a constant in: their result's product with it, or sum, is folded into their weights."""
_FOLDED = frozenset(f"aten.{name}.Tensor" for name in ("mul", "add", "sub", "div"))
"""The operators whose constant operand is folded so."""
_COPIES = "aten.clone.default", "aten._unsafe_view.default"
"""The operators that copy their input, as layers that drop nothing and views of attention's results are traced."""
MAX_SETS = 64
"""The number of weight sets for which one graph caches forms. Dynamo may use one graph for all blocks of a net."""
IN_USE = 4 * MAX_SETS
"""A set that one of so many last calls had is not freed for a further one: sets that take turns would each be packed at
every call."""


def packed_inputs(graph: fx.GraphModule, static: Sequence[int]) -> list[int]:
    """The indices of inputs among ``static`` that are constants of a form, because each call would compute something
    of them alone: they reach weight operands, directly or through operators on other such inputs, or a value that is
    computed of static inputs alone is read beside other values (a table of relative positions, looked up by an index).

    Quantized weights are among them; inputs of which the graph returns something new, as counters, are not.
    """
    placeholders = [node for node in graph.graph.nodes if node.op == "placeholder"]
    allowed = {placeholders[index] for index in static if _is_tensor(placeholders[index])}
    sources: dict[fx.Node, set[fx.Node]] = {node: {node} for node in allowed}
    """The static inputs of each value that is computed from static inputs alone."""
    computed: set[fx.Node] = set()
    """The values among them that are more than views of an input."""
    for node in graph.graph.nodes:
        parts = node.all_input_nodes
        if node.op == "call_function" and parts and all(part in sources for part in parts) and not _is_random(node):
            sources[node] = set().union(*(sources[part] for part in parts))
            if not _is_view(node) or any(part in computed for part in parts):
                computed.add(node)
    packed: set[fx.Node] = set()
    returned: set[fx.Node] = set()
    tables: set[fx.Node] = set()
    products: set[fx.Node] = set()
    """What operators with weights compute, views of it, and what constants were folded into."""
    for node in graph.graph.nodes:
        if node in sources:
            continue
        of_parts = {part: sources[part] for part in node.all_input_nodes if part in sources}
        if node.op == "output":
            returned = returned.union(*of_parts.values())
        else:
            tables = tables.union(*(inputs for part, inputs in of_parts.items() if part in computed))
        for index in _WEIGHT_OPERANDS.get(str(node.target), ()):
            if index < len(node.args) and node.args[index] in sources:
                packed |= sources[node.args[index]]
        has_products = any(part in products for part in node.all_input_nodes)
        is_folded = has_products and bool(of_parts) and str(node.target) in _FOLDED
        if is_folded:
            tables = tables.union(*of_parts.values())
        is_same = _is_view(node) or str(node.target) in _COPIES
        if is_folded or str(node.target) in _TAKING_CONSTANTS or (has_products and is_same):
            products.add(node)
    packed |= tables - returned
    return [index for index, node in enumerate(placeholders) if node in packed]


def _is_tensor(node: fx.Node) -> bool:
    return isinstance(node.meta.get("val"), torch.Tensor)


def _is_view(node: fx.Node) -> bool:
    """Whether an operator's result is memory of its input, or an item of several results."""
    schema = getattr(node.target, "_schema", None)
    if schema is None:
        return node.target is operator.getitem
    return any(each.alias_info is not None for each in schema.returns)


def _is_random(node: fx.Node) -> bool:
    return torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ())


class Constants:
    """Weights with the values that forms packed, and these forms."""

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        self.tensors = list(tensors)
        self.forms: OrderedDict[Any, Any] = OrderedDict()
        self.last_call = 0
        """The number of the graph's last call with these weights."""
        self.forget_reads()
        samples = [Sample.of(each) for each in tensors]
        self._same_samples = together([sample for sample in samples if sample is not None])
        inference = any(each.is_inference() for each in tensors)
        self._version: Callable[[torch.Tensor], int] = version_of if inference else operator.attrgetter("_version")
        self._memory = self._versions_and_addresses()

    @staticmethod
    def can_watch(tensors: Sequence[torch.Tensor]) -> bool:
        """Whether writes to the tensors can be detected: inference tensors do not count them, so only by a sample."""
        return all(
            each.layout is torch.strided and (not each.is_inference() or Sample.of(each) is not None)
            for each in tensors
        )

    def _versions_and_addresses(self) -> list[int]:
        return [*map(self._version, self.tensors), *map(torch.Tensor.data_ptr, self.tensors)]

    def are(self, tensors: Sequence[torch.Tensor]) -> bool:
        """Whether these are the same tensor objects."""
        return all(map(operator.is_, tensors, self.tensors))

    def unchanged(self) -> bool:
        """Whether the tensors have the values that were packed, as far as that can be detected."""
        if self._versions_and_addresses() != self._memory:
            return False
        if data_reads.count() != self._reads_seen:
            if any(reads.since() for reads in self._reads):
                return False
            self._reads_seen = data_reads.count()
        return self._same_samples()

    def forget_reads(self) -> None:
        """Treat no earlier read of ``.data`` as a write: PyTorch reads it when it traces a graph of these tensors, and
        of the operators that the first call of a graph runs."""
        self._reads = [data_reads.Reads(each) for each in self.tensors if isinstance(each, torch.nn.Parameter)]
        self._reads_seen = -1


class WeightSets:
    """The weight sets with which one graph was called lately, with the forms of each set, most recently used first:
    Dynamo may use one graph for several blocks of a net, or models of a class, alternately."""

    def __init__(self) -> None:
        self.sets: list[Constants] = []
        """The list is replaced, not changed, at each update, because a garbage collection may remove sets at any
        time."""
        _watch_collections()
        _weight_sets.add(self)
        self._calls = 0
        self._missed: deque[Any] = deque(maxlen=2 * MAX_SETS)
        """Ids and versions of the weights of the last calls that matched no set."""

    def free(self) -> None:
        """Free all weights and forms."""
        self.sets = []
        self._missed.clear()

    def find(self, tensors: Sequence[torch.Tensor]) -> Constants | None:
        """The set of these weights. None if their values have changed, or if they are new while other sets exist: new
        weights are packed at their second call, because packing does not pay for weights that differ at each call.
        None also if there are ``MAX_SETS`` already that are in use."""
        self._calls += 1
        for each in self.sets:
            if each.are(tensors):
                other_sets = [weight_set for weight_set in self.sets if weight_set is not each]
                unchanged = each.unchanged()
                self.sets = [each, *other_sets] if unchanged else other_sets
                if unchanged:
                    each.last_call = self._calls
                    return each
                break
        _let_go_of_forgotten()
        if not Constants.can_watch(tensors):
            return None
        identity = [(id(each), version_of(each)) for each in tensors]
        if self._missed and identity not in self._missed:
            self._missed.append(identity)
            return None
        self._missed.append(identity)
        if len(self.sets) >= MAX_SETS and self.sets[-1].last_call > self._calls - IN_USE:
            return None
        new_set = Constants(tensors)
        new_set.last_call = self._calls
        self.sets = [new_set, *self.sets[: MAX_SETS - 1]]
        return new_set


_weight_sets: weakref.WeakSet[WeightSets] = weakref.WeakSet()


def _let_go_of_forgotten() -> None:
    """Free the weight sets, and their forms, whose tensors only the sets of all graphs reference: their model is
    gone."""
    every = list(_weight_sets)
    own_references = Counter(id(each) for sets in every for weights in sets.sets for each in weights.tensors)

    def is_forgotten(weights: Constants) -> bool:
        # The loop variable and the argument of getrefcount are two more references.
        return bool(weights.tensors) and all(
            sys.getrefcount(each) <= own_references[id(each)] + 2 for each in weights.tensors
        )

    for sets in every:
        forgotten = list(filter(is_forgotten, sets.sets))
        if forgotten:
            sets.sets = [weights for weights in sets.sets if weights not in forgotten]


@functools.cache
def _watch_collections() -> None:
    """After each full garbage collection, free the weights of deleted models: Dynamo caches graphs longer than the
    models live."""
    gc.callbacks.append(_collected)


def _collected(phase: str, info: dict[str, int]) -> None:
    if phase == "stop" and info["generation"] == 2:
        _let_go_of_forgotten()
