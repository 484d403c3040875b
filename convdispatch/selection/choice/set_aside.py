"""Solvers that are set aside for a problem on a device, and which of them only lacked memory, and how much.

A workspace that does not fit beside what a call reads and writes is one solver's fault, and the next one runs. Where
nobody is left the caller hears which solver needs least, and those who lacked memory as they ran may try again.
"""

from __future__ import annotations

from ...api.device import DeviceInfo
from ...api.errors import MemoryLimit, NoSolver, PluginError
from ...api.problem import ConvProblem
from ...api.solver import Solver
from ...device.size_limits import size_text, workspace_room
from ..plugins import faults, verdicts
from ..plugins.loader import plugins
from ..solver_query import query

_quarantined: dict[tuple[ConvProblem, DeviceInfo, str], str] = {}
_requested: dict[tuple[ConvProblem, DeviceInfo], dict[str, int]] = {}
"""For each problem and device, and each solver, the bytes of workspace that did not fit in the device's memory."""
_starved: dict[tuple[ConvProblem, DeviceInfo], dict[str, MemoryLimit]] = {}
"""For each problem and device, the solvers that were set aside because the device had no memory left; it may have some
later."""


def set_aside(problem: ConvProblem, device: DeviceInfo, solver: str, reason: str) -> None:
    """Refuse a solver for this problem and device from now on, in this process."""
    _quarantined[problem, device, solver] = reason


def quarantined(problem: ConvProblem, device: DeviceInfo, solver: str) -> str | None:
    """Return why a solver is set aside for a problem, by this process or an earlier one, or None."""
    found = _quarantined.get((problem, device, solver))
    return found or verdicts.against(problem, device, solver, plugins().fingerprint(solver))


def is_any_set_aside(problem: ConvProblem, device: DeviceInfo) -> bool:
    """Whether this process set a solver aside for a problem, so that its choice may not be the next process's."""
    return any(key[:2] == (problem, device) for key in _quarantined) or bool(plugins().banned)


def forgive() -> None:
    """Forget which solvers are set aside; faults are reported again."""
    for table in (_quarantined, _requested, _starved):
        table.clear()
    faults.forget()


class NoWorkspace(MemoryLimit):
    """The device had no memory for a plan's workspace; nothing was enqueued."""


def needs_too_much(solver: Solver, problem: ConvProblem, device: DeviceInfo) -> str | None:
    """Why the workspace that an accepting solver states fits in none of its configurations, or None. Raises Fault."""
    answers, room = query(solver, problem, device), workspace_room(problem, device)
    if room is None or not answers.accepts or answers.within(None):
        return None
    sizes = [size for config in answers.configs if (size := answers.workspace(config)) is not None]
    _note(problem, device, solver.name, min(sizes))
    return f"needs {size_text(min(sizes))} of workspace, {device} has room for {size_text(room)}"


def must_have_room(problem: ConvProblem, device: DeviceInfo, solver: str, size: int) -> None:
    """Raise PluginError where a plan asks for more than fits."""
    room = workspace_room(problem, device)
    if room is not None and size > room:
        _note(problem, device, solver, size)
        raise PluginError(
            f"{solver} asks for {size_text(size)} of workspace, and {device} has room for {size_text(room)}"
        )


def _note(problem: ConvProblem, device: DeviceInfo, solver: str, size: int) -> None:
    _requested.setdefault((problem, device), {})[solver] = size


def lacked(problem: ConvProblem, device: DeviceInfo, solver: str, size: int, error: MemoryLimit) -> None:
    """Note that there was no memory for a solver; ``size`` is its workspace in bytes, or 0."""
    _starved.setdefault((problem, device), {})[solver] = error
    if size:
        _note(problem, device, solver, size)


def short_of_memory(problem: ConvProblem, device: DeviceInfo, error: NoSolver) -> MemoryLimit | NoSolver:
    """The error when no solver is left. Solvers that lacked memory as they were planned or ran may be tried again."""
    requested, starved = _requested.pop((problem, device), {}), _starved.pop((problem, device), {})
    for name in starved:
        _quarantined.pop((problem, device, name), None)
    if not requested:
        return next(iter(starved.values()), error)
    name = min(requested, key=lambda name: requested[name])
    return MemoryLimit(
        f"no solver is left for {problem} whose workspace fits on {device}: {name} needs least, "
        f"{size_text(requested[name])}; let arrays go, or take smaller batches or images"
    )
