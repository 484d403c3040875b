"""What a benchmark ran on: device, driver, versions, plugins and hashes of their text; no name of a person or host."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ...api.device import DeviceInfo
from ...selection.loader import plugins
from ...selection.records.provenance import current
from ...selection.records.record import device_key, now

__all__ = ["busy", "environment", "plugin_texts"]

PACKAGES = ("convdispatch", "pyopencl", "numpy", "torch", "onnxruntime", "intel-opencl-rt")

BUSY = 0.3
"""Load a processor from which on a warning stands in the report."""


def environment(device: DeviceInfo) -> dict[str, Any]:
    """JSON values."""
    seen = asdict(device)
    del seen["extensions"]
    return {
        "created": now()[:19] + "Z",
        "device": seen | {"title": str(device), "key": device_key(device)},
        "python": platform.python_version(),
        "load": _load(),
        "system": f"{platform.system()} {platform.machine()}",
        "packages": {name: version for name in PACKAGES if (version := _version(name))},
        "plugins": plugin_texts(device),
    }


def plugin_texts(device: DeviceInfo) -> dict[str, str]:
    """Plugin to ``version hash``, for each that has a solver; a changed kernel changes the hash."""
    made = (current(name, device) for name in plugins().solvers)
    return dict(sorted((p.plugin, f"{p.plugin_version} {p.kernel_hash}".strip()) for p in made))


def busy(seen: dict[str, Any]) -> str:
    """A warning where other work ran on a CPU device as the benchmark began; empty otherwise."""
    load, device = seen.get("load"), seen["device"]
    if device["type"] != "cpu" or load is None or load < BUSY * device["compute_units"]:
        return ""
    units = device["compute_units"]
    return (
        f"Other work was running: a load of {load:g} on {units} processors. Times are too long, and ratios cannot be "
        "trusted: a library whose threads wait for each other in a spin loses far more than one whose threads do not."
    )


def _load() -> float | None:
    """Processors that other work keeps busy now; None where the system does not tell.

    Not the load average, which still remembers, a minute later, what has ended.
    """
    stat = Path("/proc/stat")
    if not stat.exists():
        return None
    first = _times(stat)
    time.sleep(0.3)
    spent = [after - before for before, after in zip(first, _times(stat))]
    idle = spent[3] + spent[4]
    return round((1 - idle / max(1, sum(spent))) * (os.cpu_count() or 1), 2)


def _times(stat: Path) -> list[int]:
    """Clock ticks of all processors: user, nice, system, idle, waiting for disks, and more."""
    return [int(word) for word in stat.read_text(encoding="ascii").split("\n", 1)[0].split()[1:9]]


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return ""
