"""The keys of stored artifacts: digests of all that an artifact follows from. Nothing else invalidates an artifact.

``identity`` describes a device with its driver, ``stamp`` and ``content`` the sources of a package or plugin, and
``key_of`` makes one key of such parts.
"""

from __future__ import annotations

import functools
import hashlib
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from ...api.policy import Policy
from ...api.problem import ConvProblem

if TYPE_CHECKING:
    import pyopencl as cl

_COMPILERS = ("CL_CONFIG_", "POCL_", "IGC_")
"""Prefixes of the environment variables that change how a driver compiles, or its target."""
_SOURCES = (".py", ".mako", ".cl")
_VERSIONED = ("numpy", "ml_dtypes")
"""Packages of many files, whose sources are identified by their version."""


def key_of(*parts: str | bytes) -> str:
    """A digest of ``parts``, as the key of an artifact that follows from them."""
    digest = hashlib.sha256()
    for part in parts:
        content = part.encode() if isinstance(part, str) else part
        digest.update(f"{len(content)}:".encode() + content)
    return digest.hexdigest()


def decision_key(problem: ConvProblem, policy: Policy) -> str:
    """The key of a decision for a problem; plan packs hold decisions of the default policy only."""
    selection = policy.selection
    return str(problem) if selection == Policy() else f"{problem} under {selection}"


def identity(device: cl.Device) -> dict[str, str]:
    """What a compiled kernel depends on besides its text: the device, its driver, and the driver's environment
    variables."""
    return {**_device_identity(device), "compiler variables": compiler_variables()}


def compiler_variables() -> str:
    """The environment variables that change how drivers compile, and their values."""
    return ";".join(f"{k}={os.environ.get(k)}" for k in sorted(k for k in os.environ if k.startswith(_COMPILERS)))


@functools.lru_cache(maxsize=64)
def _device_identity(device: cl.Device) -> dict[str, str]:
    platform = device.platform
    return {
        "device": device.name,
        "OpenCL version": device.version,
        "driver": device.driver_version,
        "platform": f"{platform.name} {platform.version}",
        # Devices of one name may have different processors, for example where machines share a cache folder.
        "vector width": str(device.native_vector_width_float),
        "extensions": hashlib.sha256(device.extensions.encode()).hexdigest()[:16],
    }


@functools.lru_cache(maxsize=64)
def stamp(home: str) -> str:
    """A digest of the modification times and sizes of a package's source files."""
    # os.stat is used, because Path.stat is slow for the hundreds of files of a package.
    statistics = ((name, os.stat(path)) for name, path in _sources(home))  # noqa: PTH116
    text = ";".join(f"{name} {status.st_mtime_ns} {status.st_size}" for name, status in statistics)
    return f"{home} {_version(home)} {hashlib.sha256(text.encode()).hexdigest()}"


@functools.lru_cache(maxsize=64)
def content(home: str) -> str:
    """A digest of the content of a package's source files, which is the same on other machines."""
    digest = hashlib.sha256()
    for name, path in _sources(home):
        digest.update(f"{name} {hashlib.sha256(Path(path).read_bytes()).hexdigest()};".encode())
    return f"{home} {_version(home)} {digest.hexdigest()}"


def _version(home: str) -> str:
    return getattr(sys.modules.get(home), "__version__", "")


def _sources(home: str) -> list[tuple[str, str]]:
    """The name and path of each source file of a package, sorted; empty where its version suffices."""
    if home.partition(".")[0] in sys.stdlib_module_names or home in _VERSIONED:
        return []
    module = sys.modules.get(home)
    file = getattr(module, "__file__", None)
    folders = list(getattr(module, "__path__", ())) or ([str(Path(file).parent)] if file else [])
    if module is None:  # A package that this process has not imported has the same sources as in one that has.
        parent, _, name = home.rpartition(".")
        folders = [str(Path(folder) / name) for folder in getattr(sys.modules.get(parent), "__path__", ())]
    names = []
    for folder in folders:
        for place, _, files in os.walk(folder):
            relative = os.path.relpath(place, folder)
            names += [(f"{relative}/{n}", os.path.join(place, n)) for n in files if n.endswith(_SOURCES)]  # noqa:PTH118
    return sorted(names)
