"""cuDNN's solvers: what they refuse, and the engines that cuDNN's heuristics propose, as configurations."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from ctypes import c_void_p
from typing import Any

import pyopencl as cl

from convdispatch.api import ConvProblem, DeviceInfo, Solver
from convdispatch.api.cuda import cuda_devices, cuda_unavailable

from .graph import NONDETERMINISTIC, candidates, execution_plan
from .library import CudnnError, missing
from .plan import CudnnPlan, planning_handle, tensor_bytes

MAX_CONFIGS = 24
"""Most cuDNN configurations that are offered to a search."""


def unavailable() -> str | None:
    """The reason why cuDNN cannot be used on this machine; None when it can."""
    return cuda_unavailable() or missing()


@functools.lru_cache(maxsize=512)
def _choices(problem: ConvProblem, device: DeviceInfo, deterministic: bool) -> tuple[dict[str, Any], ...]:
    """Configurations in the order of cuDNN's heuristics; the first one is known to make a plan."""
    cl_device = cuda_devices(device)[0]
    with planning_handle(cl_device) as handle:
        return tuple(_working(problem, handle, deterministic)[:MAX_CONFIGS])


def _working(problem: ConvProblem, handle: c_void_p, deterministic: bool) -> list[dict[str, Any]]:
    configs = [
        each.config for each in candidates(problem, handle) if not (deterministic and NONDETERMINISTIC in each.notes)
    ]
    while configs:
        try:
            execution_plan(problem, handle, configs[0])
            break
        except CudnnError:
            del configs[0]
    return configs


class Convolution(Solver):
    """cuDNN with every engine that the problem's ``math`` permits; some add partial sums in a varying order."""

    def rejects(self, problem: ConvProblem, device: DeviceInfo) -> str | None:
        """Refuses if cuDNN is missing, padding is asymmetric, CUDA cannot see the tensors, or no engine fits."""
        if problem.mb == 0:
            return "mb of 1 or more only, got 0"
        for axis in problem.axes:
            padding, end_padding = getattr(problem, "p" + axis), getattr(problem, f"p{axis}_r")
            if padding != end_padding:
                return f"equal padding on both sides only, got {padding} and {end_padding} along {axis}"
        reason = unavailable()
        if reason:
            return reason
        if not cuda_devices(device):
            return f"a device that shares memory with cuda only, got {device.name}"
        largest = max(tensor_bytes(problem).values())
        if not cuda_devices(device, largest):
            return (
                f"tensors of 384 MiB at most only, as OpenCL here shares none larger with CUDA, got {largest >> 20} MiB"
            )
        return None if self.configs(problem, device) else "an engine in cudnn only, got none for this problem"

    def configs(self, problem: ConvProblem, device: DeviceInfo) -> Iterable[Mapping[str, Any]]:
        """Engines with their knobs, as the heuristics rank them."""
        return _choices(problem, device, self.deterministic)

    def plan(self, context: cl.Context, problem: ConvProblem, config: Mapping[str, Any]) -> CudnnPlan:
        return CudnnPlan(context, problem, config)


class Deterministic(Convolution):
    """cuDNN with only those engines that give the same bits every time."""
