"""The environment of a run, for the reports of the conformance kit and the benchmark."""

from __future__ import annotations

import importlib.metadata
import platform
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from ..api.device import DeviceInfo
from ..selection.records.record import device_key, now


def versions(names: Sequence[str]) -> dict[str, str]:
    """The versions of those of these packages that are installed."""
    installed = {}
    for name in names:
        try:
            installed[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return installed


def environment(device: DeviceInfo, packages: Sequence[str] = ("convdispatch", "pyopencl", "numpy")) -> dict[str, Any]:
    """The environment of a run as JSON values: device, driver and versions, without names of persons or hosts."""
    fields = asdict(device)
    del fields["extensions"]
    return {
        "created": now()[:19] + "Z",
        "device": fields | {"title": str(device), "key": device_key(device)},
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "packages": versions(packages),
    }
