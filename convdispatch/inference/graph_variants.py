"""Turns a net into its graphs: traced and fused, in the requested dtype and math, and in each layout."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pyopencl as cl

from ..api.errors import InvalidArgument
from ..api.problem import MATHS, ConvProblem
from ..device import runtime
from ..elementwise.tensor import Tensor
from .graph import Graph, is_planned
from .layout_planning import Ranked, with_mixed_layouts
from .lower import problem_of
from .passes.fusion import fuse
from .passes.layout import LAYOUTS, MIXED, relayout
from .passes.precision import dtype_of, traced_in, with_dtype, with_math
from .trace import trace


def traced_and_fused(
    net: Callable[..., Any], shapes: Sequence[Sequence[int]], dtype: Any, queue: cl.CommandQueue, math: str | None
) -> Graph:
    """The graph of a net for inputs of ``shapes``, as ``build`` describes them, with what its convolutions take in."""
    if math is not None and math not in MATHS:
        raise InvalidArgument(f"math must be None or one of {', '.join(MATHS)}, got {math!r}")
    each = isinstance(dtype, list | tuple)
    target_dtype = dtype if each else dtype_of(dtype)
    traced = target_dtype if each else traced_in(net, target_dtype)
    # A module in training mode would update its batch-norm statistics and apply dropout.
    training = getattr(net, "training", False)
    if training:
        net.eval()  # type: ignore[attr-defined]
    try:
        graph = fuse(trace(net, shapes, traced, queue), is_rounded=traced != target_dtype)
        if traced != target_dtype:
            graph = with_dtype(graph, target_dtype)
        if math is not None:
            graph = with_math(graph, math)
        graph.move(queue)
        return graph
    finally:
        if training:
            net.train()  # type: ignore[attr-defined]


def layouts_of(graph: Graph, wanted: str | None) -> tuple[str | None, ...]:
    """Return the layouts to build: the requested one, or all candidates; None is the layout as traced."""
    if wanted is not None:
        return (wanted,)
    pictures = any(len(ref.shape) == 4 for node in graph.nodes for ref in node.refs)
    return LAYOUTS if pictures else (None,)


def in_layouts(graph: Graph, layouts: Sequence[str | None], queue: cl.CommandQueue) -> dict[str | None, Graph]:
    """The graph in each layout; as traced for None, and where no mixture of both is worth it."""
    graph_by_layout = {}
    for layout in layouts:
        if layout == MIXED:
            graph_by_layout |= mixed(graph, queue, {}) or {MIXED: graph}
        else:
            graph_by_layout[layout] = graph if layout is None else relayout(graph, layout)
    return graph_by_layout


def mixed(graph: Graph, queue: cl.CommandQueue, ranked: Ranked) -> dict[str | None, Graph]:
    """The graph with some pictures turned and others not, where that is worth it."""
    mixed_graph = with_mixed_layouts(graph, runtime.device_info(queue.device), ranked)
    return {} if mixed_graph is None else {MIXED: mixed_graph}


def planned_convolutions(graphs: Iterable[Graph]) -> dict[ConvProblem, list[Tensor]]:
    """Convolutions to be planned, in order, and the weights of each."""
    weights_by_problem: dict[ConvProblem, list[Tensor]] = {}
    for node in (node for graph in graphs for node in graph.nodes if is_planned(node)):
        weights_by_problem.setdefault(problem_of(node), []).append(node.kwargs["w"])
    return weights_by_problem
