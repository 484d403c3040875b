"""Solvers that are declared by name, and imported at the first query about a device that they serve."""

from __future__ import annotations

import importlib
import threading
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from .device import DeviceInfo
from .dtypes import ALL_DTYPES, FLOATS
from .problem import ConvProblem
from .solver import Plan, Solver

if TYPE_CHECKING:
    import pyopencl as cl


def cpus_only(device: DeviceInfo) -> str | None:
    """The reason why a solver for CPUs does not serve a device, or None."""
    return None if device.type == "cpu" else f"cpu only, got {device.type}"


def gpus_only(device: DeviceInfo) -> str | None:
    """The reason why a solver for GPUs does not serve a device, or None."""
    return "GPUs and accelerators only, got a CPU" if device.type == "cpu" else None


def declared_dtypes(solver: Solver, direction: str) -> frozenset[str]:
    """The dtypes that a solver declares for a direction. A solver with ``quantized = True``, which older ones have
    instead of ``dtypes``, computes integers of 8 bits."""
    dtypes = solver.dtypes
    if dtypes is FLOATS and not isinstance(solver, Declared) and getattr(solver, "quantized", False):
        return frozenset({"int8", "uint8"})
    return frozenset(dtypes.get(direction, ()) if isinstance(dtypes, Mapping) else dtypes)


def outside_declaration(solver: Solver, problem: ConvProblem, device: DeviceInfo) -> str | None:
    """The reason why a solver is not queried about a problem: it declares other dtypes, not ``reproducible``, or the
    device cannot store the dtype; None if it is."""
    if problem.math == "reproducible" and not getattr(solver, "reproducible", False):
        return "other math than 'reproducible' only: its bits are not defined"
    dtypes = declared_dtypes(solver, problem.direction)
    if problem.dtype in dtypes:
        return device.supports(problem.dtype)
    names = ", ".join(name for name in ALL_DTYPES if name in dtypes)
    return f"{names} only, got {problem.dtype}" if names else f"other directions only, got {problem.direction}"


_DECLARED_ATTRIBUTES = (
    "name", "fuses", "deterministic", "batch_invariant", "exact", "spreads_nonfinite", "predicts", "dtypes",
    "reproducible",
)  # fmt: skip
"""The attributes that a declaration sets on its solver."""


class Declared(Solver):
    """The solver that ``make(*arguments)`` of module ``where`` returns, with its attributes declared here.

    ``serves(device)`` returns a reason to refuse every problem on a device, or None. The module is imported only when
    more than the declaration is needed, and never for a device that it does not serve.
    """

    def __init__(
        self,
        where: str,
        make: str,
        *arguments: Any,
        name: str,
        serves: Callable[[DeviceInfo], str | None] | None = None,
        fuses: Iterable[str] = (),
        deterministic: bool = True,
        batch_invariant: bool = False,
        exact: bool = False,
        spreads_nonfinite: bool | None = None,
        predicts: bool = True,
        dtypes: Collection[str] | Mapping[str, Collection[str]] = FLOATS,
        reproducible: bool = False,
    ) -> None:
        self.name, self.fuses = name, frozenset(fuses)
        self.deterministic, self.exact, self.spreads_nonfinite = deterministic, exact, spreads_nonfinite
        self.predicts, self.dtypes = predicts, dtypes
        self.batch_invariant, self.reproducible = batch_invariant or reproducible, reproducible
        self._where, self._make, self._arguments, self._serves = where, make, arguments, serves
        self._made: Solver | None = None
        self._lock = threading.RLock()

    @property
    def solver(self) -> Solver:
        """The solver itself, imported at the first access. Raises the errors of its import."""
        if self._made is None:
            with self._lock:
                if self._made is None:
                    imported: Solver = getattr(importlib.import_module(self._where), self._make)(*self._arguments)
                    for attribute in _DECLARED_ATTRIBUTES:
                        setattr(imported, attribute, getattr(self, attribute))
                    self._made = imported
        return self._made

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self.solver, name)

    def serves(self, device: DeviceInfo) -> str | None:
        """The declared reason why the solver does not serve a device; None if it does."""
        return None if self._serves is None else self._serves(device)

    def rejects(self, problem: ConvProblem, device: DeviceInfo) -> str | None:
        """Returns the declaration's reason to refuse the device or the dtype, else the solver's own reason."""
        return self.serves(device) or outside_declaration(self, problem, device) or self.solver.rejects(problem, device)

    def configs(self, problem: ConvProblem, device: DeviceInfo) -> Iterable[Mapping[str, Any]]:
        """Calls ``configs`` of the declared solver."""
        return self.solver.configs(problem, device)

    def cost(self, problem: ConvProblem, device: DeviceInfo, config: Mapping[str, Any]) -> float | None:
        """Calls ``cost`` of the declared solver."""
        return self.solver.cost(problem, device, config)

    def least_seconds(self, problem: ConvProblem, device: DeviceInfo) -> float:
        """Calls ``least_seconds`` of the declared solver, if it serves the device."""
        return 0.0 if self.serves(device) else self.solver.least_seconds(problem, device)

    def workspace(self, problem: ConvProblem, device: DeviceInfo, config: Mapping[str, Any]) -> int | None:
        """Calls ``workspace`` of the declared solver."""
        return self.solver.workspace(problem, device, config)

    def sums_by_batch(self, problem: ConvProblem, device: DeviceInfo, config: Mapping[str, Any]) -> bool:
        """Calls ``sums_by_batch`` of the declared solver."""
        return self.solver.sums_by_batch(problem, device, config)

    def plan(self, context: cl.Context, problem: ConvProblem, config: Mapping[str, Any]) -> Plan:
        """Calls ``plan`` of the declared solver."""
        return self.solver.plan(context, problem, config)
