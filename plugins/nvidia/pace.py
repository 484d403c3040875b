"""How a device's speed differs from that of an H200, on which the cost models were fitted."""

from __future__ import annotations

from convdispatch.api import ConvProblem, DeviceInfo, rates

SECTOR_BYTES = 32
"""Bytes that memory gives at a time."""

UNIT_FLOPS = 65e12 / 132
"""Float32 operations a second of one multiprocessor of an H200, measured."""
COPY = 4.25e12
"""Bytes a second of a copy on an H200, measured; models tell what they reach as shares of it."""


def pace(device: DeviceInfo) -> float:
    """Times of the model's seconds: 1 on an H200."""
    return UNIT_FLOPS * max(1, device.compute_units) / rates(device).flops


def memory(device: DeviceInfo) -> float:
    """The device's bytes a second of a copy, in the model's seconds: ``COPY`` on an H200."""
    return rates(device).bandwidth * pace(device)


def read_share(problem: ConvProblem) -> float:
    """Of x's pixels, channels last, those that a kernel shorter than its stride reads; all where x is written."""
    if problem.direction == "bwd_data":
        return 1.0
    share = 1.0
    for axis in "dhw":
        if axis != "w" or problem.ic * problem.itemsize >= SECTOR_BYTES:
            share *= min(1.0, getattr(problem, "k" + axis) / getattr(problem, "s" + axis))
    return share
