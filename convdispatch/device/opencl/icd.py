"""Finds OpenCL vendors' libraries, including those that pip installed, and points the ICD loader at them.

pyopencl's wheel bundles the ocl-icd loader, which reads ``/etc/OpenCL/vendors`` or the folder that
``OCL_ICD_VENDORS`` names, once, before the first platform query. A runtime that pip put into a virtual environment is
in neither. So this module writes a folder that lists the system's vendors and pip's, and sets ``OCL_ICD_VENDORS`` to
it, unless the user has chosen a folder.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import hashlib
import importlib.metadata
import importlib.util
import os
import site
import sys
import tempfile
import warnings
from dataclasses import dataclass
from pathlib import Path

from ...api import settings
from ...api.errors import ConvDispatchWarning
from .. import plainfile
from ..cache.keys import key_of
from ..cache.store import TRIALS
from ..cache_home import temporary, user_folder
from ..child import trial

SYSTEM_FOLDER = Path("/etc/OpenCL/vendors")
_NVIDIA = "libnvidia-opencl.so.1"


@dataclass(frozen=True)
class Vendor:
    """A vendor's library: what lists it, its path or soname, the problem if it does not load, and the remedy."""

    source: str
    library: str
    problem: str | None
    mend: str | None = None


def vendors(*, load: bool = True) -> list[Vendor]:
    """Every vendor library that can be found, sorted by source; ``load`` tries each one with the dynamic linker."""
    listed = _all_listed()
    chosen = settings.OCL_ICD_VENDORS.value()
    if chosen and not _is_our_folder(chosen):
        listed = list(_listed_in(Path(chosen)))
    every = [*listed, *sorted(_bundled())]
    return [_examined(source, library) if load else Vendor(source, library, None) for source, library in every]


def _examined(source: str, library: str) -> Vendor:
    """The vendor, with its library's problem. The library is loaded in this process only if a child survived that."""
    crash = how_it_ends(library)
    if crash:
        return Vendor(source, library, crash, _advice(source))
    problem = _load_problem(library)
    if problem and "undefined symbol" in problem and "tbb" in problem:
        problem_text = f"an older TBB than it needs was loaded before it, as OpenVINO brings one ({problem})"
        mend = "import convdispatch first, and call convdispatch.runtime.devices() before `import openvino`"
        return Vendor(source, library, problem_text, mend)
    return Vendor(source, library, problem, _remedy(library, problem))


def _advice(source: str) -> str:
    """Advice on how to exclude a library that ends every process that loads it."""
    action = f"remove {source}" if source.endswith(".icd") else f"uninstall it ({source})"
    return f"it is left out; {action} or update the driver; OCL_ICD_VENDORS may name a folder without it"


def announce() -> str | None:
    """Point the ICD loader at all vendors; returns the folder, or None when the loader's own search is enough.

    A library that ends the process that loads it is left out, even if the user chose it, with a warning.
    Takes effect only before the process first queries the platforms.
    """
    if sys.platform != "linux":
        return None
    chosen = settings.OCL_ICD_VENDORS.value()
    listed = _listed_in(Path(chosen)) if chosen else _all_listed()
    usable = [(source, library) for source, library in listed if not _ends_process(source, library)]
    if len(usable) == len(listed) and (chosen or not usable):
        return None
    text = "\n".join(library for _, library in usable)
    folder = _folder(hashlib.sha256(text.encode()).hexdigest()[:16])
    for number, (_, library) in enumerate(usable):
        target = folder / f"{number:02d}-{Path(library).name.split('.')[0]}.icd"
        if not target.exists():
            plainfile.publish(target, library + "\n")
    os.environ["OCL_ICD_VENDORS"] = str(folder)
    return str(folder)


def _ends_process(source: str, library: str) -> bool:
    crash = how_it_ends(library)
    if crash:
        warnings.warn(f"OpenCL vendor library {library}: {crash}; {_advice(source)}", ConvDispatchWarning, stacklevel=3)
    return bool(crash)


def _all_listed() -> list[tuple[str, str]]:
    listed = [*_listed_by_variable(), *_listed_by_system(), *_installed_by_pip()]
    by_name: dict[str, tuple[str, str]] = {}
    # One library may be listed under several versions, as libpocl.so.2 and libpocl.so.2.12.0.
    for source, library in listed:
        by_name.setdefault(Path(library).name.split(".so")[0], (source, library))
    unique = list(by_name.values())
    return unique if any(_NVIDIA in library for _, library in unique) else [*unique, *_unlisted_nvidia()]


def _listed_by_variable() -> list[tuple[str, str]]:
    # Khronos' OpenCL loader reads OCL_ICD_FILENAMES itself, but the loader in pyopencl's wheel does not.
    names = os.environ.get("OCL_ICD_FILENAMES", "").split(os.pathsep)
    return [("OCL_ICD_FILENAMES", name) for name in names if name]


def _is_our_folder(folder: str) -> bool:
    return Path(folder).name.startswith("convdispatch-icd-")


def _folder(digest: str) -> Path:
    name = f"convdispatch-icd-{digest}"
    for parent in (user_folder("cache"), temporary()):
        try:
            (parent / name).mkdir(parents=True, exist_ok=True)
        except OSError:
            continue
        if os.access(parent / name, os.W_OK):
            return parent / name
    return Path(tempfile.mkdtemp(prefix=name))


def _listed_in(folder: Path) -> list[tuple[str, str]]:
    files = [folder] if folder.is_file() else sorted(folder.glob("*.icd"))
    return [(str(file), library) for file in files if (library := _library(file))]


def _library(file: Path) -> str:
    """The library that an .icd file names; empty, with a warning, for a file that no loader can read."""
    try:
        text = plainfile.read_text(file, 1 << 16).strip()
        if "\0" in text or "\n" in text:
            raise ValueError("one line that names a library is expected")
    except OSError:
        return ""
    except ValueError as error:
        warnings.warn(f"{file} is passed over: {error}; remove it or mend it", ConvDispatchWarning, stacklevel=3)
        return ""
    return text


def _listed_by_system() -> list[tuple[str, str]]:
    return _listed_in(SYSTEM_FOLDER)


def _installed_by_pip() -> list[tuple[str, str]]:
    # The .icd file in Intel's wheel names a path on the machine that built it, so libintelocl.so is searched for.
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
    """The libraries in pyopencl's wheel, PoCL and Oclgrind, which its loader finds by itself."""
    spec = importlib.util.find_spec("pyopencl")
    if spec is None or spec.origin is None:
        return []
    folder = Path(spec.origin).parent / ".libs"
    return [(f"pip: pyopencl ({file.name})", str(folder / _library(file))) for file in folder.glob("*.icd")]


def _unlisted_nvidia() -> list[tuple[str, str]]:
    # Containers often have NVIDIA's OpenCL library, but no .icd file that names it.
    return (
        [] if how_it_ends(_NVIDIA) or _load_problem(_NVIDIA) else [("driver: NVIDIA (no .icd file names it)", _NVIDIA)]
    )


def _load_problem(library: str) -> str | None:
    try:
        ctypes.CDLL(library)
    except OSError as error:
        return str(error)
    return None


def _remedy(library: str, problem: str | None) -> str | None:
    if problem is None:
        return None
    if "libintelocl" in library:
        return "pip install intel-cmplr-lib-rt"
    if "cannot open shared object file" in problem and library in problem:
        return "the .icd file names a library that is not there: reinstall the driver or remove the file"
    return "install what the message names, or remove the .icd file"


LOAD_S = 60.0
"""The most seconds that a library may take to load and to list its platforms, on a busy machine."""
_LINKER_CACHE = Path("/etc/ld.so.cache")
_CHILD = """
import ctypes, os, sys
try:
    library = ctypes.CDLL(sys.argv[1])
    address = library.clGetExtensionFunctionAddress
    address.restype, address.argtypes = ctypes.c_void_p, [ctypes.c_char_p]
    found = address(b"clIcdGetPlatformIDsKHR")
    if found:
        kind = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_uint, ctypes.c_void_p, ctypes.c_void_p)
        kind(found)(0, None, ctypes.addressof(ctypes.c_uint()))
except (OSError, AttributeError):
    pass  # what the linker refuses, the OpenCL loader passes over
sys.stdout.write("\\2survived")
sys.stdout.flush()
os._exit(0)
"""


@functools.lru_cache(maxsize=64)
def how_it_ends(library: str) -> str | None:
    """A text on how a library ends the process that loads it; None if it does not, whether it loads or not."""
    key = key_of("vendor library", _file_state(library))
    fault = (TRIALS.get(key) or {}).get("fault")
    if not isinstance(fault, str):
        fault = _try(library)
        if fault is not None:
            TRIALS.put(key, {"fault": fault}, f"loading {library}")
    return fault or None


def _try(library: str) -> str | None:
    return trial(["-I", "-S", "-c", _CHILD, library], "loads", LOAD_S)


def _file_state(library: str) -> str:
    """A library's name with the time and size of its file, or for a bare name with those of the linker's cache."""
    for path in (Path(library), _LINKER_CACHE):
        with contextlib.suppress(OSError):
            status = path.stat()
            return f"{library} {status.st_mtime_ns} {status.st_size}"
    return library
