"""Which layouts of a net are built: those that the prediction does not rule out."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import TypeAlias

import pyopencl as cl

from ..api.device import DeviceInfo
from ..api.errors import ConvDispatchError
from ..api.policy import CHOICE_BATCH, current_policy
from ..api.problem import ConvProblem
from ..device.rates import rates
from ..device.runtime import device_info
from ..device.startup_profile import phase
from ..elementwise.tensor import Tensor
from ..selection.choice.evidence import measured_s
from ..selection.choice.ranking import Choices
from ..selection.decision_store import choices
from ..selection.solver_query import predicted
from .graph import Graph, is_planned
from .lower import problem_of
from .passes.layout import reorder

Ranked: TypeAlias = "dict[ConvProblem, Choices]"
"""The ranked candidates of each convolution, cached so that none is ranked twice."""
_COPYING = frozenset({"convolution", "transposed_convolution", "standardize", "grouped"})
"""The operations that copy strided operands before they compute."""
PRUNED_FROM = 1.4
"""A layout that is predicted to take this many times as long as another one is not built: the ratio of two predictions
was within a ninth of the measured one for three nets, but 1.3 where nets of depthwise layers were no slower."""


def planned_convolutions(graphs: Iterable[Graph]) -> dict[ConvProblem, list[Tensor]]:
    """Convolutions to be planned, in order, and the weights of each."""
    weights_by_problem: dict[ConvProblem, list[Tensor]] = {}
    for node in (node for graph in graphs for node in graph.nodes if is_planned(node)):
        weights_by_problem.setdefault(problem_of(node), []).append(node.kwargs["w"])
    return weights_by_problem


def pruned(graphs: Mapping[str | None, Graph], queue: cl.CommandQueue) -> tuple[dict[str | None, Graph], Ranked]:
    """Those of ``graphs``, by layout, that need be built; at least one.

    And the candidates of the convolutions that were ranked for it, so that they need not be ranked again.
    """
    device = device_info(queue.device)
    ranked: Ranked = {}
    if len(graphs) < 2:
        return dict(graphs), ranked
    with phase("selection"):
        times = {layout: seconds(graph, device, ranked) for layout, graph in graphs.items()}
    if current_policy().is_invariant:
        # Timing forms of one batch would choose for that batch: the prediction for the batch of choice decides for all.
        best = min(times, key=lambda layout: (math.isnan(times[layout]), times[layout]))
        return {best: graphs[best]}, ranked
    least_seconds = min(times.values())
    return (
        {layout: graphs[layout] for layout, time in times.items() if not time > PRUNED_FROM * least_seconds},
        ranked,
    )


def seconds(graph: Graph, device: DeviceInfo, ranked: Ranked | None = None) -> float:
    """Return the predicted seconds of a graph's convolutions and reorders; NaN if that is unknown.

    ``ranked`` takes the candidates of each convolution.

    It is what is predicted, or was measured, for the solvers that its convolutions would run, and for the reorders
    round them.
    """
    total, ranked = 0.0, {} if ranked is None else ranked
    sizes = [value.shape[0] for value in graph.inputs if len(value.shape) == 4]
    # Under ``batch_invariant`` layouts are chosen for the batch of choice.
    batch = CHOICE_BATCH / sizes[0] if sizes and current_policy().is_invariant else 1.0
    for node in graph.nodes:
        if node.function is reorder:
            moved_bytes = batch * sum(2 * math.prod(ref.shape) * ref.value.dtype.itemsize for ref in node.refs)
            total += moved_bytes / rates(device).bandwidth + rates(device).launch
            continue
        # Convolutions and norms copy strided operands first.
        copied = [ref for ref in node.refs if ref.strides is not None and node.name in _COPYING]
        moved_bytes = batch * sum(2 * math.prod(ref.shape) * ref.value.dtype.itemsize for ref in copied)
        total += moved_bytes / rates(device).bandwidth + len(copied) * rates(device).launch
        if is_planned(node):
            total += _cost(problem_of(node), device, ranked)
    return total


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
