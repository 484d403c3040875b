"""Devices as their drivers describe them, for plans and kernels without the device."""

from __future__ import annotations

from typing import Any

from ...api.device import DeviceInfo
from ...device.opencl.platforms import DescribedDevice

_GPU: dict[str, Any] = {"max_work_group_size": 1024, "max_work_item_sizes": (1024, 1024, 1024)}
_NVIDIA = {**_GPU, "max_work_item_sizes": (1024, 1024, 64), "local_mem_size": 48 << 10, "fp64": True}
_AMD = {**_GPU, "local_mem_size": 64 << 10, "fp16": True, "fp64": True,
        "extensions": frozenset({"cl_khr_fp16", "cl_khr_fp64", "cl_khr_subgroups"})}  # fmt: skip
_INTEL_EXTENSIONS = frozenset(
    {
        "cl_khr_fp16",
        "cl_khr_subgroups",
        "cl_intel_subgroups",
        "cl_intel_subgroups_short",
        "cl_intel_required_subgroup_size",
        "cl_intel_subgroup_matrix_multiply_accumulate",
        "cl_intel_subgroup_split_matrix_multiply_accumulate",
    }
)
_CPU = {"max_work_group_size": 8192, "max_work_item_sizes": (8192,) * 3, "local_mem_size": 256 << 10, "fp64": True}


def _memory(total_gb: int, allocation_gb: int) -> dict[str, int]:
    return {"global_mem_size": total_gb << 30, "max_alloc_size": allocation_gb << 30}


DESCRIBED = {
    "h200": DeviceInfo("NVIDIA H200", "nvidia", "gpu", "sm_90", compute_units=132, **_memory(141, 35), **_NVIDIA),
    "h100": DeviceInfo("NVIDIA H100", "nvidia", "gpu", "sm_90", compute_units=132, **_memory(80, 20), **_NVIDIA),
    "a100": DeviceInfo("NVIDIA A100", "nvidia", "gpu", "sm_80", compute_units=108, **_memory(80, 20), **_NVIDIA),
    "rtx5090": DeviceInfo("NVIDIA GeForce RTX 5090", "nvidia", "gpu", "sm_120", compute_units=170,
                          **_memory(32, 8), **_NVIDIA),
    "mi210": DeviceInfo("gfx90a", "amd", "gpu", "gfx90a", compute_units=104, **_memory(64, 54), **_AMD),
    "mi300x": DeviceInfo("gfx942", "amd", "gpu", "gfx942", compute_units=304, **_memory(192, 48), **_AMD),
    "rx6900xt": DeviceInfo("gfx1030", "amd", "gpu", "gfx1030", compute_units=40, **_memory(16, 13), **_AMD),
    "rx7900xtx": DeviceInfo("gfx1100", "amd", "gpu", "gfx1100", compute_units=48, **_memory(24, 20), **_AMD),
    "rx9070xt": DeviceInfo("gfx1201", "amd", "gpu", "gfx1201", compute_units=32, **_memory(16, 13), **_AMD),
    "arc-a770": DeviceInfo("Intel(R) Arc(TM) A770 Graphics", "intel", "gpu", "intel(r) arc(tm) a770 graphics",
                           compute_units=512, local_mem_size=64 << 10, fp16=True, extensions=_INTEL_EXTENSIONS,
                           **_memory(16, 4), **_GPU),
    "max1550": DeviceInfo("Intel(R) Data Center GPU Max 1550", "intel", "gpu", "intel(r) data center gpu max 1550",
                          compute_units=512, local_mem_size=128 << 10, fp16=True, fp64=True,
                          extensions=_INTEL_EXTENSIONS | {"cl_khr_fp64"}, **_memory(64, 60), **_GPU),
    "avx512": DeviceInfo("a CPU with AVX-512", "intel", "cpu", "simd512", compute_units=16, simd_width=16,
                         **_memory(64, 32), **_CPU),
    "avx2": DeviceInfo("a CPU with AVX2", "intel", "cpu", "simd256", compute_units=16, simd_width=8,
                       **_memory(64, 32), **_CPU),
}  # fmt: skip
"""Descriptions of devices, as their drivers report them, for plans and kernels without the device."""

TARGETS = {
    "gfx90a": "mi210",
    "gfx942": "mi300x",
    "gfx1030": "rx6900xt",
    "gfx1100": "rx7900xtx",
    "gfx1201": "rx9070xt",
    "dg2": "arc-a770",
    "pvc": "max1550",
    "sm_80": "a100",
    "sm_90": "h200",
    "sm_120": "rtx5090",
}
"""The device for which solvers plan, by the name that the vendor's compiler gives the architecture."""


class StandIn:
    """A stand-in for a context, so that no cache of a real context gets entries that are text alone."""

    def __init__(self, device: Any) -> None:
        self.devices = [device]


def target_device(target: str) -> DeviceInfo:
    """The description of the device for which solvers plan on a target."""
    return DESCRIBED[TARGETS[target]]


def described_context(info: DeviceInfo) -> StandIn:
    """A stand-in for a context of a described device."""
    return StandIn(DescribedDevice(info))
