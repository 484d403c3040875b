"""How a device's speed differs from that of an H200, on which the cost models were fitted."""

from __future__ import annotations

from convdispatch.api import DeviceInfo, rates

__all__ = ["COPY", "memory", "pace"]

_UNIT = 65e12 / 132
"""Float32 operations a second of one multiprocessor of an H200, measured."""
COPY = 4.25e12
"""Bytes a second of a copy on an H200, measured; models tell what they reach as shares of it."""


def pace(device: DeviceInfo) -> float:
    """Times of the model's seconds: 1 on an H200."""
    return _UNIT * max(1, device.compute_units) / rates(device).flops


def memory(device: DeviceInfo) -> float:
    """The device's bytes a second of a copy, in the model's seconds: ``COPY`` on an H200."""
    return rates(device).bandwidth * pace(device)
