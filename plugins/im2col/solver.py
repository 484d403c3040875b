"""The solver: which method computes which problem, under which caps of workspace."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import Any

from convdispatch.api import ConvProblem, DeviceInfo, Solver, rates
from convdispatch.api.cpu import Balance

from . import col2im, depthwise, phases, product, weights
from .convert import NARROW

# Bytes of a lowered chunk, the first one by default. On a CPU a chunk is multiplied while it is in the cache; on a GPU
# launches are dear and the matrix is streamed.
_CPU_CAPS = (8 << 20, 2 << 20, 1 << 19, 1 << 16)
_GPU_CAPS = (1 << 30, 256 << 20, 32 << 20, 1 << 20)

_ITEMS, _LOCAL = 64, 9216
"""What the least tile of a GPU's product takes, of float64."""

_MOST_PLACES = 1 << 31
"""Places of an image stay below this: they are a side of a matrix product."""

_METHODS = {
    "lower": product.WindowProduct,
    "flipped": product.WindowProduct,
    "col2im": col2im.Col2im,
    "depthwise": depthwise.Depthwise,
    "phases": phases.DepthwisePhases,
    "weights": weights.WeightsProduct,
}


_NARROW_TIMES = 1.25
"""Times of what is counted, of 16-bit elements that are widened on their way: 34 drawn problems on two Xeons."""
SUSTAINED = 0.92
"""Of a GPU's rate, what the product's shares are shares of."""


class Im2col(Solver):
    """Lowering to a matrix product: every direction, rank, group, stride, dilation, padding, layout and dtype."""

    def rejects(self, problem: ConvProblem, device: DeviceInfo) -> str | None:
        """Only what the device cannot store, and what has nothing to compute."""
        if problem.mb < 1:
            return f"1 image or more, got {problem.mb}"
        if why := device.supports(problem.dtype):
            return why
        places = max(problem.id * problem.ih * problem.iw, problem.od * problem.oh * problem.ow)
        if places >= _MOST_PLACES:
            return f"images of less than 2**31 places, got {places}"
        items = min(device.max_work_group_size, device.max_work_item_sizes[0])
        if device.type != "cpu" and items < _ITEMS:
            return f"work groups of {_ITEMS} items or more, got {items}"
        if device.type != "cpu" and device.local_mem_size < _LOCAL:
            return f"{_LOCAL} bytes of local memory or more, got {device.local_mem_size}"
        return None

    def configs(self, problem: ConvProblem, device: DeviceInfo) -> Iterator[Mapping[str, Any]]:
        """The best method's choices under the default cap first, then smaller caps; the last is the floor."""
        caps = list(_CPU_CAPS if device.type == "cpu" else _GPU_CAPS)
        if problem.direction == "fwd":
            yield from depthwise.configs(problem, device, caps)
            yield from product.configs(problem, device, caps)
        elif problem.direction == "bwd_weights":
            yield from depthwise.configs(problem, device, caps)
            yield from weights.configs(problem, device, caps)
        else:
            methods = [col2im.configs(problem, device, caps)]
            if {problem.sd, problem.sh, problem.sw} == {1}:
                yield from depthwise.configs(problem, device, caps)
                place = 1 if col2im.flipped_pays(problem) else 0
                methods.insert(1 - place, product.configs(problem, device, caps))
            else:
                yield from phases.configs(problem, device, caps)
            yield from itertools.chain(*methods)

    def workspace(self, problem: ConvProblem, device: DeviceInfo, config: Mapping[str, Any]) -> int:
        """Bytes of workspace of a configuration's plan."""
        return _METHODS[config["method"]](problem, config).workspace_size

    def cost(self, problem: ConvProblem, device: DeviceInfo, config: Mapping[str, Any]) -> float:
        """On a CPU the product, what is copied for it, and launches. On a GPU the sum's operations at the product's
        usual share of the peak, and 8 for each lowered element."""
        if device.type == "cpu":
            narrow = _NARROW_TIMES if problem.dtype in NARROW else 1.0
            known = rates(device)
            return narrow * _METHODS[config["method"]](problem, config).cost(Balance.of(known)) / known.flops
        lowered = problem.flops / 2 / max(1, problem.oc // problem.g)
        pointwise = problem.kd * problem.kh * problem.kw == 1
        return (problem.flops / 0.8 + (0 if pointwise else 8 * lowered)) / (SUSTAINED * rates(device).flops)

    def plan(self, context: Any, problem: ConvProblem, config: Mapping[str, Any]) -> Any:
        """Compile a configuration."""
        return _METHODS[config["method"]](problem, config).plan(context)
