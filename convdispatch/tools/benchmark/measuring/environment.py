"""The environment of a benchmark: device, driver, versions, load, plugins and hashes of their sources."""

from __future__ import annotations

from typing import Any

from ....api.device import DeviceInfo
from ....measurement import run_reports
from ....selection.choice.provenance import current
from ....selection.plugins.loader import plugins
from ..quiet import load_now

PACKAGES = ("convdispatch", "pyopencl", "numpy", "torch", "onnxruntime", "intel-opencl-rt")


def environment(device: DeviceInfo) -> dict[str, Any]:
    """The environment as JSON values."""
    return {**run_reports.environment(device, PACKAGES), "load": load_now(), "plugins": plugin_texts(device)}


def plugin_texts(device: DeviceInfo) -> dict[str, str]:
    """Plugin to ``version hash``, for each that has a solver; a changed kernel changes the hash."""
    solvers = (current(name, device) for name in plugins().solvers)
    return dict(sorted((p.plugin, f"{p.plugin_version} {p.kernel_hash}".strip()) for p in solvers))
