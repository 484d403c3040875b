"""The folders that are written on this machine: where, why, how large, and which may be emptied."""

from __future__ import annotations

import contextlib
import shutil
from dataclasses import dataclass
from pathlib import Path

import platformdirs

from ..device.programs import binary_cache
from ..device.rates import place
from ..device.runtime import DeviceInfo
from ..selection.decision_store import SUFFIX
from ..selection.plugins.loader import dropin_folder
from ..selection.records.perfdb import user_folder


@dataclass(frozen=True)
class Folder:
    """A folder and what its files are."""

    name: str
    path: Path
    what: str
    variable: str
    """The environment variable that moves the folder."""
    cache: bool
    """Whether the folder's files are created again when they are missing."""
    files: str = "*"
    """A glob that selects the folder's files."""

    @property
    def size(self) -> int:
        """Bytes of the folder's files; 0 where there is no folder."""
        total = 0
        for file in self._files():
            with contextlib.suppress(FileNotFoundError):  # another process deleted the file after it was listed
                total += file.stat().st_size
        return total

    def _files(self) -> list[Path]:
        return [file for file in self.path.rglob(self.files) if file.is_file() and not file.is_symlink()]

    def clear(self) -> int:
        """Delete the folder; returns the bytes that it held."""
        size = self.size
        if self.files != "*":
            for file in self._files():
                file.unlink(missing_ok=True)
        elif self.path.is_dir() and not self.path.is_symlink():
            shutil.rmtree(self.path)
        return size


def folders() -> list[Folder]:
    """The folders that convdispatch writes or reads, caches first."""
    cache = Path(platformdirs.user_cache_dir("convdispatch"))
    kernels = binary_cache.folder()
    listed = [
        Folder("kernels", kernels, "compiled kernels", "CONVDISPATCH_KERNEL_CACHE", True) if kernels else None,
        Folder("decisions", kernels, "what this machine decided", "CONVDISPATCH_KERNEL_CACHE", True, f"*{SUFFIX}")
        if kernels
        else None,
        Folder("cache", cache, "all caches: kernels, decisions, what drivers did", "XDG_CACHE_HOME", True),
        Folder("pyopencl", Path(platformdirs.user_cache_dir("pyopencl", "pyopencl")), "pyopencl's programs",
               "XDG_CACHE_HOME", True),
        Folder("pytools", Path(platformdirs.user_cache_dir("pytools", "pytools")), "pyopencl's generated calls",
               "XDG_CACHE_HOME", True),
        Folder("records", user_folder(), "measured records", "CONVDISPATCH_DB", False),
        Folder("rates", place(DeviceInfo("", "", "cpu", "")).parent, "measured rates of devices", "CONVDISPATCH_RATES",
               False),
        Folder("plugins", dropin_folder(), "your drop-in plugins; nothing is written there", "CONVDISPATCH_PLUGIN_DIR",
               False),
    ]  # fmt: skip
    return [folder for folder in listed if folder is not None]
