"""The provenance of a measurement: the plugin, its version, the source that it compiles, the driver."""

from __future__ import annotations

import sys

from ...api.device import DeviceInfo
from ...device.cache import keys
from ..plugins.loader import plugins
from ..records.record import Provenance

_SHARED = ("convdispatch.api", "convdispatch.device.gemm", "convdispatch.device.programs")
"""The packages whose source code all plans share."""


def current(solver: str, device: DeviceInfo, workspace_limit: int | None = None) -> Provenance:
    """The provenance that a measurement of ``solver`` on ``device`` would have now."""
    loaded = plugins()
    loaded_solver = loaded.solvers.get(solver) or loaded.solvers.get(solver.partition("+")[0])
    return Provenance(
        plugin=loaded.provider(solver) if loaded_solver is not None else "",
        plugin_version=loaded.version(solver),
        kernel_hash=text_hash(type(loaded_solver).__module__) if loaded_solver is not None else "",
        driver=device.driver,
        workspace_limit=workspace_limit,
    )


def contestant(solver: str, device: DeviceInfo) -> str:
    """A solver in its present version, as ``Record.contest`` names those that took part in a search."""
    return f"{solver}:{current(solver, device).kernel_hash[:8]}"


def text_hash(module: str) -> str:
    """Hash of the source code of a solver's package and of the code that all plans share; 16 hexadecimal digits.

    The whole package is hashed, because that needs no compilation and a plan also depends on host code. Empty for a
    module without files.
    """
    home = module.partition(".")[0]
    if getattr(sys.modules.get(home), "__file__", None) is None:
        return ""
    return keys.key_of(*map(keys.content, (home, *_SHARED)))[:16]
