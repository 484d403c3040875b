"""How a device's speed differs from that of an H200, on which the cost models were fitted."""

from __future__ import annotations

import math
from typing import Any

from convdispatch.api import ConvProblem, DeviceInfo, rates

SECTOR_BYTES = 32
"""Bytes of a memory sector: the least that one read transfers."""

CLOCK = 1.7e9
"""Cycles per second of the H200 and the H100 on which cost models were fitted."""
UNIT_FLOPS = 65e12 / 132
"""Float32 operations per second of one multiprocessor of an H200, measured."""
COPY = 4.25e12
"""Bytes per second of a memory copy on an H200, measured; cost models give bandwidths as shares of it."""


def pace(device: DeviceInfo) -> float:
    """Factor from seconds of the cost models to seconds of the device: 1 on an H200."""
    return UNIT_FLOPS * max(1, device.compute_units) / rates(device).flops


def memory(device: DeviceInfo) -> float:
    """Bytes that the device copies per second of the cost models' time: ``COPY`` on an H200."""
    return rates(device).bandwidth * pace(device)


def read_share(problem: ConvProblem) -> float:
    """Fraction of x that is read in NHWC: a kernel shorter than its stride skips pixels; 1 if x is written."""
    if problem.direction == "bwd_data":
        return 1.0
    share = 1.0
    for axis in "dhw":
        if axis != "w" or problem.ic * problem.itemsize >= SECTOR_BYTES:
            share *= min(1.0, getattr(problem, "k" + axis) / getattr(problem, "s" + axis))
    return share


SUMS_LAUNCH_SECONDS = 0.96e-6
"""Seconds of a launch, on a CUDA stream, that merges the sums of channels."""
MERGED_PARTS = 512
"""Parts of a channel's sums that one launch merges."""


def sums_seconds(tiling: Any, copy: float, parts: Any) -> Any:
    """Predicted seconds of the launches that follow a product for the sums of channels: those that merge the ``parts``
    of a channel that it left, or those that read the result (with a norm's gradient the saved tensor too)."""
    problem = tiling.problem
    if not problem.sums:
        return 0.0
    merges = SUMS_LAUNCH_SECONDS * (1 + (parts > MERGED_PARTS) + (parts > MERGED_PARTS**2))
    reads = (1 + problem.masked) * math.prod(problem.out_shape) * problem.itemsize / copy + 3 * SUMS_LAUNCH_SECONDS
    return tiling.summed * merges + (1 - tiling.summed) * reads
