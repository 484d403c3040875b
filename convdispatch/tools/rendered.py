"""A solver's kernels as rendered for a problem, to read: nothing is compiled, and the device need not be there."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..api.device import DeviceInfo
from ..api.errors import InvalidArgument, NoSolver
from ..api.problem import ConvProblem
from ..device import runtime
from ..device.opencl.platforms import DescribedDevice
from ..device.programs.kernels import rendering
from ..selection.derivation.solver import named
from ..selection.explanation import explain
from ..selection.plugins.loader import plugins
from ..selection.visible_problem import visible_problem

_NVIDIA = {
    "max_work_group_size": 1024,
    "max_work_item_sizes": (1024, 1024, 64),
    "local_mem_size": 48 << 10,
    "fp64": True,
}
_CPU = {"max_work_group_size": 8192, "max_work_item_sizes": (8192,) * 3, "local_mem_size": 256 << 10, "fp64": True}
DESCRIBED = {
    "h200": DeviceInfo("NVIDIA H200", "nvidia", "gpu", "sm_90", compute_units=132, global_mem_size=141 << 30,
                       max_alloc_size=35 << 30, **_NVIDIA),
    "h100": DeviceInfo("NVIDIA H100", "nvidia", "gpu", "sm_90", compute_units=132, global_mem_size=80 << 30,
                       max_alloc_size=20 << 30, **_NVIDIA),
    "a100": DeviceInfo("NVIDIA A100", "nvidia", "gpu", "sm_80", compute_units=108, global_mem_size=80 << 30,
                       max_alloc_size=20 << 30, **_NVIDIA),
    "mi300x": DeviceInfo("AMD Instinct MI300X", "amd", "gpu", "gfx942", compute_units=304, global_mem_size=192 << 30,
                         max_alloc_size=48 << 30, max_work_group_size=1024, max_work_item_sizes=(1024,) * 3,
                         local_mem_size=64 << 10, fp16=True, fp64=True),
    "avx512": DeviceInfo("a CPU with AVX-512", "intel", "cpu", "simd512", compute_units=16, simd_width=16,
                         global_mem_size=64 << 30, max_alloc_size=32 << 30, **_CPU),
    "avx2": DeviceInfo("a CPU with AVX2", "intel", "cpu", "simd256", compute_units=16, simd_width=8,
                       global_mem_size=64 << 30, max_alloc_size=32 << 30, **_CPU),
}  # fmt: skip
"""Descriptions of devices, as their drivers report them, for rendering kernels without the device."""


class _Context:
    """A stand-in for a context, so that no cache of a real context gets entries that are text alone."""

    def __init__(self, device: Any) -> None:
        self.devices = [device]


def rendered(
    problem: ConvProblem,
    solver: str | None = None,
    *,
    device: str | None = None,
    described: str | None = None,
    config: Mapping[str, Any] | None = None,
) -> tuple[str, Mapping[str, Any], list[str]]:
    """The solver, its configuration and its programs' texts; both are the choice's where they are not given.

    ``described`` names one of DESCRIBED, for a device that is not there. Raises InvalidArgument for names that nobody
    has and where the solver refuses, NoSolver where all do.
    """
    info, context = _place(device, described)
    if solver is None:
        explanation = explain(problem, info)
        if explanation.chosen is None:
            raise NoSolver(problem, str(info), {one.solver: str(one.reason) for one in explanation.verdicts})
        solver = explanation.chosen
    known = plugins().solvers
    try:
        chosen = named(solver, known)
    except KeyError:
        raise InvalidArgument(f"no solver is called {solver!r}; there are {', '.join(sorted(known))}") from None
    visible = visible_problem(chosen, problem)
    reason = chosen.rejects(visible, info)
    if reason:
        raise InvalidArgument(f"{solver} refuses {problem} on {info}: {reason}")
    if config is None:
        config = next(iter(chosen.configs(visible, info)), {})
    with rendering() as texts:
        chosen.plan(context, visible, config)
    return solver, config, [text for text in texts if isinstance(text, str)]


def _place(device: str | None, described: str | None) -> tuple[DeviceInfo, Any]:
    """A device's description and a stand-in for its context."""
    if described is None:
        found = runtime.find_device(device)
        return runtime.device_info(found), _Context(found)
    if described not in DESCRIBED:
        raise InvalidArgument(f"described devices are {', '.join(DESCRIBED)}, got {described!r}")
    info = DESCRIBED[described]
    return info, _Context(DescribedDevice(info))
