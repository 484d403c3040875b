"""The provenance of a measurement: the plugin, its version, the source that it compiles, the driver."""

from __future__ import annotations

import functools
import hashlib
import sys
from pathlib import Path

from ...api.device import DeviceInfo
from ...device import plainfile
from ..plugins.loader import plugins
from ..records.record import Provenance

_SUFFIXES = {".py", ".cl", ".mako", ".h", ".c", ".cu"}


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


@functools.lru_cache(maxsize=256)
def text_hash(module: str) -> str:
    """Hash of the source code of a solver's package and of the code that all plans share; 16 hexadecimal digits.

    The whole package is hashed, because that needs no compilation and a plan also depends on host code. Empty for a
    module without files.
    """
    file = getattr(sys.modules.get(module), "__file__", None)
    if file is None:
        return ""
    digest = hashlib.sha256()
    root = Path(__file__).parents[2]
    header, device = root / "api", root / "device"
    shared = {
        *_source_files(device / "gemm"),
        device / "programs" / "kernels.py",
        header / "geometry.py",
        *header.glob("*.cl"),
    }
    for path in sorted({*_source_files(_package_folder(module, Path(file))), *shared}):
        digest.update(path.name.encode())
        digest.update(plainfile.read_bytes(path))
    return digest.hexdigest()[:16]


def _package_folder(module: str, file: Path) -> Path:
    """The folder of the module's top-level package, or the file itself if there is no package."""
    top = sys.modules.get(module.partition(".")[0])
    folders = list(getattr(top, "__path__", ()))
    return Path(folders[0]) if folders else file


def _source_files(root: Path) -> list[Path]:
    if root.is_file():
        return [root]
    return [path for path in root.rglob("*") if path.suffix in _SUFFIXES and "__pycache__" not in path.parts]
