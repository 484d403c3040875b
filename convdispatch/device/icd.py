"""Finds OpenCL vendors' libraries, also those that pip installed, and tells the ICD loader where they are.

pyopencl's wheel bundles the ocl-icd loader, which reads ``/etc/OpenCL/vendors`` or the folder that
``OCL_ICD_VENDORS`` names, once, before the first platform query. A runtime that pip put into a virtual environment is
in neither. So this module writes a folder that lists the system's vendors and pip's, and names it, unless the user
has chosen a folder.
"""

from __future__ import annotations

import ctypes
import hashlib
import importlib.metadata
import importlib.util
import os
import site
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import platformdirs

__all__ = ["Vendor", "announce", "vendors"]

SYSTEM_FOLDER = Path("/etc/OpenCL/vendors")
_NVIDIA = "libnvidia-opencl.so.1"


@dataclass(frozen=True)
class Vendor:
    """One vendor library: what names it, its path or soname, and the loader's complaint if it does not load."""

    source: str
    library: str
    problem: str | None
    mend: str | None = None


def vendors(*, load: bool = True) -> list[Vendor]:
    """Every vendor library that can be found, sorted by source; ``load`` tries each one with the dynamic linker."""
    found = _all()
    chosen = os.environ.get("OCL_ICD_VENDORS")
    if chosen and not _ours(chosen):
        found = list(_listed_in(Path(chosen)))
    result = []
    for source, library in [*found, *sorted(_bundled())]:
        problem = _load_problem(library) if load else None
        result.append(Vendor(source, library, problem, _mend(library, problem)))
    return result


def announce() -> str | None:
    """Point the ICD loader at all vendors; returns the folder, or None when the user's own choice stands.

    Takes effect only before the process first asks for platforms.
    """
    if os.environ.get("OCL_ICD_VENDORS") or sys.platform != "linux":
        return None
    found = _all()
    if not found:
        return None
    text = "\n".join(library for _, library in found)
    folder = _folder(hashlib.sha256(text.encode()).hexdigest()[:16])
    for number, (_, library) in enumerate(found):
        target = folder / f"{number:02d}-{Path(library).name.split('.')[0]}.icd"
        if not target.exists():  # written beside and renamed: another process may be reading
            draft = folder / f".{target.name}.{os.getpid()}"
            draft.write_text(library + "\n")
            draft.replace(target)
    os.environ["OCL_ICD_VENDORS"] = str(folder)
    return str(folder)


def _all() -> list[tuple[str, str]]:
    listed = [*_listed_by_variable(), *_listed_by_system(), *_installed_by_pip()]
    first: dict[str, tuple[str, str]] = {}
    for source, library in listed:  # libpocl.so.2 and libpocl.so.2.12.0 are one library
        first.setdefault(Path(library).name.split(".so")[0], (source, library))
    found = list(first.values())
    return found if any(_NVIDIA in library for _, library in found) else [*found, *_unlisted_nvidia()]


def _listed_by_variable() -> list[tuple[str, str]]:
    # Khronos' loader reads this variable; the one in pyopencl's wheel does not, so its libraries are listed for it.
    names = os.environ.get("OCL_ICD_FILENAMES", "").split(os.pathsep)
    return [("OCL_ICD_FILENAMES", name) for name in names if name]


def _ours(folder: str) -> bool:
    return Path(folder).name.startswith("convdispatch-icd-")


def _folder(digest: str) -> Path:
    name = f"convdispatch-icd-{digest}"
    for parent in (Path(platformdirs.user_cache_dir("convdispatch")), Path(tempfile.gettempdir())):
        try:
            (parent / name).mkdir(parents=True, exist_ok=True)
        except OSError:
            continue
        if os.access(parent / name, os.W_OK):
            return parent / name
    return Path(tempfile.mkdtemp(prefix=name))


def _listed_in(folder: Path) -> list[tuple[str, str]]:
    if folder.is_file():
        return [(str(folder), folder.read_text().strip())]
    if not folder.is_dir():
        return []
    listed = []
    for file in sorted(folder.glob("*.icd")):
        try:
            listed.append((str(file), file.read_text().strip()))
        except OSError:
            continue
    return [(source, library) for source, library in listed if library]


def _listed_by_system() -> list[tuple[str, str]]:
    return _listed_in(SYSTEM_FOLDER)


def _installed_by_pip() -> list[tuple[str, str]]:
    # The .icd file inside Intel's wheel names a path on the machine that built it, so the library is looked for.
    name = "libintelocl.so"
    for prefix in (sys.prefix, site.getuserbase() if site.ENABLE_USER_SITE else sys.prefix):
        if (Path(prefix) / "lib" / name).exists():
            return [("pip: intel-opencl-rt", str(Path(prefix) / "lib" / name))]
    try:
        files = importlib.metadata.files("intel-opencl-rt") or []
    except importlib.metadata.PackageNotFoundError:
        return []
    return [("pip: intel-opencl-rt", str(file.locate().resolve())) for file in files if file.name == name][:1]


def _bundled() -> list[tuple[str, str]]:
    """What pyopencl's wheel brings and its loader finds by itself: PoCL, Oclgrind."""
    spec = importlib.util.find_spec("pyopencl")
    if spec is None or spec.origin is None:
        return []
    folder = Path(spec.origin).parent / ".libs"
    return [(f"pip: pyopencl ({file.name})", str(folder / file.read_text().strip())) for file in folder.glob("*.icd")]


def _unlisted_nvidia() -> list[tuple[str, str]]:
    # Containers often have NVIDIA's library and no .icd file for it.
    return [] if _load_problem(_NVIDIA) else [("driver: NVIDIA (no .icd file names it)", _NVIDIA)]


def _load_problem(library: str) -> str | None:
    try:
        ctypes.CDLL(library)
    except OSError as error:
        return str(error)
    return None


def _mend(library: str, problem: str | None) -> str | None:
    if problem is None:
        return None
    if "libintelocl" in library:
        return "pip install intel-cmplr-lib-rt"
    if "cannot open shared object file" in problem and library in problem:
        return "the .icd file names a library that is not there: reinstall the driver or remove the file"
    return "install what the message names, or remove the .icd file"
