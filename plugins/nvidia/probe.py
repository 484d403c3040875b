"""Checks that a device's driver accepts an engine by running a small convolution and checking it; a pass is cached."""

from __future__ import annotations

import functools
import importlib
from typing import Any

import pyopencl as cl

from convdispatch.api import ConvProblem, DeviceInfo, Frozen, PluginError, probe_failure, proven

PROBLEM = ConvProblem(mb=2, ic=16, ih=9, iw=8, oc=24, kh=3, kw=3, ph=1, pw=1)
POINTWISE = ConvProblem(mb=2, ic=68, ih=9, iw=8, oc=24)
"""The probe's problem for ``direct``: a 1x1 kernel with more K-slices than stages, the last one short."""
HALVES = PROBLEM.replace(dtype="float16", layout="nhwc")
VIDEO = HALVES.replace(ndim=3, id=3, kd=2, pd=1, pd_r=0)
BYTES = PROBLEM.replace(dtype="int8", out_dtype="int8", layout="nhwc", residual=True)
FLOATS = BYTES.replace(dtype="float8_e4m3", out_dtype="float8_e4m3")
HOPPER = ("sm_90",)
AMPERE = ("sm_80", "sm_86", "sm_87", "sm_89", "sm_90", "sm_100", "sm_103", "sm_120", "sm_121")
ADA = AMPERE[AMPERE.index("sm_89") :]
GROUP = {"bm": 64, "bn": 32, "wm": 1, "wn": 1}
ENGINES: dict[str, tuple[tuple[str, ...], str, ConvProblem, dict[str, Any]]] = {
    "mma": (AMPERE, "packed.plan.NvidiaPlan", PROBLEM,
            {"bm": 32, "bn": 32, "wm": 2, "wn": 1, "bk": 32, "format": "bfloat2", "stages": 2}),
    "wgmma": (HOPPER, "packed.plan.NvidiaPlan", PROBLEM, {**GROUP, "bk": 32, "format": "bfloat2", "stages": 3}),
    "tma": (HOPPER, "tma.plan.TmaPlan", HALVES, {**GROUP, "bn": 64, "format": "float16", "stages": 3}),
    "tma_deep": (HOPPER, "tma.plan.TmaPlan", VIDEO, {**GROUP, "bn": 64, "format": "float16", "stages": 3}),
    "tma_tf32": (HOPPER, "tma.plan.TmaPlan", PROBLEM.replace(layout="nhwc", math="tf32"),
                 {**GROUP, "bn": 64, "bk": 32, "format": "tf32", "stages": 3}),
    "direct": (AMPERE, "direct.solver.DirectPlan", POINTWISE, {"bm": 32, "bn": 64, "wm": 1, "wn": 2, "bk": 16}),
    "grouped": (AMPERE, "grouped.solver.GroupedPlan", HALVES, {"frag_m": 1, "warps": 4}),
    "int8": (AMPERE, "int8.solver.Int8Plan", BYTES, {"bm": 32, "bn": 64, "wm": 2, "wn": 2}),
    **{f"int8_{engine}": (HOPPER, "int8.solver.Int8Plan", BYTES, {**GROUP, "engine": engine})
       for engine in ("wgmma", "tma", "halo")},
    "float8": (ADA, "int8.solver.Int8Plan", FLOATS, {"bm": 32, "bn": 64, "wm": 2, "wn": 2}),
    **{f"float8_{engine}": (HOPPER, "int8.solver.Int8Plan", FLOATS, {**GROUP, "engine": engine})
       for engine in ("wgmma", "tma", "halo")},
}  # fmt: skip
"""For each engine: the architectures that have its instructions (the driver may still refuse them); its plan class,
which is imported when it is probed; a problem that uses all of its instructions; a configuration."""
_failed: dict[tuple[str, str, str], str] = {}
"""Reason of each failed probe of this process, by (device, driver, engine)."""


def _plan(context: Any, engine: str) -> tuple[ConvProblem, Any]:
    """(the problem that the probe of an engine computes, its plan)."""
    _, path, problem, tile = ENGINES[engine]
    module, _, name = path.rpartition(".")
    kind = getattr(importlib.import_module(f"{__package__}.{module}"), name)
    arguments = {"tma": ["wgmma"], "packed": [engine]}.get(path.split(".")[0], ())
    return problem, kind(context, problem, tile, *arguments)


def _probe_failure(context: Any, engine: str) -> str | None:
    return probe_failure(context, ENGINES[engine][2], lambda: _plan(context, engine)[1])


def _find_device(device: DeviceInfo) -> Any:
    for platform in cl.get_platforms():
        try:
            devices = platform.get_devices()
        except cl.Error:
            continue
        for candidate in devices:
            if _device_key(candidate) == (device.name, device.driver):
                return candidate
    return None


def _device_key(device: Any) -> tuple[str, str]:
    return device.name.strip(), device.driver_version.strip()


def _proven(context: Any, engine: str) -> str | None:
    (device,) = context.devices
    failure = proven(__package__, engine, device, lambda: _probe_failure(context, engine))
    if failure is not None:
        _failed[(*_device_key(device), engine)] = failure
    return failure


def refusal(device: DeviceInfo, engine: str) -> str | None:
    """Why ``engine`` does not work on the device, or None.

    On an architecture that has the instructions the device is probed only when a plan needs it (``require``); this
    function returns what earlier probes of this process found. On other architectures it probes, once per process.
    """
    failure = _failed.get((device.name, device.driver, engine))
    if failure is not None or device.arch in ENGINES[engine][0]:
        return failure
    return _probed(device, engine)


@functools.lru_cache(maxsize=64)
def _probed(device: DeviceInfo, engine: str) -> str | None:
    cl_device = _find_device(device)
    if cl_device is None:
        return f"the device {device.name} is no longer listed"
    try:
        return _proven(cl.Context([cl_device]), engine)
    except Frozen:
        return f"{engine} was not probed before frozen()"


def require(context: Any, engine: str) -> None:
    """Probe once that ``engine`` works on the context's device. Raises PluginError if it does not."""
    failure = _proven(context, engine)
    if failure is not None:
        raise PluginError(failure)
