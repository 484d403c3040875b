"""How much longer a multiprocessor takes than one of an H200, on which the cost models were fitted."""

from __future__ import annotations

from convdispatch.api import DeviceInfo, rates

__all__ = ["pace"]

_UNIT = 65e12 / 132
"""Float32 operations a second of one multiprocessor of an H200, measured."""


def pace(device: DeviceInfo) -> float:
    """Times of the model's seconds: 1 on an H200."""
    return _UNIT * max(1, device.compute_units) / rates(device).flops
