"""A traced net: values, the nodes that compute them, and views of values as the nodes' operands."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import pyopencl as cl

from ..calls.arguments import GEOMETRY, transposed_shape
from ..device.background import Threads
from ..device.tracing import map_structure
from ..elementwise.tensor import Tensor
from ..selection.prepared import Prepared, constant

CONVOLUTIONS = ("convolution", "quantized_convolution", "transposed_convolution")


@dataclass(eq=False)
class Value:
    """Memory that a node writes, or that the caller gives: ``shape`` elements of ``dtype``, contiguous."""

    shape: tuple[int, ...]
    dtype: np.dtype
    node: Node | None = None
    """The node that computes the value; None for an input of the net."""

    @property
    def nbytes(self) -> int:
        """Bytes of all elements."""
        return int(np.prod(self.shape, dtype=np.int64)) * self.dtype.itemsize

    @property
    def whole(self) -> Ref:
        """Return a view of all elements of the value."""
        return Ref(self, self.shape)


@dataclass(frozen=True)
class Ref:
    """A view of a value, like a tensor's view of memory; ``strides`` None means contiguous."""

    value: Value
    shape: tuple[int, ...]
    strides: tuple[int, ...] | None = None
    offset: int = 0

    @property
    def is_whole(self) -> bool:
        """All elements of the value in its own shape."""
        return self.offset == 0 and self.strides is None and self.shape == self.value.shape

    @property
    def is_flat(self) -> bool:
        """All elements of the value as they lie, whatever the shape."""
        return self.offset == 0 and self.strides is None and np.prod(self.shape) == np.prod(self.value.shape)


@dataclass(eq=False)
class Node:
    """``function(*args, **kwargs)``, where tensors are Refs to values, or tensors that stay as they are (weights)."""

    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    result: Any = None
    """The results as Refs, in the structure that the function returns."""
    sources: tuple[str, ...] = ()
    """The model file's names of the nodes that this node computes, fused ones included; empty if the net has no
    names."""

    @property
    def name(self) -> str:
        """The operation's name."""
        return self.function.__name__

    @property
    def refs(self) -> list[Ref]:
        """The views of values among the operands."""
        return [value for value in operands((self.args, self.kwargs)) if isinstance(value, Ref)]

    @property
    def values(self) -> list[Value]:
        """Return the values that the node computes."""
        produced = [ref.value for ref in operands(self.result) if isinstance(ref, Ref)]
        return [value for value in produced if value.node is self]


def is_planned(node: Node) -> bool:
    """Return whether a node is a convolution with constant weights, which is planned and packed when the net is
    lowered."""
    return node.name in CONVOLUTIONS and isinstance(node.kwargs["w"], Tensor) and not _is_lengthened(node)


def _is_lengthened(node: Node) -> bool:
    """Whether a transposed convolution is made of two operations, the first of which appends zeros to its input."""
    if node.name != "transposed_convolution" or not node.kwargs.get("output_padding"):
        return False
    geometry = {name: node.kwargs[name] for name in (*GEOMETRY, "output_padding") if name in node.kwargs}
    return any(transposed_shape(node.kwargs["x"].shape, node.kwargs["w"].shape, **geometry)[2])


class Background:
    """Computes tensors in a thread, one after the other.

    It multiplies batch norms into weights while the net is planned; each is packed as soon as its plan is there.
    """

    def __init__(self) -> None:
        self._thread = Threads(1, "convdispatch-weights")
        self._pending: dict[int, Future[Any]] = {}
        """The background computations of weights, by the weights' memory, which views share."""

    def begin(self, made: Tensor, compute: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
        """Let ``compute`` fill ``made``."""
        self._pending[id(made.base_data)] = self._thread.submit(partial(compute, *args, **kwargs))

    def wait(self, made: Tensor) -> None:
        """Wait for a tensor, if it is computed here."""
        pending = self._pending.get(id(made.base_data))
        if pending is not None:
            pending.result()

    def end(self) -> None:
        """Wait for all of them."""
        for each in self._pending.values():
            each.result()
        self._pending = {}


@dataclass(eq=False)
class Graph:
    """Nodes in an order in which they can run; ``output`` holds Refs in the structure that the net returns."""

    inputs: list[Value]
    nodes: list[Node] = field(default_factory=list)
    output: Any = None
    background: Background = field(default_factory=Background)
    """The background work that still computes some of the weights."""

    def uses(self) -> dict[Value, int]:
        """Return the number of operands, of nodes and of the output, that view each value."""
        count: dict[Value, int] = {}
        for ref in [*(ref for node in self.nodes for ref in node.refs), *operands(self.output)]:
            if isinstance(ref, Ref):
                count[ref.value] = count.get(ref.value, 0) + 1
        return count

    def change(self, change: Callable[[Any], Any]) -> None:
        """Replace every operand of the nodes, and of the output, by what ``change`` returns for it."""
        for node in self.nodes:
            node.args, node.kwargs = map_operands(change, node.args), map_operands(change, node.kwargs)
        self.output = map_operands(change, self.output)

    def take_in(self, producer: Node, node: Node, **options: Any) -> Node:
        """One operation in the place of ``node``, whose value it makes: the producer's, with ``options`` more."""
        fused = Node(producer.function, (), {**producer.kwargs, **options}, sources=producer.sources + node.sources)
        value = node.result.value
        value.node, value.shape = fused, producer.result.value.shape
        fused.result = value.whole
        self.nodes[self.nodes.index(node)] = fused
        self.nodes.remove(producer)
        return fused

    def summands(self, node: Node) -> list[Ref]:
        """The two flat views whose sum an element-wise node is, that of the later operation first; else none."""
        summand_by_name = {name: value for name, value in node.kwargs.items() if name != "expression"}
        text = str(node.kwargs.get("expression", "")).replace(" ", "")
        sides = list(summand_by_name.values())
        if len(sides) != 2 or set(text.split("+")) != set(summand_by_name):
            return []
        if not all(isinstance(side, Ref) and side.is_flat and side.shape == node.result.shape for side in sides):
            return []
        order = {each: index for index, each in enumerate(self.nodes)}
        return sorted(sides, key=lambda side: order.get(side.value.node, -1), reverse=True)

    def substitute(self, old: Value, new: Value) -> None:
        """Let every view of ``old`` be the same view of ``new``."""
        self.change(
            lambda operand: (
                replace(operand, value=new) if isinstance(operand, Ref) and operand.value is old else operand
            )
        )

    def move(self, queue: Any) -> None:
        """Copy the tensors (weights) that lie in another context than ``queue``'s to its device."""
        moved_tensors: dict[int, Tensor] = {}

        def change(operand: Any) -> Any:
            if not isinstance(operand, Tensor) or operand.queue.context == queue.context:
                return operand
            if id(operand) not in moved_tensors:
                self.background.end()
                moved_tensors[id(operand)] = Tensor.from_numpy(operand.numpy(), queue)
            return moved_tensors[id(operand)]

        self.change(change)

    def prune(self) -> None:
        """Drop the nodes whose results nobody uses."""
        needed = {ref.value for ref in operands(self.output) if isinstance(ref, Ref)}
        live = []
        for node in reversed(self.nodes):
            if any(value in needed for value in node.values):
                live.append(node)
                needed |= {ref.value for ref in node.refs}
        self.nodes = live[::-1]


_OPERANDS = (Ref, Tensor)


def operands(structure: Any) -> list[Any]:
    """The Refs and tensors in nested tuples, lists and dicts."""
    if isinstance(structure, _OPERANDS):
        return [structure]
    if isinstance(structure, dict):
        structure = structure.values()
    elif not isinstance(structure, (list, tuple)):
        return []
    return [found for part in structure if not isinstance(part, (str, int)) for found in operands(part)]


def map_operands(change: Callable[[Any], Any], structure: Any) -> Any:
    """The structure with every Ref and tensor replaced by what ``change`` returns."""
    return map_structure(_OPERANDS, change, structure)


class Weights:
    """Weights in the forms that plans take, for commands of ``queue``; safe from several threads."""

    def __init__(self, queue: cl.CommandQueue, background: Background) -> None:
        self._queue, self._background = queue, background
        self._made: dict[Any, Any] = {}
        self._packing: list[tuple[Any, Tensor | None]] = []
        """The events of weights that are being packed, each with a tensor that must live until then."""

    def take(self, given: Tensor, prepared: Prepared) -> Any:
        """Return memory with the weights in a plan's form; nodes that share weights share the memory."""
        key = id(given), prepared.pack_key if prepared.packed_size else None
        return self._made[key] if key in self._made else self._made.setdefault(key, self._make(given, prepared))

    def _make(self, given: Tensor, prepared: Prepared) -> Any:
        w = given
        self._background.wait(w)
        if w.offset or not w.contiguous:
            w = w.copy()
        # Work on different queues has no order, so the weights' own queue is finished first.
        if w.queue != self._queue:
            w.queue.finish()
        if not prepared.packed_size:
            # The weights are copied, so that later changes of them do not reach the net.
            return (w.copy() if w is given else w).base_data
        memory, event = constant(w).packed(prepared, self._queue, w.base_data)
        if event is not None:
            # A copy on the same queue may be freed: its memory serves commands enqueued after the packing.
            self._packing.append((event, None if w.queue == self._queue else w))
        return memory

    def settle(self) -> None:
        """Wait until all weights are packed and copied: replays have no event to wait for, and may run on no queue at
        all."""
        while self._packing:
            self._packing.pop()[0].wait()
        self._queue.finish()
