"""Which calls the thread that makes them should compute alone, for waking others costs more than they save."""

from __future__ import annotations

from ..device import runtime
from ..device.rates import rates
from .asking import ask
from .prepared import Prepared

__all__ = ["serial"]

_OPERATIONS = 5e6
"""A call is computed alone where it is predicted to take no more than so many operations of the device's peak, three
fifths of them its launch: 1x1 layers on two cores with AVX-512 broke even between 5 and 8 million."""


def serial(prepared: Prepared) -> bool:
    """Whether a prepared call is so short, by its solver's own prediction."""
    device = runtime.device_info(prepared.context.devices[0])
    cost = ask(prepared.solver, prepared.problem, device).cost(prepared.config)
    return cost is not None and cost * rates(device).flops <= _OPERATIONS
