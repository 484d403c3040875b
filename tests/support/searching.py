"""A search over the faulty plugin's solvers: the problem, what it answered, what is on record."""

from __future__ import annotations

import contextlib

import pytest

from convdispatch.api.errors import ConvDispatchWarning
from convdispatch.api.problem import ConvProblem
from convdispatch.device import runtime
from convdispatch.measurement.find import find
from convdispatch.selection.records import perfdb

PROBLEM = ConvProblem.parse("mb1ic4ih9oc4kh3ph1")
GOOD, MANY, EXTRA = "good {}", 'many {"extra": 0}', 'many {"extra": 4096}'
"""Choices of the solvers ``good`` and ``many``, as texts."""


def searched(device, *, said=True, **more):
    """The results by solver, and the whole; with ``said`` a quarantine is warned of."""
    with pytest.warns(ConvDispatchWarning, match="set aside") if said else contextlib.nullcontext():
        results = find(PROBLEM, device, **more)
    return {result.solver.removeprefix("faulty."): result for result in results}, results


def known(device):
    return {r.solver for r in perfdb.perfdb().lookup(PROBLEM, runtime.device_info(device))}
