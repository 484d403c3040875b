"""What plugins' kernels for CPUs ask of a device: vector width, registers, the pages of its memory."""

from __future__ import annotations

from .device import DeviceInfo

__all__ = ["LINE", "PAGE", "lanes", "registers", "uneven"]

PAGE = 4096
"""Bytes between the areas of a workspace: streams that begin on a page do not share one."""
LINE = 64
"""Bytes of a cache line."""


def lanes(device: DeviceInfo, dtype: str = "float32") -> int:
    """Elements of a vector of sums."""
    wide = max(4, min(16, device.simd_width))
    return wide // 2 if dtype == "float64" else wide


def uneven(jobs: int, device: DeviceInfo) -> float:
    """How many times longer so many equal work groups take than evenly shared work: 2 for one of them on two cores."""
    rounds = -(-jobs // device.compute_units)
    return rounds * device.compute_units / jobs


def registers(device: DeviceInfo) -> int:
    """Vector registers: 32 with AVX-512, 16 otherwise."""
    return 32 if device.simd_width >= 16 else 16
