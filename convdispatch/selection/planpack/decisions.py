"""The decisions that a plan pack fixes: they are looked up before solvers are ranked, and recorded while a pack is
gathered.

A decision carries a seal, a hash of everything that it depends on. If the hash is the same now, the solver offered its
configuration with the same sources on the same device, and is only queried whether it serves the device.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import warnings
from collections.abc import Mapping
from typing import Any

import pyopencl as cl

from ...api.device import DeviceInfo
from ...api.errors import ConvDispatchWarning
from ...api.policy import Policy
from ...api.problem import ConvProblem
from ...device import runtime
from ...device.cache import artifact_store, keys
from ..choice import lockfile
from ..choice.ranking import Candidate, contestants, refusal
from ..decision_store import stored_candidate
from ..plugins.loader import plugins
from ..prepared import Prepared
from ..solver_query import query

SOURCE_PACKAGES = ("api", "device", "selection", "measurement")
"""The subpackages of convdispatch whose source code affects a choice."""

_reported: set[str] = set()
"""The plan packs with an entry that did not fit when it was used; each is reported once."""


def fixed_by_pack(problem: ConvProblem, device: cl.Device, info: DeviceInfo, policy: Policy) -> Candidate | None:
    """Return the candidate that a plan pack in force fixes; None if there is none, or a policy or a lock file takes
    precedence."""
    entry = (
        artifact_store.find("decisions", keys.decision_key(problem, policy), device)
        if artifact_store.in_force()
        else None
    )
    if entry is None or lockfile.in_force(problem) is not None:
        return None
    decision, pack = entry
    name, config, source = decision["solver"], decision["config"], f"plan pack {pack}"
    if decision.get("seal") and decision["seal"] == _seal(keys.decision_key(problem, policy), decision, device):
        valid = stored_candidate(problem, info, {**decision, "source": source})
        if valid is not None:
            return valid
    solver = plugins().solvers.get(name) or contestants(problem, info).get(name)
    if solver is None:
        return _warn_of_misfit(pack, f"it fixes {name} for {problem}, which no plugin provides")
    refused = refusal(solver, problem, info, policy)
    if refused is not None:
        return _warn_of_misfit(pack, f"it fixes {name} for {problem}, which refuses: {refused[1]}")
    if not query(solver, problem, info).offers(config):
        return _warn_of_misfit(pack, f"it fixes a configuration for {problem} that {name} does not offer")
    return Candidate(solver, config, source)


def note(prepared: Prepared, device: cl.Device, policy: Policy, compiled: int) -> None:
    """Add a new plan's decision to the packs that are being gathered. ``compiled`` is the number of programs that had
    to be compiled for it, although a pack should have held them."""
    if policy.selection == Policy():
        key, name, math = str(prepared.problem), prepared.solver.name, prepared.math
        decision = {"solver": name, "config": dict(prepared.config), "math": math}
        artifact_store.note("decisions", key, lambda: sealed(key, decision, device), device)
    if compiled and prepared.source.startswith("plan pack "):
        why = f"the kernels of {prepared.solver.name} for {prepared.problem} read otherwise than when it was made"
        _warn_of_misfit(prepared.source.removeprefix("plan pack "), why)


def sealed(key: str, decision: Mapping[str, Any], device: cl.Device) -> dict[str, Any]:
    """A decision that was made under ``key`` on a device, with its seal; the seal is empty if JSON cannot hold it."""
    return {**decision, "seal": _seal(key, decision, device)}


def _seal(key: str, decision: Mapping[str, Any], device: cl.Device) -> str:
    try:
        sealed_text = json.dumps([key, *(decision.get(name) for name in ("solver", "config", "math"))], sort_keys=True)
    except (TypeError, ValueError):
        return ""
    sources = _sources(plugins().provider(decision["solver"]), device)
    return keys.key_of(sealed_text, sources) if sources else ""


@functools.lru_cache(maxsize=64)
def _sources(plugin: str, device: cl.Device) -> str:
    """A hash of the device and of the sources that decide what a plugin's solvers offer; empty without sources."""
    loaded = plugins()
    plugin_home, own = getattr(loaded.manager.get_plugin(plugin), "__name__", ""), __name__.partition(".")[0]
    if not plugin_home:
        return ""
    packages = [plugin_home, *(f"{own}.{zone}" for zone in SOURCE_PACKAGES)]
    stamps = [keys.stamp(package) for package in packages]
    fields = dataclasses.asdict(runtime.device_info(device))
    identity = [{**fields, "extensions": sorted(fields["extensions"])}, keys.identity(device)]
    return keys.key_of(json.dumps(identity, sort_keys=True), loaded.fingerprints.get(plugin, ""), *stamps)


def _warn_of_misfit(pack: str, why: str) -> None:
    # A collection without a name was gathered by this process, so nobody needs a warning that it no longer fits.
    if pack and pack not in _reported:
        _reported.add(pack)
        words = f"the plan pack {pack} does not fit: {why}; what does not fit is chosen and compiled anew"
        warnings.warn(words, ConvDispatchWarning, stacklevel=6)
