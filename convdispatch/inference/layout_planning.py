"""Which pictures of a net lie which way: the layout of each operation that makes the whole fastest, reorders included.

Each operation has a predicted time in either layout, and a picture that some read the other way than it was made is
reordered once. With two labels on a graph whose costs are these the least sum is a minimum cut (Greig, Porteous and
Seheult 1989; Boykov and Kolmogorov 2004): every operation is a vertex, its two times are its arcs to the terminals, and
each value has two vertices, one that turns as soon as any reader wants the other layout, one that stays as long as any
wants the old. networkx finds the cut.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
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
from .graph import Graph, Node, Ref, Value, is_planned, operands
from .lower import problem_of
from .passes.layout import LAYOUTS, can_turn, relayout, reorder, traced_layout, turned_by

GAIN = 0.97
"""The largest fraction of the best uniform layout's time at which a mix of layouts is worth building."""
_UNIT = 1e12
"""Capacities are whole picoseconds: with integers the cut is exact, and the same wherever it is computed."""
_FIRST_FACTOR = {"local_response_norm": 1.5}
_POOLS = frozenset({"max_pool", "avg_pool", "adaptive_avg_pool", "adaptive_max_pool", "global_average_pool",
                     "dequantized_average"})  # fmt: skip
"""Pools read and write at memory speed with channels last on a CPU, and at half of that with channels first."""


@dataclass(frozen=True)
class Costs:
    """The seconds of each operation that can change layout, in its present and in the other layout; and of reordering
    each value."""

    nodes: dict[Node, tuple[float, float]]
    values: dict[Value, float]


def plan(
    graph: Graph, device: DeviceInfo, cost: Callable[[ConvProblem], float], batch: float = 1.0
) -> frozenset[Node] | None:
    """The operations to turn for the least predicted time; None where no mixture is worth it, or times are unknown.

    ``cost`` returns a convolution's seconds, NaN where they are not known, for ``batch`` times the graph's images.
    """
    costs = costs_of(graph, device, cost, batch)
    times = list(costs.nodes.values())
    if not times or any(math.isnan(time) for both in times for time in both):
        return None
    uniform = min(total(graph, costs, turned) for turned in (frozenset(), frozenset(costs.nodes)))
    # No mix of layouts is faster than one layout, even if reorders took no time.
    if math.fsum(min(both) for both in times) > GAIN * uniform:
        return None
    turned_nodes = cut(graph, costs)
    return turned_nodes if total(graph, costs, turned_nodes) <= GAIN * uniform else None


def costs_of(graph: Graph, device: DeviceInfo, cost: Callable[[ConvProblem], float], batch: float = 1.0) -> Costs:
    """Return the predicted times of a graph's operations and reorders that depend on the layout, for ``batch`` times
    the graph's images."""
    speed, nodes, values = rates(device), {}, {}
    traced = traced_layout(graph)
    if traced is None:
        return Costs(nodes, values)
    turned = LAYOUTS[1 - LAYOUTS.index(traced)]
    for node in graph.nodes:
        for ref in (*node.refs, *(ref for ref in operands(node.result) if isinstance(ref, Ref))):
            if len(ref.value.shape) == 4:
                # A tensor of one pixel has the same bytes in both layouts.
                alike = math.prod(sorted(ref.value.shape[1:])[:2]) == 1
                reorder_seconds = 2 * batch * ref.value.nbytes / speed.bandwidth + speed.launch
                values[ref.value] = 0.0 if alike else reorder_seconds
        if can_turn(node):
            nodes[node] = (_seconds(node, traced, device, cost, batch), _seconds(node, turned, device, cost, batch))
    for node in graph.nodes:
        for ref in node.refs:
            one = turned_by(node, ref, turned)
            if one in nodes:  # as traced, the view is strided, and the operation copies it first
                seconds = 2 * batch * math.prod(ref.shape) * ref.value.dtype.itemsize / speed.bandwidth + speed.launch
                nodes[one] = nodes[one][0] + seconds, nodes[one][1]
    return Costs(nodes, values)


def _seconds(node: Node, layout: str, device: DeviceInfo, cost: Callable[[ConvProblem], float], batch: float) -> float:
    if is_planned(node):
        return cost(replace(problem_of(node), layout=layout))
    speed, shape = rates(device), node.result.shape
    moved_bytes = batch * (sum(ref.value.nbytes for ref in node.refs) + node.result.value.nbytes)
    # The parts of a one-image concatenation in NCHW are computed in place, so joining them costs nothing.
    if node.name == "concatenate":
        in_place = layout == "nchw" and batch * shape[0] == 1
        return 0.0 if in_place else moved_bytes / speed.bandwidth + speed.launch
    slow = device.type == "cpu" and layout == "nchw"
    factor = 2.0 if node.name in _POOLS and slow else _FIRST_FACTOR.get(node.name, 1.0) if slow else 1.0
    return factor * moved_bytes / speed.bandwidth


def cut(graph: Graph, costs: Costs) -> frozenset[Node]:
    """Return the operations that change layout, by a minimum cut between both layouts."""
    import networkx

    net: networkx.DiGraph = networkx.DiGraph()
    stays, turns = "stays", "turns"
    net.add_nodes_from((stays, turns))
    names: dict[Node, str] = {node: f"n{index}" for index, node in enumerate(graph.nodes) if node in costs.nodes}

    def capacity(seconds: float) -> int:
        return round(seconds * _UNIT)

    # The cut takes an edge from a vertex that keeps its layout to one that changes it.
    for node, name in names.items():
        seconds_as_traced, seconds_turned = costs.nodes[node]
        net.add_edge(stays, name, capacity=capacity(seconds_turned))
        net.add_edge(name, turns, capacity=capacity(seconds_as_traced))
    for index, (value, readers) in enumerate(_readers(graph).items()):
        seconds = costs.values.get(value)
        if seconds is None:
            continue
        maker = stays if value.node is None else names.get(value.node, stays)
        # A reader in the other layout pulls the value's vertex to its side of the cut, which then costs one reorder.
        for reader in readers:
            name = stays if reader is None else names.get(reader, stays)
            if name != stays:
                net.add_edge(f"t{index}", name)
            if maker != stays:
                net.add_edge(name, f"s{index}")
        if f"t{index}" in net:
            net.add_edge(maker, f"t{index}", capacity=capacity(seconds))
        if f"s{index}" in net:
            net.add_edge(f"s{index}", maker, capacity=capacity(seconds))
    _, (source_side, _) = networkx.minimum_cut(net, stays, turns)
    return frozenset(node for node, name in names.items() if name not in source_side)


def _readers(graph: Graph) -> dict[Value, list[Node | None]]:
    """Return the nodes that read each value as it lies; None stands for the caller, who needs the layout as traced."""
    readers: dict[Value, list[Node | None]] = {}
    for node in graph.nodes:
        for ref in node.refs:
            if ref.strides is None:  # strided views read either layout
                readers.setdefault(ref.value, []).append(node)
    for ref in operands(graph.output):
        if isinstance(ref, Ref) and ref.strides is None:
            readers.setdefault(ref.value, []).append(None)
    return readers


def total(graph: Graph, costs: Costs, turned: frozenset[Node]) -> float:
    """Seconds of a labelling: its operations, and a reorder of each value that is read the other way, per way."""
    seconds = math.fsum(both[node in turned] for node, both in costs.nodes.items())
    for value, readers in _readers(graph).items():
        lies = value.node is not None and value.node in turned
        if any((reader is not None and reader in turned) != lies for reader in readers):
            seconds += costs.values.get(value, 0.0)
    return seconds


Ranked: TypeAlias = "dict[ConvProblem, Choices]"
"""The ranked candidates of each convolution, cached so that none is ranked twice."""

COPYING = frozenset({"convolution", "transposed_convolution", "standardize", "grouped"})
"""The operations that copy strided operands before they compute."""
PRUNED_FROM = 1.4
"""A layout that is predicted to take this many times as long as another one is not built: the ratio of two predictions
was within a ninth of the measured one for three nets, but 1.3 where nets of depthwise layers were no slower."""


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


def with_mixed_layouts(graph: Graph, device: DeviceInfo, ranked: Ranked) -> Graph | None:
    """The graph with some pictures turned and others not, where that is predicted to be worth it."""
    traced, batch = traced_layout(graph), _batch_factor(graph)
    turned = None if traced is None else plan(graph, device, lambda problem: _cost(problem, device, ranked), batch)
    return None if traced is None or turned is None else relayout(graph, LAYOUTS[1 - LAYOUTS.index(traced)], turned)


def seconds(graph: Graph, device: DeviceInfo, ranked: Ranked | None = None) -> float:
    """Return the predicted seconds of a graph's convolutions and reorders; NaN if that is unknown.

    ``ranked`` takes the candidates of each convolution.

    It is what is predicted, or was measured, for the solvers that its convolutions would run, and for the reorders
    round them.
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
