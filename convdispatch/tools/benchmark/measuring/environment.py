"""What a benchmark ran on: device, driver, versions, plugins and hashes of their text; no name of a person or host."""

from __future__ import annotations

import importlib.metadata
import platform
from dataclasses import asdict
from typing import Any

from ....api.device import DeviceInfo
from ....selection.choice.provenance import current
from ....selection.plugins.loader import plugins
from ....selection.records.record import device_key, now
from ..quiet import load_now

PACKAGES = ("convdispatch", "pyopencl", "numpy", "torch", "onnxruntime", "intel-opencl-rt")


def environment(device: DeviceInfo) -> dict[str, Any]:
    """JSON values."""
    seen = asdict(device)
    del seen["extensions"]
    return {
        "created": now()[:19] + "Z",
        "device": seen | {"title": str(device), "key": device_key(device)},
        "python": platform.python_version(),
        "load": load_now(),
        "system": f"{platform.system()} {platform.machine()}",
        "packages": {name: version for name in PACKAGES if (version := _version(name))},
        "plugins": plugin_texts(device),
    }


def plugin_texts(device: DeviceInfo) -> dict[str, str]:
    """Plugin to ``version hash``, for each that has a solver; a changed kernel changes the hash."""
    made = (current(name, device) for name in plugins().solvers)
    return dict(sorted((p.plugin, f"{p.plugin_version} {p.kernel_hash}".strip()) for p in made))


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return ""
