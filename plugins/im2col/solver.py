"""The solver: which method computes which problem, under which caps of workspace."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import Any

from convdispatch.api import DTYPES, ConvProblem, DeviceInfo, Solver, rates
from convdispatch.api.cpu import Balance

from . import col2im, depthwise, product, weights

CPU_CHUNK_BYTES = (8 << 20, 2 << 20, 1 << 19, 1 << 16)
"""Bytes of a lowered chunk, the default first: a chunk is multiplied while it is in a CPU's cache."""
GPU_CHUNK_BYTES = (1 << 30, 256 << 20, 32 << 20, 1 << 20)
"""Bytes of a lowered chunk on GPUs, the default first: launches take long, and the lowered matrix is streamed."""
MIN_ITEMS, MIN_LOCAL_BYTES = 64, 9216
"""Work items of a work group and bytes of local memory that the smallest float64 tile of a GPU's product needs."""
MAX_PLACES = 1 << 31
"""The number of output pixels of an image stays below this, because it is a side of a matrix product."""
NARROW_FACTOR = 1.25
"""Measured over predicted time of 16-bit elements, which are widened: 34 drawn problems on two Xeons."""
SUSTAINED = 0.92
"""Share of a GPU's multiply-add peak that long products sustain; the product's own efficiency multiplies it."""
_METHODS = {
    "lower": product.WindowProduct,
    "flipped": product.WindowProduct,
    "col2im": col2im.Col2im,
    "depthwise": depthwise.Depthwise,
    "phases": depthwise.Depthwise,
    "weights": weights.WeightsProduct,
}


class Im2col(Solver):
    """Lowering to a matrix product: every direction, rank, group, stride, dilation, padding, layout and dtype."""

    def rejects(self, problem: ConvProblem, device: DeviceInfo) -> str | None:
        if problem.mb < 1:
            return f"1 image or more, got {problem.mb}"
        pixels = max(problem.id * problem.ih * problem.iw, problem.od * problem.oh * problem.ow)
        if pixels >= MAX_PLACES:
            return f"images of less than 2**31 places, got {pixels}"
        items = min(device.max_work_group_size, device.max_work_item_sizes[0])
        if device.type != "cpu" and items < MIN_ITEMS:
            return f"work groups of {MIN_ITEMS} items or more, got {items}"
        if device.type != "cpu" and device.local_mem_size < MIN_LOCAL_BYTES:
            return f"{MIN_LOCAL_BYTES} bytes of local memory or more, got {device.local_mem_size}"
        return None

    def configs(self, problem: ConvProblem, device: DeviceInfo) -> Iterator[Mapping[str, Any]]:
        """The best method's choices under the default cap first, then smaller caps; the last needs the least memory."""
        caps = list(CPU_CHUNK_BYTES if device.type == "cpu" else GPU_CHUNK_BYTES)
        yield from depthwise.configs(problem, device, caps)
        if problem.direction == "fwd":
            methods = [product.configs(problem, device, caps)]
        elif problem.direction == "bwd_weights":
            methods = [weights.configs(problem, device, caps)]
        else:
            methods = [col2im.configs(problem, device, caps)]
            if {problem.sd, problem.sh, problem.sw} == {1}:
                flipped_index = 1 if col2im.flipped_pays(problem) else 0
                methods.insert(1 - flipped_index, product.configs(problem, device, caps))
        yield from itertools.chain(*methods)

    def workspace(self, problem: ConvProblem, device: DeviceInfo, config: Mapping[str, Any]) -> int:
        return _METHODS[config["method"]](problem, config).workspace_size

    def cost(self, problem: ConvProblem, device: DeviceInfo, config: Mapping[str, Any]) -> float:
        """On a CPU the time of the product, of copies for it, and of launches. On a GPU the operations of the sum at
        the product's usual share of the peak rate, and 8 operations for each lowered element."""
        if device.type == "cpu":
            dtype_factor = NARROW_FACTOR if DTYPES[problem.dtype].widened else 1.0
            peaks = rates(device)
            return dtype_factor * _METHODS[config["method"]](problem, config).cost(Balance.of(peaks)) / peaks.flops
        return self.least_seconds(problem, device)

    def least_seconds(self, problem: ConvProblem, device: DeviceInfo) -> float:
        """On a GPU the cost of any configuration; 0.0 on a CPU."""
        if device.type == "cpu":
            return 0.0
        lowered = problem.flops / 2 / max(1, problem.oc // problem.g)
        return (problem.flops / 0.8 + 8 * lowered) / (SUSTAINED * rates(device).flops)

    def plan(self, context: Any, problem: ConvProblem, config: Mapping[str, Any]) -> Any:
        return _METHODS[config["method"]](problem, config).plan(context)
