"""Images a few at a time through the layers whose pictures of a whole batch do not fit a CPU's caches.

A layer that reads and writes more than the last cache holds runs at memory's speed, however fast it computes. Where
the first layers of a net are so, they run for a slice of the batch, one after the other, then for the next slice: what
one writes the next finds in the cache. Slices meet in one memory, into which convolutions write without a copy.

That pays most in nets of depthwise layers, which compute little for what they read and write (EfficientNet-lite0, eight
images: 19.1 ms whole, 16.1 in slices; ResNet-50: 136.5 and 127.2).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from ...api.device import DeviceInfo
from ...elementwise import concatenate
from ...elementwise.tensor import Tensor
from ..graph import Graph, Node, Ref, Value, is_planned, map_operands, operands
from .layout import reorder

LARGE = 16 << 20
"""The bytes of activations that an operation reads and writes from which caches do not hold them until the next
operation."""
SLICE_BYTES = 16 << 20
"""The most bytes that an operation on a slice of the batch should read and write."""
BEYOND = 8
"""The number of operations after the last large one that are searched for the smallest tensor to end the slices at."""
_ALIKE = frozenset({
    "max_pool", "avg_pool", "adaptive_avg_pool", "global_average_pool", "local_response_norm",
    "batch_norm", "apply", "activate", "concatenate", "quantize", "dequantize", "dequantized_average",
    "table_norm", reorder.__name__,
})  # fmt: skip
"""The operations, other than convolutions, that compute each image from the same image of their operands."""


def sliced(graph: Graph, device: DeviceInfo) -> Graph:
    """The net with its first operations for slices of the batch; itself where that is not worth it."""
    sizes = {ref.shape[0] for ref in (value.whole for value in graph.inputs) if len(ref.shape) == 4}
    if device.type != "cpu" or len(sizes) != 1:
        return graph
    batch = sizes.pop()
    slicable_nodes = _slicable(graph, batch)
    large = [index for index, node in enumerate(slicable_nodes) if _moved(node) > LARGE]
    if batch < 2 or not large:
        return graph
    largest_moved = max(_moved(node) for node in slicable_nodes[: large[-1] + 1])
    images = max(n for n in range(1, batch) if batch % n == 0 and (n == 1 or largest_moved * n <= SLICE_BYTES * batch))
    heavy = (index for index, node in enumerate(slicable_nodes) if _weights(node) * batch > _moved(node) * images)
    end = _end(graph, slicable_nodes[: next(heavy, len(slicable_nodes))], large)
    return graph if end is None else _Slices(graph, slicable_nodes[:end], batch, images).run()


def _slicable(graph: Graph, batch: int) -> Sequence[Node]:
    """The net's first operations, as many as compute image by image."""
    known_values = set(graph.inputs)
    for index, node in enumerate(graph.nodes):
        refs, results = node.refs, [ref for ref in operands(node.result) if isinstance(ref, Ref)]
        all_known_and_whole = all(ref.is_whole and ref.value in known_values for ref in refs) and all(
            ref.is_whole for ref in results
        )
        images = all_known_and_whole and all(len(ref.shape) == 4 and ref.shape[0] == batch for ref in (*refs, *results))
        alike = is_planned(node) or (node.name in _ALIKE and node.kwargs.get("axis", 1) != 0)
        if node.name == reorder.__name__:
            alike = alike and node.kwargs["axes"][0] == 0
        constant_tensors = [x for x in operands((node.args, node.kwargs)) if isinstance(x, Tensor)]
        # Constants may broadcast along the batch axis, but must not differ along it.
        if node.name == "apply":
            alike = alike and all(len(x.shape) < 4 or x.shape[0] == 1 for x in constant_tensors)
        if not images or not alike or len(results) != 1 or not isinstance(node.result, Ref):
            return graph.nodes[:index]
        known_values |= set(node.values)
    return graph.nodes


def _moved(node: Node) -> int:
    return sum(ref.value.nbytes for ref in (*node.refs, node.result))


def _weights(node: Node) -> int:
    return math.prod(node.kwargs["w"].shape) * node.result.value.dtype.itemsize if is_planned(node) else 0


def _end(graph: Graph, slicable_nodes: Sequence[Node], large: Sequence[int]) -> int | None:
    """How many operations to slice: up to where, after the last large one or as near before it as can be, the least is
    handed on, by convolutions alone; None where there is no such place."""
    readers: dict[Value, int] = {}
    for index, node in enumerate(graph.nodes):
        readers |= dict.fromkeys((ref.value for ref in node.refs), index)
    readers |= {ref.value: len(graph.nodes) for ref in operands(graph.output) if isinstance(ref, Ref)}

    def handed_on(end: int) -> float:
        values = [node.result.value for node in slicable_nodes[:end] if readers.get(node.result.value, -1) >= end]
        makers_write = all(is_planned(value.node) for value in values if value.node is not None)
        return sum(value.nbytes for value in values) if values and makers_write else math.inf

    last_large = next((index for index in reversed(large) if index < len(slicable_nodes)), None)
    while last_large is not None:
        least = min(range(last_large + 1, min(last_large + 1 + BEYOND, len(slicable_nodes)) + 1), key=handed_on)
        if handed_on(least) < math.inf:
            return least
        last_large = next((index for index in reversed(large) if index < last_large), None)
    return None


class _Slices:
    def __init__(self, graph: Graph, first: Sequence[Node], batch: int, images: int) -> None:
        self.old, self.first, self.images, self.count = graph, set(first), images, batch // images
        self.new = Graph(list(graph.inputs))
        self._whole: dict[Value, Value] = {value: value for value in graph.inputs}
        self._parts: dict[Value, list[Ref]] = {value: self._cut(value) for value in graph.inputs}

    def run(self) -> Graph:
        first_nodes = [node for node in self.old.nodes if node in self.first]
        for slice_index in range(self.count):
            for node in first_nodes:
                self._add(node, slice_index)
        for node in self.old.nodes:
            if node not in self.first:
                args, kwargs = map_operands(self._joined, node.args), map_operands(self._joined, node.kwargs)
                new_node = Node(node.function, args, kwargs, sources=node.sources)
                for value in node.values:
                    self._whole[value] = Value(value.shape, value.dtype, new_node)
                new_node.result = map_operands(self._joined, node.result)
                self.new.nodes.append(new_node)
        self.new.output = map_operands(self._joined, self.old.output)
        return self.new

    def _cut(self, value: Value) -> list[Ref]:
        """An input's slices."""
        if len(value.shape) != 4:
            return []
        shape, size = (self.images, *value.shape[1:]), value.nbytes // self.count
        return [Ref(value, shape, offset=slice_index * size) for slice_index in range(self.count)]

    def _add(self, node: Node, slice_index: int) -> None:
        def change(operand: Any) -> Any:
            return self._parts[operand.value][slice_index] if isinstance(operand, Ref) else operand

        new_node = Node(
            node.function, map_operands(change, node.args), map_operands(change, node.kwargs), sources=node.sources
        )
        value = Value((self.images, *node.result.shape[1:]), node.result.value.dtype, new_node)
        new_node.result = value.whole
        self._parts.setdefault(node.result.value, []).append(value.whole)
        self.new.nodes.append(new_node)

    def _joined(self, operand: Any) -> Any:
        """The same view of a whole value, whose slices are joined when it is first read."""
        if not isinstance(operand, Ref):
            return operand
        value = operand.value
        if value not in self._whole:
            node = Node(concatenate, (), {"tensors": list(self._parts[value]), "axis": 0})
            joined = Value(value.shape, value.dtype, node)
            node.result = joined.whole
            self.new.nodes.append(node)
            self._whole[value] = joined
        return replace(operand, value=self._whole[value])
