"""Turns a graph into a recorded program: each node's commands, in order."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyopencl as cl

from ..api.policy import current_policy
from ..api.problem import ConvProblem
from ..api.quantization import Table
from ..calls.arguments import GEOMETRY, cached_problem, describe, hashable, transposed_shape
from ..calls.quantized import quantized_problem
from ..device.commands.recording import Recording, Slot
from ..device.tracing import tracing
from ..elementwise.apply import compute
from ..elementwise.joining import concatenation_buffer
from ..elementwise.tensor import Tensor
from ..nn.convolution import dense
from ..nn.quantized import moving_table
from ..selection import dispatch
from ..selection.prepared import Prepared
from .graph import Graph, Node, Ref, Value, Weights, is_planned, map_operands, operands
from .passes.incremental_concat import incremental_concats


@dataclass(frozen=True)
class LoweredNode:
    """The result of lowering a node: for a convolution, its problem and its plan."""

    name: str
    problem: ConvProblem | None = None
    prepared: Prepared | None = None
    sources: tuple[str, ...] = ()


@dataclass(frozen=True)
class Lowered:
    """A recording, its inputs and output, the nodes (a command's ``step`` is a node's place)."""

    recording: Recording
    inputs: list[Tensor]
    output: Any
    nodes: list[LoweredNode]


def lower(
    graph: Graph,
    queue: cl.CommandQueue,
    ready: Mapping[ConvProblem, Prepared] | None = None,
    weights: Weights | None = None,
) -> Lowered:
    """Record every node of ``graph`` once; plans that are not ``ready`` are made, and constant weights packed, now.

    With ``weights`` these are packed once ``weights.settle()`` has returned.
    """
    taken = weights or Weights(queue, graph.background)
    with tracing(None):
        lowered = _Lowering(graph, queue, ready or {}, taken).run()
    if weights is None:
        taken.settle()
    return lowered


def problem_of(node: Node) -> ConvProblem:
    """Return the ConvProblem of a convolution with constant weights."""
    arguments = node.kwargs
    x = arguments["x"]
    if node.name == QUANTIZED:
        options = {name: arguments[name] for name in GEOMETRY if name in arguments}
        options["residual"] = arguments.get("residual") is not None
        dtype, quantization = x.value.dtype.name, arguments["quantization"]
        problem = quantized_problem(x.shape, arguments["w"].shape, dtype, quantization, **options)
        return problem.replace(constant_weights=True) if isinstance(arguments["w"], Tensor) else problem
    flags = {name: arguments.get(name) is not None for name in ("bias", "residual")}
    options = {name: hashable(arguments[name]) for name in _OPTIONS if name in arguments}
    dtype = (x.value if isinstance(x, Ref) else x).dtype.name
    if node.name == TRANSPOSED:
        options["output_padding"] = hashable(arguments.get("output_padding", 0))
        return _described_transposed(x.shape, arguments["w"].shape, dtype, **flags, **options)
    return cached_problem("fwd", x.shape, arguments["w"].shape, None, dtype, **flags, **options, constant_weights=True)


QUANTIZED, TRANSPOSED = "quantized_convolution", "transposed_convolution"
_OPTIONS = (*GEOMETRY, "math", "activation")


@functools.lru_cache(maxsize=1024)
def _described_transposed(
    x_shape: tuple[int, ...], w_shape: tuple[int, ...], dtype: str, output_padding: Any, **given: Any
) -> ConvProblem:
    """The data gradient that a transposed convolution is."""
    geometry = {name: given[name] for name in GEOMETRY if name in given}
    shape, pads, _ = transposed_shape(x_shape, w_shape, output_padding=output_padding, **geometry)
    given["padding"] = tuple(pads)
    return describe("bwd_data", shape, w_shape, x_shape, dtype, **given, constant_weights=True)


class _Lowering:
    def __init__(
        self, graph: Graph, queue: cl.CommandQueue, ready: Mapping[ConvProblem, Prepared], weights: Weights
    ) -> None:
        self._ready, self._weights = ready, weights
        self.graph, self.recording = graph, Recording(queue)
        self._memory: dict[Value, Tensor] = {}
        self._align = self.recording.device.mem_base_addr_align // 8
        self._plan_concatenations()

    def run(self) -> Lowered:
        self._await_constants()
        inputs = [self._tensor(value, persistent=True) for value in self.graph.inputs]
        nodes = []
        for index, node in enumerate(self.graph.nodes):
            self.recording.step = index
            nodes.append(replace(self._node(node), sources=node.sources))
        output = map_operands(self._operand, self.graph.output)
        map_operands(_keep, output)
        return Lowered(self.recording, inputs, output, nodes)

    def _await_constants(self) -> None:
        """Weights may just be computed on the queue of the net, with which the recording's has no order."""
        all_operands = [x for node in self.graph.nodes for x in operands((node.args, node.kwargs))]
        for queue in {x.queue for x in all_operands if not isinstance(x, Ref)} - {self.recording.queue}:
            queue.finish()

    def _tensor(self, value: Value, persistent: bool = False) -> Tensor:
        if value not in self._memory:
            slot = self.recording.allocate(value.nbytes, persistent=persistent)
            self._memory[value] = Tensor(slot, value.shape, value.dtype, self.recording)
        return self._memory[value]

    def _operand(self, operand: Any) -> Tensor:
        """Return an operand as a tensor whose queue is the recording: a view of a value's slot, or of a parameter's
        memory."""
        if isinstance(operand, Ref):
            base = self._tensor(operand.value)
            # The operand may be a part of a concatenation's memory, and then have gaps between its rows.
            if operand.is_whole:
                return base
            offset = base.offset + operand.offset
            return Tensor(base.base_data, operand.shape, base.dtype, self.recording, operand.strides, offset)
        return Tensor(operand.base_data, operand.shape, operand.dtype, self.recording, operand.strides, operand.offset)

    def _node(self, node: Node) -> LoweredNode:
        if is_planned(node) or node.name == QUANTIZED:
            return self._convolution(node)
        if node.name == "concatenate" and self._is_joined(node):
            return LoweredNode(node.name)
        if node in self._formulas:
            self._write_part(node)
            return LoweredNode(node.name)
        result = node.function(*map_operands(self._operand, node.args), **map_operands(self._operand, node.kwargs))
        self._bind(node.result, result)
        return LoweredNode(node.name)

    def _bind(self, result: Any, computed: Any) -> None:
        """Note where an operation put its results."""
        if isinstance(result, Ref):
            if result.value not in self._memory:
                self._memory[result.value] = computed
        elif isinstance(result, list | tuple):
            for part, computed_part in zip(result, computed, strict=True):
                self._bind(part, computed_part)

    def _convolution(self, node: Node) -> LoweredNode:
        arguments, recording = node.kwargs, self.recording
        x = self._operand(arguments["x"])
        x = dense(x)
        problem = problem_of(node)
        prepared = self._ready.get(problem) or dispatch.prepare(
            problem, recording.context, replace(current_policy(), tier=None)
        )
        planned = is_planned(node)
        weights = (
            self._weights.take(arguments["w"], prepared)
            if planned
            else self._start(dense(self._operand(arguments["w"])))
        )
        y = self._result(node)
        extras = [
            None if arguments.get(name) is None else self._start(dense(self._operand(arguments[name])))
            for name in ("bias", "residual")
            if name == "residual" or node.name != QUANTIZED
        ]
        extras = [self._table(node, problem), *extras] if node.name == QUANTIZED else extras
        read, written = self._start(x), self._start(y)
        x, y = (written, read) if problem.direction == "bwd_data" else (read, written)
        prepared.enqueue(recording, x, weights, y, *extras)  # type: ignore[arg-type]
        return LoweredNode(node.name, problem, prepared)

    def _table(self, node: Node, problem: ConvProblem) -> Any:
        """Return the table that a quantized convolution reads instead of a bias."""
        arguments, queue = node.kwargs, self.recording.queue
        table = arguments["quantization"].table(
            problem.oc, arguments.get("bias"), activation=arguments.get("activation"), residual=problem.residual
        )
        if arguments.get("x_zero_point") is None:
            return Tensor.from_numpy(table, queue).base_data
        is_zero_point = np.zeros_like(table)
        table[Table.x_zero], is_zero_point[Table.x_zero] = 0, 1
        parts = [self._operand(Tensor.from_numpy(each, queue)) for each in (table, is_zero_point)]
        zero = self._operand(arguments["x_zero_point"])
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

    # --- concatenations: parts are views of the result's memory, computed in place where they can be -----------------

    def _plan_concatenations(self) -> None:
        """Find which values are computed in their place of a concatenation that reads them."""
        uses, self._joins, self._formulas = self.graph.uses(), dict[Value, Node](), dict[Node, Node]()
        joins = [node for node in self.graph.nodes if node.name == "concatenate"]
        self._within = {
            node: later for node, later in incremental_concats(self.graph).items() if not _is_contiguous(later)
        }
        """The concatenations whose result is a strided part of a later concatenation's result."""
        for join in joins:
            parts = [ref.value for ref in join.kwargs["tensors"] if isinstance(ref, Ref) and ref.is_whole]
            if _is_contiguous(join):
                if len(set(parts)) == len(parts):
                    self._joins |= {value: join for value in parts if value not in self._joins}
                continue
            for value in parts:
                maker = value.node
                if maker is None or maker.name != "apply" or maker.args or uses[value] != 1:
                    continue
                if isinstance(maker.kwargs.get("expression"), str) and maker.kwargs.get("out") is None:
                    self._formulas[maker] = join
        self._filled = {*self._within, *self._within.values(), *self._formulas.values()}
        """The concatenations whose memory is allocated before they are computed."""

    def _write_part(self, node: Node) -> None:
        """Write a formula's result into its part of the concatenation that reads it."""
        part = self._part(self._formulas[node], node.result.value)
        operands = map_operands(
            self._operand, {k: v for k, v in node.kwargs.items() if k not in ("expression", "dtype")}
        )
        compute(node.kwargs["expression"], operands, out=part)
        self._memory[node.result.value] = part

    def _result(self, node: Node) -> Tensor:
        """Return the memory that a convolution writes: its own, or its part of a concatenation."""
        value = node.result.value
        part = None if value in self._memory else self._buffer_part(value)
        if part is not None:
            self._memory[value] = part
        return self._tensor(value)

    def _buffer_part(self, value: Value) -> Tensor | None:
        """A value's part, without gaps, of the concatenation that reads it; None where no buffer can begin there."""
        join = self._joins.get(value)
        part = None if join is None else self._part(join, value)
        return part if part is not None and part.offset % self._align == 0 else None

    def _part(self, join: Node, value: Value) -> Tensor:
        index = next(i for i, ref in enumerate(join.kwargs["tensors"]) if ref.value is value)
        return self._parts(join)[index]

    def _parts(self, join: Node) -> list[Tensor]:
        """The parts of a concatenation's memory, which is allocated here, or is a part of a later one's."""
        value, later = join.result.value, self._within.get(join)
        axis, shapes = join.kwargs.get("axis", 1), [ref.shape for ref in join.kwargs["tensors"]]
        if value not in self._memory:
            part = self._buffer_part(value) if later is None else self._part(later, value)
            if part is None:  # The concatenation's memory has not been allocated yet.
                part, _ = concatenation_buffer(shapes, axis, value.dtype, self.recording)  # type: ignore[arg-type]
            self._memory[value] = part
        joined, axis = self._memory[value], axis % len(value.shape)
        starts = itertools.accumulate((shape[axis] for shape in shapes), initial=0)
        return [joined[(slice(None),) * axis + (slice(*between),)] for between in itertools.pairwise(starts)]

    def _is_joined(self, node: Node) -> bool:
        """Copy to a concatenation's memory what is not there yet; whether there is memory already."""
        value = node.result.value
        if node not in self._filled and value not in self._memory and self._buffer_part(value) is None:
            return False
        for part, ref in zip(self._parts(node), node.kwargs["tensors"], strict=True):
            source = self._operand(ref)
            if source.base_data is part.base_data and source.offset == part.offset:
                continue
            if _is_contiguous(node):
                offsets = source.offset, part.offset
                self.recording.copy(part.base_data, source.base_data, source.nbytes, offsets)
            else:
                compute("x", {"x": source}, out=part)
        return True


def _is_contiguous(join: Node) -> bool:
    """Whether a concatenation reads whole values, and its result holds each in one piece."""
    tensors, axis = join.kwargs["tensors"], join.kwargs.get("axis", 1)
    contiguous = all(size == 1 for size in join.result.shape[: axis % len(join.result.shape)])
    return contiguous and all(isinstance(ref, Ref) and ref.is_whole for ref in tensors)


def _keep(tensor: Tensor) -> Tensor:
    if isinstance(tensor.base_data, Slot):
        tensor.base_data.root.persistent = True
    return tensor
