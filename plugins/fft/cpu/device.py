"""What the CPU kernels ask of a device: vector width, and where the areas of a workspace begin."""

from __future__ import annotations

from convdispatch.api import DeviceInfo

__all__ = ["PAGE", "lanes"]

PAGE = 4096
"""Bytes to which areas of a workspace are aligned."""


def lanes(device: DeviceInfo) -> int:
    """Elements of a vector of floats."""
    return max(4, min(16, device.simd_width))
