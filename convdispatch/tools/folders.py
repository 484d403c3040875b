"""The folders that are written on this machine besides the store, and how to empty them."""

from __future__ import annotations

import contextlib
import shutil
from dataclasses import dataclass
from pathlib import Path

import platformdirs

from ..device.rates import place
from ..device.runtime import DeviceInfo
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
    cache: bool = False
    """Whether the folder's files are created again when they are missing."""

    def size(self) -> tuple[int, int]:
        """The number of the folder's files, and their bytes."""
        sizes = []
        for file in self.path.rglob("*"):
            with contextlib.suppress(FileNotFoundError):  # another process deleted the file after it was listed
                if file.is_file() and not file.is_symlink():
                    sizes.append(file.stat().st_size)
        return len(sizes), sum(sizes)

    def clear(self) -> int:
        """Delete the folder; returns the bytes that it held."""
        nbytes = self.size()[1]
        if self.path.is_dir() and not self.path.is_symlink():
            shutil.rmtree(self.path)
        return nbytes


def folders() -> list[Folder]:
    """The folders that convdispatch writes or reads besides the store's, caches first."""
    pyopencl, pytools = (Path(platformdirs.user_cache_dir(name, name)) for name in ("pyopencl", "pytools"))
    rates = place(DeviceInfo("", "", "cpu", "")).parent
    return [
        Folder("pyopencl", pyopencl, "pyopencl's programs", "XDG_CACHE_HOME", cache=True),
        Folder("pytools", pytools, "pyopencl's generated calls", "XDG_CACHE_HOME", cache=True),
        Folder("records", user_folder(), "measured records", "CONVDISPATCH_DB"),
        Folder("rates", rates, "measured rates of devices", "CONVDISPATCH_RATES"),
        Folder("plugins", dropin_folder(), "your drop-in plugins; nothing is written there", "CONVDISPATCH_PLUGIN_DIR"),
    ]
