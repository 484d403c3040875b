"""Solvers that are set aside for a problem on a device, and which of them only lacked memory, and how much.

Errata of files name solvers, or kernels of libraries, that compute wrongly. A failure that this machine saw, in this
process or an earlier one, holds for that problem alone, and until the plugin or the driver changes.

If a solver's workspace does not fit beside the operands of a call, the next solver runs. If none is left, the error
names the solver that needs least, and solvers that lacked memory at run time may be tried again.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Iterator

from ...api.device import DeviceInfo
from ...api.errors import MemoryLimit, NoSolver, PluginError
from ...api.problem import ConvProblem
from ...api.solver import Solver
from ...device.size_limits import size_text, workspace_room
from ..plugins import errata, verdicts
from ..plugins.errata import Erratum
from ..plugins.loader import forget_reported, plugins
from ..solver_query import query, serves

_retried: set[str] = set()
"""File and line of each erratum that this process ignores because it tries it again."""
_encountered_retries: set[str] = set()
"""Those of ``_retried`` that would have set a kernel aside."""
_quarantined: dict[tuple[ConvProblem, DeviceInfo, str], str] = {}
_requested: dict[tuple[ConvProblem, DeviceInfo], dict[str, int]] = {}
"""For each problem and device, and each solver, the bytes of workspace that did not fit in the device's memory."""
_starved: dict[tuple[ConvProblem, DeviceInfo], dict[str, MemoryLimit]] = {}
"""For each problem and device, the solvers that were set aside because the device had no memory left; it may have some
later."""


def set_aside(problem: ConvProblem, device: DeviceInfo, solver: str, reason: str) -> None:
    """Refuse a solver for this problem and device from now on, in this process."""
    _quarantined[problem, device, solver] = reason


def listed_errata() -> tuple[Erratum, ...]:
    """The errata of all files. Raises InvalidPolicy."""
    return errata.listed(plugins().errata.values())


def errata_of(solver: str, problem: ConvProblem, device: DeviceInfo | None) -> Iterator[Erratum]:
    """The errata of files that hold for a solver and a problem on a device; with None, those of a library on any
    device, and then a file that cannot be read is ignored: the caller that ranks solvers reports it."""
    for entry in errata.listed(plugins().errata.values(), may_raise=device is not None):
        if entry.names(solver) and entry.has(problem) and entry.misses(device, version_of(solver)) is None:
            yield entry


def seen_errata(device: DeviceInfo) -> list[Erratum]:
    """An erratum for each failure that this machine saw on a device, if the solver's plugin has not changed since."""
    return [
        Erratum(solver, what, "seen earlier on this machine", problems=(problem,))
        for problem, solver, version, what in verdicts.seen(device)
        if version == plugins().fingerprint(solver)
    ]


def not_here(erratum: Erratum, device: DeviceInfo) -> str | None:
    """Why an erratum does not hold on a device: of its solver, of the device, or of a version; None if it holds."""
    root = erratum.solver.partition("+")[0]
    names = [name for name in plugins().solvers if fnmatch.fnmatchcase(name, root)]
    if not names:
        return f"no solver named {erratum.solver} is loaded"
    if not any(serves(plugins().solvers[name], device) for name in names):
        return f"{erratum.solver} does not run there"
    return erratum.misses(device, version_of(names[0]))


def version_of(solver: str) -> Callable[[str], str]:
    """A function that returns the version of the solver's ``plugin`` or ``library``."""
    return lambda what: plugins().version(solver) if what == "plugin" else plugins().library_version(solver)


def erratum(solver: str, problem: ConvProblem, device: DeviceInfo) -> str | None:
    """Why a solver must not run here, or None."""
    entries = (e for e in errata_of(solver, problem, device) if not e.kernel and e.where not in _retried)
    return next(map(str, entries), None)


def kernel_erratum(solver: str, problem: ConvProblem, kernel: str, remedy: str = "") -> str | None:
    """Why a kernel of the solver's library must not compute a problem, or None.

    With ``remedy``: why the solver must apply that remedy before it runs the kernel.
    """
    for entry in errata_of(solver, problem, None):
        if entry.remedy == remedy and any(fnmatch.fnmatchcase(kernel, glob) for glob in entry.kernel):
            if entry.where not in _retried:
                return str(entry)
            _encountered_retries.add(entry.where)
    return None


def retry(where: str) -> None:
    """Pass over an entry in this process, to see whether it still holds."""
    _retried.add(where)


def has_not_come_up(where: str) -> bool:
    """Whether an ignored entry names a library's kernels, none of which this process came across."""
    return where not in _encountered_retries and any(entry.kernel for entry in listed_errata() if entry.where == where)


def quarantined(problem: ConvProblem, device: DeviceInfo, solver: str) -> str | None:
    """Return why a solver is set aside for a problem, by this process or an earlier one, or None."""
    reason = _quarantined.get((problem, device, solver))
    return reason or verdicts.against(problem, device, solver, plugins().fingerprint(solver))


def is_any_set_aside(problem: ConvProblem, device: DeviceInfo) -> bool:
    """Whether this process set a solver aside for a problem, so that its choice may not be the next process's."""
    return any(key[:2] == (problem, device) for key in _quarantined) or bool(plugins().banned)


def forgive() -> None:
    """Forget which solvers are set aside; faults are reported again."""
    for table in (_quarantined, _requested, _starved):
        table.clear()
    forget_reported()


class NoWorkspace(MemoryLimit):
    """The device had no memory for a plan's workspace, so nothing was enqueued."""


def needs_too_much(solver: Solver, problem: ConvProblem, device: DeviceInfo) -> str | None:
    """Why the workspace that an accepting solver states fits in none of its configurations, or None. Raises Fault."""
    answers, room = query(solver, problem, device), workspace_room(problem, device)
    if room is None or not answers.accepts or next(answers.within(None), None) is not None:
        return None
    sizes = [size for config in answers.configs if (size := answers.workspace(config)) is not None]
    _note_requested_bytes(problem, device, solver.name, min(sizes))
    return f"needs {size_text(min(sizes))} of workspace, {device} has room for {size_text(room)}"


def must_have_room(problem: ConvProblem, device: DeviceInfo, solver: str, size: int) -> None:
    """Raise PluginError if a plan's workspace does not fit on the device."""
    room = workspace_room(problem, device)
    if room is not None and size > room:
        _note_requested_bytes(problem, device, solver, size)
        raise PluginError(
            f"{solver} asks for {size_text(size)} of workspace, and {device} has room for {size_text(room)}"
        )


def _note_requested_bytes(problem: ConvProblem, device: DeviceInfo, solver: str, size: int) -> None:
    _requested.setdefault((problem, device), {})[solver] = size


def lacked(problem: ConvProblem, device: DeviceInfo, solver: str, size: int, error: MemoryLimit) -> None:
    """Note that a solver lacked memory; ``size`` is its workspace in bytes, or 0."""
    _starved.setdefault((problem, device), {})[solver] = error
    if size:
        _note_requested_bytes(problem, device, solver, size)


def short_of_memory(problem: ConvProblem, device: DeviceInfo, error: NoSolver) -> MemoryLimit | NoSolver:
    """The error when no solver is left; solvers that lacked memory may be tried again."""
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
