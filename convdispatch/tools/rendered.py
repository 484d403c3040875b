"""A solver's kernels as rendered for a problem, to read: nothing is compiled, and the device need not be there."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..api.device import DeviceInfo
from ..api.errors import InvalidArgument, NoSolver
from ..api.problem import ConvProblem
from ..device import runtime
from ..device.programs.kernels import rendering
from ..selection.derivation.solver import named
from ..selection.explanation import explain
from ..selection.plugins.loader import plugins
from ..selection.visible_problem import visible_problem
from .targets.described import DESCRIBED, TARGETS, StandIn, described_context


def rendered(
    problem: ConvProblem,
    solver: str | None = None,
    *,
    device: str | None = None,
    described: str | None = None,
    config: Mapping[str, Any] | None = None,
) -> tuple[str, Mapping[str, Any], list[str]]:
    """The solver, its configuration and its programs' texts; both are the choice's where they are not given.

    ``described`` names one of DESCRIBED, for a device that is not there. Raises InvalidArgument for names that nobody
    has and where the solver refuses, NoSolver where all do.
    """
    info, context = _device_and_context(device, described)
    if solver is None:
        explanation = explain(problem, info)
        if explanation.chosen is None:
            raise NoSolver(problem, str(info), {one.solver: str(one.reason) for one in explanation.verdicts})
        solver = explanation.chosen
    solvers = plugins().solvers
    try:
        chosen = named(solver, solvers)
    except KeyError:
        raise InvalidArgument(f"no solver is called {solver!r}; there are {', '.join(sorted(solvers))}") from None
    visible = visible_problem(chosen, problem)
    reason = chosen.rejects(visible, info)
    if reason:
        raise InvalidArgument(f"{solver} refuses {problem} on {info}: {reason}")
    if config is None:
        config = next(iter(chosen.configs(visible, info)), {})
    with rendering() as texts:
        chosen.plan(context, visible, config)
    return solver, config, [text for text in texts if isinstance(text, str)]


def _device_and_context(device: str | None, described: str | None) -> tuple[DeviceInfo, Any]:
    """A device's description and a stand-in for its context."""
    if described is None:
        cl_device = runtime.find_device(device)
        return runtime.device_info(cl_device), StandIn(cl_device)
    described = TARGETS.get(described, described)
    if described not in DESCRIBED:
        raise InvalidArgument(f"described devices are {', '.join([*DESCRIBED, *TARGETS])}, got {described!r}")
    info = DESCRIBED[described]
    return info, described_context(info)
