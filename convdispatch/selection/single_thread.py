"""Which calls the thread that makes them should compute alone, for waking others costs more than they save."""

from __future__ import annotations

from ..api.cpu import Balance
from ..device import runtime
from ..device.rates import LAUNCH, rates
from .prepared import Prepared
from .solver_query import predicted

_WAKING = 2.25e6
"""The cost of waking other threads, in operations at the device's peak speed: n cores save (n - 1)/n of a call's work.
On two cores 1x1 layers and others that are predicted to take 4.5 million beside their launch broke even; below it they
took 1.07 to 2.2 times as long by both as by one."""


def prefers_one_thread(prepared: Prepared) -> bool:
    """Whether a prepared call is so short, by its solver's own prediction."""
    device = runtime.device_info(prepared.context.devices[0])
    cost = predicted(prepared.solver, prepared.problem, device, prepared.config, prepared.math)
    if cost is None:
        return False
    cores, known = device.compute_units, rates(device)
    work = cost * known.flops - LAUNCH * Balance.of(known).launch
    return work <= _WAKING * cores / max(cores - 1, 1)
