"""Which forms of a net need be built: those that the prediction does not rule out.

A layout's time is what is predicted, or was measured, for the solvers that its convolutions would run, and for the
reorders round them. On a CPU a kernel has all cores, and branches on several queues only get in each other's way.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TypeAlias

import pyopencl as cl

from ..api.device import DeviceInfo
from ..api.errors import ConvDispatchError
from ..api.policy import CHOICE_BATCH, current_policy
from ..api.problem import ConvProblem
from ..device.rates import rates
from ..device.runtime import device_info
from ..device.startup_profile import phase
from ..selection.choice.evidence import measured_s
from ..selection.choice.ranking import Choices
from ..selection.decision_store import choices
from ..selection.solver_query import predicted
from .graph import Graph, is_planned
from .layout_planning import plan
from .lower import problem_of
from .passes.layout import LAYOUTS, relayout, reorder, traced_layout

Ranked: TypeAlias = "dict[ConvProblem, Choices]"
"""The ranked candidates of each convolution, cached so that none is ranked twice."""

COPYING = frozenset({"convolution", "transposed_convolution", "standardize", "grouped"})
"""The operations that copy strided operands before they compute."""
PRUNED_FROM = 1.4
"""A layout that is predicted to take this many times as long as another one is not built: the ratio of two predictions
was within a ninth of the measured one for three nets, but 1.3 where nets of depthwise layers were no slower."""


def pruned(
    graphs: Mapping[str | None, Graph], counts: Sequence[int], queue: cl.CommandQueue
) -> tuple[dict[str | None, Graph], Sequence[int], Ranked]:
    """Those of ``graphs``, by layout, and of the numbers of queues ``counts``, that need be built; at least one.

    And the candidates of the convolutions that were ranked for it, so that they need not be ranked again.
    """
    device = device_info(queue.device)
    ranked: Ranked = {}
    counts = counts[:1] if device.type == "cpu" else counts
    if len(graphs) < 2:
        return dict(graphs), counts, ranked
    with phase("selection"):
        times = {layout: seconds(graph, device, ranked) for layout, graph in graphs.items()}
    if current_policy().is_invariant:
        # Timing forms of one batch would choose for that batch: the prediction for the batch of choice decides for all.
        best = min(times, key=lambda layout: (math.isnan(times[layout]), times[layout]))
        return {best: graphs[best]}, counts, ranked
    least_seconds = min(times.values())
    return (
        {layout: graphs[layout] for layout, time in times.items() if not time > PRUNED_FROM * least_seconds},
        counts,
        ranked,
    )


def with_mixed_layouts(graph: Graph, device: DeviceInfo, ranked: Ranked) -> Graph | None:
    """The graph with some pictures turned and others not, where that is predicted to be worth it."""
    traced, batch = traced_layout(graph), _batch_factor(graph)
    turned = None if traced is None else plan(graph, device, lambda problem: _cost(problem, device, ranked), batch)
    return None if traced is None or turned is None else relayout(graph, LAYOUTS[1 - LAYOUTS.index(traced)], turned)


def seconds(graph: Graph, device: DeviceInfo, ranked: Ranked | None = None) -> float:
    """Return the predicted seconds of a graph's convolutions and reorders; NaN if that is unknown.

    ``ranked`` takes the candidates of each convolution.
    """
    total, ranked, batch = 0.0, {} if ranked is None else ranked, _batch_factor(graph)
    for node in graph.nodes:
        if node.function is reorder:
            moved_bytes = batch * sum(2 * math.prod(ref.shape) * ref.value.dtype.itemsize for ref in node.refs)
            total += moved_bytes / rates(device).bandwidth + rates(device).launch
            continue
        # Convolutions and norms copy strided operands first.
        copied = [ref for ref in node.refs if ref.strides is not None and node.name in COPYING]
        moved_bytes = batch * sum(2 * math.prod(ref.shape) * ref.value.dtype.itemsize for ref in copied)
        total += moved_bytes / rates(device).bandwidth + len(copied) * rates(device).launch
        if is_planned(node):
            total += _cost(problem_of(node), device, ranked)
    return total


def _batch_factor(graph: Graph) -> float:
    """Images of the batch for which layouts are chosen, over those of the graph: 1 but under ``batch_invariant``."""
    sizes = [value.shape[0] for value in graph.inputs if len(value.shape) == 4]
    return CHOICE_BATCH / sizes[0] if sizes and current_policy().is_invariant else 1.0


def _cost(problem: ConvProblem, device: DeviceInfo, ranked: Ranked) -> float:
    """Seconds that the solver which a convolution would run took, or is predicted to take; NaN where nobody knows."""
    policy = current_policy()
    if problem not in ranked:
        try:
            ranked[problem] = choices(problem, device, policy)
        except ConvDispatchError:
            return math.nan
    best = ranked[problem].first
    if policy.is_invariant:
        chosen = policy.problem_of_choice(problem)
        cost = predicted(best.solver, chosen, device, best.config)
        return math.nan if cost is None else cost * CHOICE_BATCH / max(chosen.mb, 1)
    cost = measured_s(problem, device, best.solver.name)
    cost = predicted(best.solver, problem, device, best.config) if cost is None else cost
    return math.nan if cost is None else cost
