"""The solver intel_gpu.dpas: which device has sub-groups of which size, and its peak rate."""

from __future__ import annotations

import re

from convdispatch.api import DeviceInfo
from convdispatch.api.matrix import MatrixSolver

from .instructions import IntelTile

EIGHT_WIDE = re.compile(r"\barc\b.*\ba\d{3}|\bflex\b|dg2|0x56[0-9a-f]{2}")
"""Names of GPUs whose smallest sub-group has 8 work items (Xe-HPG: Arc A, Flex); on later GPUs it has 16."""


class Dpas(MatrixSolver):
    """Products by DPAS of 8 rows by 8 or 16 columns."""

    kind = IntelTile

    def engines(self, device: DeviceInfo) -> tuple[str, ...]:
        return ("dpas8",) if EIGHT_WIDE.search(device.arch.replace("(tm)", "")) else ("dpas16",)

    def peak(self, device: DeviceInfo) -> float:
        """Arc A770: 138 of 17.2 TFLOP/s; Data Center GPU Max 1550: 839 of 52."""
        return 16.0 if "max" in device.arch else 8.0
