"""Which calls one thread should compute alone, because waking other threads costs more than they save."""

from __future__ import annotations

from ..api.cpu import Balance
from ..device import runtime
from ..device.rates import LAUNCH, rates
from .prepared import Prepared
from .solver_query import predicted

_WAKING_OPERATIONS = 2.25e6
"""The cost of waking other threads, in operations at the device's peak speed; n cores save (n - 1)/n of a call's work.
Measured on two cores: layers of 4.5 million predicted operations took equally long on one and on both, smaller ones
1.07 to 2.2 times as long on both."""


def prefers_one_thread(prepared: Prepared) -> bool:
    """Whether a prepared call is, by its solver's prediction, too short for several threads."""
    device = runtime.device_info(prepared.context.devices[0])
    cost = predicted(prepared.solver, prepared.problem, device, prepared.config, prepared.math)
    if cost is None:
        return False
    cores, device_rates = device.compute_units, rates(device)
    work = cost * device_rates.flops - LAUNCH * Balance.of(device_rates).launch
    return work <= _WAKING_OPERATIONS * cores / max(cores - 1, 1)
