"""Finds vendors' libraries as the OpenCL ICD loader does: by files ``NAME.icd`` of one line, a library's path.

The folders are ``/etc/convdispatch/vendors`` and then ``vendors`` in the user's configuration folder, each sorted by
name; ``CONVDISPATCH_VENDORS`` replaces them by a list of folders, ``.icd`` files and libraries.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from ...api import settings
from ...api.errors import PluginError
from ...device import plainfile
from ...device.cache_home import user_folder

HEADER = Path(__file__).parents[2] / "include" / "convdispatch_plugin.h"
"""The header that vendors compile against."""
SYSTEM_FOLDER = Path("/etc/convdispatch/vendors")


def sources() -> list[Path]:
    """The folders, files and libraries that are searched, in order."""
    return list(settings.VENDORS.value()) or [SYSTEM_FOLDER, user_folder("config") / "vendors"]


def vendor_files() -> Iterator[Path]:
    """Each ``.icd`` file, in order, and each library or missing file that ``CONVDISPATCH_VENDORS`` names."""
    for source in sources():
        if source.is_dir():
            yield from sorted(source.glob("*.icd"))
        elif settings.VENDORS.value():
            yield source


def name_of(file: Path) -> str:
    """The plugin's name, which is the file's; for a library without the prefix ``lib``."""
    return file.stem if file.suffix == ".icd" else file.name.partition(".")[0].removeprefix("lib")


def library_of(file: Path) -> str:
    """The library that an ``.icd`` file names, or the library itself. Raises PluginError for an unreadable file."""
    if file.suffix != ".icd":
        return str(file)
    try:
        lines = [line.strip() for line in plainfile.read_text(file).splitlines() if line.strip()]
    except (OSError, ValueError) as error:
        raise PluginError(f"{file} cannot be read: {error}") from None
    if len(lines) != 1 or "\0" in lines[0]:
        raise PluginError(f"{file} must be one line, a library's path, got {len(lines)} lines")
    # The dynamic linker looks for a bare name; a path is relative to the file's folder.
    return str(file.parent / lines[0]) if "/" in lines[0] else lines[0]


def content_of(file: Path) -> list[Path]:
    """The files that make up a version of the plugin."""
    try:
        return [file, Path(library_of(file))]
    except PluginError:
        return [file]
