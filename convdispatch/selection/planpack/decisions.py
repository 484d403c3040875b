"""Decisions that a plan pack fixes: found before solvers are ranked, noted where a pack is gathered."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ...api.device import DeviceInfo
from ...api.errors import ConvDispatchWarning
from ...api.policy import Policy
from ...api.problem import ConvProblem
from ...device.cache import artifact_store
from ..choice import lockfile
from ..choice.ranking import Candidate, contestants, refusal
from ..plugins.loader import plugins
from ..prepared import Prepared
from ..solver_query import query

if TYPE_CHECKING:
    import pyopencl as cl

__all__ = ["fixed_by_pack", "note"]

_said: set[str] = set()
"""Packs of which something did not fit as it was used; each is said once."""


def fixed_by_pack(problem: ConvProblem, device: cl.Device, info: DeviceInfo, policy: Policy) -> Candidate | None:
    """What a pack in force fixes; None where none does, or a policy or a lock file says more."""
    found = artifact_store.find("decisions", str(problem), device) if artifact_store.in_force() else None
    if found is None or policy.selection != Policy() or lockfile.in_force(problem) is not None:
        return None
    (name, config), pack = (found[0]["solver"], found[0]["config"]), found[1]
    solver = plugins().solvers.get(name) or contestants(problem, info).get(name)
    if solver is None:
        return _misfit(pack, f"it fixes {name} for {problem}, which no plugin provides")
    refused = refusal(solver, problem, info, policy)
    if refused is not None:
        return _misfit(pack, f"it fixes {name} for {problem}, which refuses: {refused[1]}")
    if not query(solver, problem, info).offers(config):
        return _misfit(pack, f"it fixes a configuration for {problem} that {name} does not offer")
    return Candidate(solver, config, f"plan pack {pack}")


def note(prepared: Prepared, device: cl.Device, policy: Policy, compiled: int) -> None:
    """Tell those who gather of a plan. ``compiled`` is how many programs were, which a pack should have held."""
    if policy.selection == Policy():
        decision: Mapping[str, Any] = {"solver": prepared.solver.name, "config": dict(prepared.config)}
        artifact_store.note("decisions", str(prepared.problem), lambda: decision, device)
    if compiled and prepared.source.startswith("plan pack "):
        why = f"the kernels of {prepared.solver.name} for {prepared.problem} read otherwise than when it was made"
        _misfit(prepared.source.removeprefix("plan pack "), why)


def _misfit(pack: str, why: str) -> None:
    if pack not in _said:
        _said.add(pack)
        words = f"the plan pack {pack} does not fit: {why}; what does not fit is chosen and compiled anew"
        warnings.warn(words, ConvDispatchWarning, stacklevel=6)
