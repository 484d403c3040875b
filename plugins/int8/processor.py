"""Checks whether the processor has AVX512-VNNI or AMX, and whether this process may use the AMX registers."""

from __future__ import annotations

from convdispatch.api import DeviceInfo, cpus_only
from convdispatch.api.cpu import lacking

__all__ = ["serves_tiles", "serves_vectors"]


def serves_vectors(device: DeviceInfo) -> str | None:
    """Why a device has no AVX512-VNNI from OpenCL, or None."""
    return _intel_cpu(device) or lacking("avx512f", "avx512_vnni")


def serves_tiles(device: DeviceInfo) -> str | None:
    """Why a device has no matrix registers for bytes from OpenCL, or None."""
    return _intel_cpu(device) or lacking("amx_tile", "amx_int8")


def _intel_cpu(device: DeviceInfo) -> str | None:
    reason = cpus_only(device)
    if reason is None and (device.vendor != "intel" or device.simd_width < 16):
        return f"Intel's runtime with vectors of 16 floats only, got {device.vendor} with {device.simd_width}"
    return reason
