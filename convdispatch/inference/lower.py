"""A graph to a recorded program: each node's commands, in order, with what each node depends on."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ..api.policy import current_policy
from ..api.problem import ConvProblem
from ..api.quantization import Table
from ..calls.arguments import describe, transposed_shape
from ..calls.quantized import quantized_problem
from ..device.commands.recording import Recording, Slot
from ..device.tracing import tracing
from ..elementwise.apply import compute
from ..elementwise.joining import concatenation_buffer
from ..nn.convolution import dense
from ..nn.quantized import moving_table
from ..selection import dispatch
from ..selection.prepared import Prepared
from ..tensor import Tensor
from .graph import Graph, Node, Ref, Value, is_planned, map_operands, operands
from .passes.incremental_concat import incremental_concats
from .weights import Weights

if TYPE_CHECKING:
    import pyopencl as cl


@dataclass(frozen=True)
class LoweredNode:
    """What a node became: for a convolution its problem and its plan."""

    name: str
    problem: ConvProblem | None = None
    prepared: Prepared | None = None
    sources: tuple[str, ...] = ()


@dataclass(frozen=True)
class Lowered:
    """A recording, its inputs and output, the nodes (a command's ``step`` is a node's place) and their needs."""

    recording: Recording
    inputs: list[Tensor]
    output: Any
    nodes: list[LoweredNode]
    needs: dict[int, tuple[int, ...]]


def lower(
    graph: Graph,
    queue: cl.CommandQueue,
    ready: Mapping[ConvProblem, Prepared] | None = None,
    weights: Weights | None = None,
) -> Lowered:
    """Record every node of ``graph`` once; plans that are not ``ready`` are made, and constant weights packed, now.

    With ``weights`` these are packed once ``weights.settle()`` has returned.
    """
    taken = weights or Weights(queue, graph.aside)
    with tracing(None):
        lowered = _Lowering(graph, queue, ready or {}, taken).run()
    if weights is None:
        taken.settle()
    return lowered


def problem_of(node: Node) -> ConvProblem:
    """What a convolution with constant weights asks to solve."""
    given = node.kwargs
    x = given["x"]
    if node.name == QUANTIZED:
        return _quantized_problem(node, isinstance(given["w"], Tensor))
    flags = {name: given.get(name) is not None for name in ("bias", "residual")}
    options = {name: _hashable(given[name]) for name in _OPTIONS if name in given}
    dtype = (x.value if isinstance(x, Ref) else x).dtype.name
    if node.name == TRANSPOSED:
        options["output_padding"] = _hashable(given.get("output_padding", 0))
        return _described_transposed(x.shape, given["w"].shape, dtype, **flags, **options)
    return _described(x.shape, given["w"].shape, dtype, **flags, **options)


def _quantized_problem(node: Node, constant_weights: bool) -> ConvProblem:
    given = node.kwargs
    options = {name: given[name] for name in _OPTIONS[:5] if name in given}
    problem = quantized_problem(
        given["x"].shape, given["w"].shape, given["x"].value.dtype.name, given["quantization"],
        residual=given.get("residual") is not None, **options,
    )  # fmt: skip
    return problem.replace(constant_weights=True) if constant_weights else problem


QUANTIZED, TRANSPOSED = "quantized_convolution", "transposed_convolution"
_OPTIONS = ("stride", "padding", "dilation", "groups", "layout", "math", "activation")


def _hashable(option: Any) -> Any:
    return tuple(map(_hashable, option)) if isinstance(option, list | tuple) else option


@functools.lru_cache(maxsize=1024)
def _described(x_shape: tuple[int, ...], w_shape: tuple[int, ...], dtype: str, **given: Any) -> ConvProblem:
    """One problem for layers alike, however often they are asked."""
    return describe("fwd", x_shape, w_shape, None, dtype, **_DENSE | given, constant_weights=True)


@functools.lru_cache(maxsize=1024)
def _described_transposed(
    x_shape: tuple[int, ...], w_shape: tuple[int, ...], dtype: str, output_padding: Any, **given: Any
) -> ConvProblem:
    """The data gradient that a transposed convolution is."""
    geometry = {name: (_DENSE | given)[name] for name in _DENSE}
    shape, pads, _ = transposed_shape(x_shape, w_shape, output_padding=output_padding, **geometry)
    options = _DENSE | given | {"padding": tuple(pads)}
    return describe("bwd_data", shape, w_shape, x_shape, dtype, **options, constant_weights=True)


_DENSE: dict[str, Any] = {"stride": 1, "padding": 0, "dilation": 1, "groups": 1, "layout": "nchw"}


class _Lowering:
    def __init__(
        self, graph: Graph, queue: cl.CommandQueue, ready: Mapping[ConvProblem, Prepared], weights: Weights
    ) -> None:
        self._ready, self._weights = ready, weights
        self.graph, self.recording = graph, Recording(queue)
        self._memory: dict[Value, Tensor] = {}
        self._align = self.recording.device.mem_base_addr_align // 8
        self._place = {node: place for place, node in enumerate(graph.nodes)}
        self._joins = self._find_joins()
        self._grown = {
            node: later for node, later in incremental_concats(graph).items() if not self._is_contiguous(later)
        }

        self._written = self._find_written()

    def run(self) -> Lowered:
        """All nodes in order."""
        self._await_constants()
        inputs = [self._tensor(value, persistent=True) for value in self.graph.inputs]
        nodes = []
        for place, node in enumerate(self.graph.nodes):
            self.recording.step = place
            nodes.append(replace(self._node(node), sources=node.sources))
        output = map_operands(self._operand, self.graph.output)
        map_operands(_keep, output)
        return Lowered(self.recording, inputs, output, nodes, self._needs())

    def _await_constants(self) -> None:
        """Weights may just be computed on the queue of the net, with which the recording's has no order."""
        given = [x for node in self.graph.nodes for x in operands((node.args, node.kwargs))]
        for queue in {x.queue for x in given if not isinstance(x, Ref)} - {self.recording.queue}:
            queue.finish()

    def _needs(self) -> dict[int, tuple[int, ...]]:
        return {
            place: tuple(sorted({self._place[ref.value.node] for ref in node.refs if ref.value.node is not None}))
            for place, node in enumerate(self.graph.nodes)
        }

    def _tensor(self, value: Value, persistent: bool = False) -> Tensor:
        if value not in self._memory:
            slot = self.recording.allocate(value.nbytes, persistent=persistent)
            self._memory[value] = Tensor(slot, value.shape, value.dtype, self.recording)
        return self._memory[value]

    def _operand(self, operand: Any) -> Tensor:
        """A tensor whose queue is the recording: a view of a value's slot, or of a parameter's memory."""
        if isinstance(operand, Ref):
            base = self._tensor(operand.value)
            if operand.is_whole:  # perhaps a part of what it is joined to, with gaps
                return base
            offset = base.offset + operand.offset
            return Tensor(base.base_data, operand.shape, base.dtype, self.recording, operand.strides, offset)
        return Tensor(operand.base_data, operand.shape, operand.dtype, self.recording, operand.strides, operand.offset)

    def _node(self, node: Node) -> LoweredNode:
        if is_planned(node) or node.name == QUANTIZED:
            return self._convolution(node)
        if node in self._joins.values() and self._is_joined(node):
            return LoweredNode(node.name)
        if node in self._grown or node in self._grown.values() or node in self._written.values():
            self._grow(node)
            return LoweredNode(node.name)
        if node in self._written:
            self._write_part(node)
            return LoweredNode(node.name)
        answer = node.function(*map_operands(self._operand, node.args), **map_operands(self._operand, node.kwargs))
        self._bind(node.result, answer)
        return LoweredNode(node.name)

    def _bind(self, result: Any, answer: Any) -> None:
        """Note where an operation put its results."""
        if isinstance(result, Ref):
            if result.value not in self._memory:
                self._memory[result.value] = answer
        elif isinstance(result, list | tuple):
            for one, other in zip(result, answer, strict=True):
                self._bind(one, other)

    def _convolution(self, node: Node) -> LoweredNode:
        given, recording = node.kwargs, self.recording
        x = self._operand(given["x"])
        x = dense(x)
        problem = problem_of(node)
        prepared = self._ready.get(problem) or dispatch.prepare(
            problem, recording.context, replace(current_policy(), tier=None)
        )
        planned = is_planned(node)
        weights = self._weights.take(given["w"], prepared) if planned else self._start(dense(self._operand(given["w"])))
        y = self._result(node)
        extras = [
            None if given.get(name) is None else self._start(self._operand(given[name]))
            for name in ("bias", "residual")
            if name == "residual" or node.name != QUANTIZED
        ]
        extras = [self._table(node, problem), *extras] if node.name == QUANTIZED else extras
        read, written = self._start(x), self._start(y)
        x, y = (written, read) if problem.direction == "bwd_data" else (read, written)
        prepared.enqueue(recording, x, weights, y, *extras)  # type: ignore[arg-type]
        return LoweredNode(node.name, problem, prepared)

    def _table(self, node: Node, problem: ConvProblem) -> Any:
        """What a quantized convolution reads in the place of a bias."""
        given, queue = node.kwargs, self.recording.queue
        words = given["quantization"].table(
            problem.oc, given.get("bias"), activation=given.get("activation"), residual=problem.residual
        )
        if given.get("x_zero_point") is None:
            return Tensor.from_numpy(words, queue).base_data
        place = np.zeros_like(words)
        words[Table.x_zero], place[Table.x_zero] = 0, 1
        parts = [self._operand(Tensor.from_numpy(each, queue)) for each in (words, place)]
        zero = self._operand(given["x_zero_point"])
        return self._start(moving_table(*parts, dense(zero).reshape(1)))

    def _start(self, tensor: Tensor) -> Any:
        """Memory that begins at the tensor's first element; a copy where the device lets no buffer begin there."""
        base = tensor.base_data
        if tensor.offset == 0 and (not isinstance(base, Slot) or base.offset == 0):
            return base
        start = tensor.offset + (base.offset if isinstance(base, Slot) else 0)
        if start % self._align:
            return tensor.copy().base_data
        return base.get_sub_region(tensor.offset, tensor.nbytes)

    # --- concatenation -----------------------------------------------------------------------------------------------

    def _find_joins(self) -> dict[Value, Node]:
        """Results of convolutions that a concatenation reads, where parts of its result are contiguous."""
        found: dict[Value, Node] = {}
        for node in self.graph.nodes:
            if node.name != "concatenate":
                continue
            if self._is_contiguous(node):
                parts = [ref.value for ref in node.kwargs["tensors"]]
                if len(set(parts)) == len(parts):
                    found |= {value: node for value in parts if value not in found}
        return found

    @staticmethod
    def _is_contiguous(join: Node) -> bool:
        """Whether a concatenation reads whole values, and its result holds each in one piece."""
        tensors, axis = join.kwargs["tensors"], join.kwargs.get("axis", 1)
        contiguous = all(size == 1 for size in join.result.shape[: axis % len(join.result.shape)])
        return contiguous and all(isinstance(ref, Ref) and ref.is_whole for ref in tensors)

    def _find_written(self) -> dict[Node, Node]:
        """Formulas that a concatenation alone reads, whose result holds each part with gaps: written into it."""
        uses, found = self.graph.uses(), {}
        for join in self.graph.nodes:
            if join.name != "concatenate" or self._is_contiguous(join) or join in self._joins.values():
                continue
            for ref in join.kwargs["tensors"]:
                maker = ref.value.node if isinstance(ref, Ref) and ref.is_whole else None
                if maker is None or maker.name != "apply" or maker.args or uses[ref.value] != 1:
                    continue
                if isinstance(maker.kwargs.get("expression"), str) and maker.kwargs.get("out") is None:
                    found[maker] = join
        return found

    def _write_part(self, node: Node) -> None:
        """A formula's result in its place of the concatenation that reads it."""
        join, value = self._written[node], node.result.value
        place = next(i for i, ref in enumerate(join.kwargs["tensors"]) if ref.value is value)
        part = self._parts_of(join)[place]
        given = map_operands(self._operand, {k: v for k, v in node.kwargs.items() if k not in ("expression", "dtype")})
        compute(node.kwargs["expression"], given, out=part)
        self._memory[value] = part

    def _result(self, node: Node) -> Tensor:
        """Where a convolution writes: memory of its own, or its part of a concatenation."""
        value = node.result.value
        if value not in self._memory:
            part = self._part(value)
            if part is not None:
                self._memory[value] = part
        return self._tensor(value)

    def _part(self, value: Value) -> Tensor | None:
        """A value's part of the concatenation that reads it; None where there is none that a buffer can begin at."""
        join = self._joins.get(value)
        if join is None:
            return None
        whole, shapes = self._memory.get(join.result.value), self._shapes(join)
        if whole is None:  # what is joined may be joined again: a dense block is one memory
            whole = self._part(join.result.value) or shapes[0]
        place = next(i for i, ref in enumerate(join.kwargs["tensors"]) if ref.value is value)
        part = _parts_like(whole, shapes[1])[place]
        if part.offset % self._align:
            return None
        self._memory[join.result.value] = whole
        return part

    def _shapes(self, join: Node) -> tuple[Tensor, list[Tensor]]:
        """Memory for a concatenation's result, of which nothing is taken before it is used, and its parts."""
        tensors, axis = join.kwargs["tensors"], join.kwargs.get("axis", 1)
        return concatenation_buffer([ref.shape for ref in tensors], axis, join.result.value.dtype, self.recording)  # type: ignore[arg-type]

    def _grow(self, node: Node) -> None:
        """A concatenation as a part of the one that it is joined into; what does not lie there yet is copied."""
        for part, ref in zip(self._parts_of(node), node.kwargs["tensors"], strict=True):
            source = self._operand(ref)
            if source.base_data is not part.base_data or source.offset != part.offset:
                compute("x", {"x": source}, out=part)

    def _parts_of(self, node: Node) -> list[Tensor]:
        """The parts of a concatenation's memory, which is made here, or is a part of a later one's."""
        value, later = node.result.value, self._grown.get(node)
        if value not in self._memory:
            if later is None:
                self._memory[value] = self._shapes(node)[0]
            else:
                place = next(i for i, ref in enumerate(later.kwargs["tensors"]) if ref.value is value)
                self._memory[value] = self._parts_of(later)[place]
        whole, axis = self._memory[value], node.kwargs.get("axis", 1)
        before, starts = (slice(None),) * (axis % whole.ndim), [0]
        for ref in node.kwargs["tensors"]:
            starts.append(starts[-1] + ref.shape[axis])
        return [whole[(*before, slice(start, end))] for start, end in itertools.pairwise(starts)]

    def _is_joined(self, node: Node) -> bool:
        """Copy what does not stand in a concatenation's memory yet; whether the memory is there."""
        whole = self._memory.get(node.result.value)
        if whole is None and node.result.value in self._joins and node.result.value not in self._memory:
            whole = self._joined_again(node)
        if whole is None:
            return False
        for part, ref in zip(_parts_like(whole, self._shapes(node)[1]), node.kwargs["tensors"], strict=True):
            source = self._operand(ref)
            if source.base_data is not part.base_data or source.offset != part.offset:
                self.recording.copy(part.base_data, source.base_data, source.nbytes, source.offset, part.offset)
        return True

    def _joined_again(self, node: Node) -> Tensor | None:
        """The place of a concatenation's result in the next one, where its own parts lie contiguously too."""
        if not self._is_contiguous(node):
            return None
        part = self._part(node.result.value)
        if part is not None:
            self._memory[node.result.value] = part
        return part


def _parts_like(whole: Tensor, parts: list[Tensor]) -> list[Tensor]:
    return [Tensor(whole.base_data, p.shape, p.dtype, whole.queue, p.strides, whole.offset + p.offset) for p in parts]


def _keep(tensor: Tensor) -> Tensor:
    if isinstance(tensor.base_data, Slot):
        tensor.base_data.root.persistent = True
    return tensor
