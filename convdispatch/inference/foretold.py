"""Which forms of a net need be built: those that the prediction does not rule out.

A layout's time is what is predicted, or was measured, for the solvers that its convolutions would run, and for the
reorders round them. On a CPU a kernel has all cores, and branches on several queues only get in each other's way.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from ..api.device import DeviceInfo
from ..api.errors import ConvDispatchError
from ..device.rates import rates
from ..device.runtime import device_info
from ..selection.asking import predicted
from ..selection.evidence import measured_s
from ..selection.ranking import rank
from .graph import Graph
from .layout import reorder
from .lower import is_planned, problem_of

if TYPE_CHECKING:
    import pyopencl as cl

__all__ = ["SURE", "foretold"]

SURE = 1.15
"""A layout that is predicted to take so much longer than another is not built: the ratio of two predictions was within
a ninth of the measured one for three nets (docs/measurements.md)."""


def foretold(
    graphs: Mapping[str | None, Graph], counts: Sequence[int], queue: cl.CommandQueue
) -> tuple[dict[str | None, Graph], Sequence[int]]:
    """Those of ``graphs``, by layout, and of the numbers of queues ``counts``, that need be built; at least one."""
    device = device_info(queue.device)
    counts = counts[:1] if device.type == "cpu" else counts
    if len(graphs) < 2:
        return dict(graphs), counts
    times = {layout: seconds(graph, device) for layout, graph in graphs.items()}
    least = min(times.values())
    return {layout: graphs[layout] for layout, time in times.items() if not time > SURE * least}, counts


def seconds(graph: Graph, device: DeviceInfo) -> float:
    """What the convolutions and reorders of a graph are predicted to take; NaN where that is not known."""
    found, known = 0.0, {}
    for node in graph.nodes:
        if node.function is reorder:
            moved = sum(2 * math.prod(ref.shape) * ref.value.dtype.itemsize for ref in node.refs)
            found += moved / rates(device).bandwidth + rates(device).launch
        elif is_planned(node):
            problem = problem_of(node)
            if problem not in known:
                try:
                    first = rank(problem, device)[0]
                except ConvDispatchError:
                    return math.nan
                cost = measured_s(problem, device, first.solver.name)
                cost = predicted(first.solver, problem, device, first.config) if cost is None else cost
                known[problem] = math.nan if cost is None else cost
            found += known[problem]
    return found
