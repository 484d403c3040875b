"""DeviceRates: how fast a device multiplies, moves and launches, from which solvers predict their costs."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class DeviceRates:
    """A device's ceilings: measured once by ``convdispatch calibrate``, estimated by its size until then.

    ``Solver.cost`` is in seconds. A model that was fitted on one device counts operations, bytes and launches, and
    divides by the rates of the device in question.
    """

    flops: float
    """Float32 operations a second of multiply-adds, two each, in long independent chains."""
    bandwidth: float
    """Bytes a second that a copy of large memory reads and writes, both counted."""
    launch: float
    """Seconds from the start of one launch to the start of the next that waits for it."""
    measured: bool = False
