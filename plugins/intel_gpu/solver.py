"""The solver intel_gpu.dpas, and Intel's DPAS instruction, as ``convdispatch.api.matrix`` describes it, for sub-groups
of 8 and of 16 work items.

Source: Khronos' registry, cl_intel_subgroup_matrix_multiply_accumulate 1.1. Component i of a is row i: with 8 work
items each holds two neighbours along k, with 16 one. Component j of b is rows 2 j and 2 j + 1 of the work item's
column. Component i of the sums is row i.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from convdispatch.api import DeviceInfo
from convdispatch.api.matrix import Fragment, MatrixSolver, TileInstruction, VendorTile

MAX_SUMS = 64
"""float32 sums that a work item may hold: half of a thread's 128 registers, one lane of each."""


def _dpas(lanes: int) -> TileInstruction:
    """The instruction that multiplies 8 rows of a by one column of b per work item of the sub-group."""
    items = 16 // lanes
    a = Fragment("0", f"lane * {items}", tuple((row, 0) for row in range(8)), items)
    b = Fragment("lane", "0", ((0, 0), (0, 8)), 8)
    return TileInstruction(m=8, n=lanes, k=16, lanes=lanes, row="0", column="lane", rows=tuple(range(8)), a=a, b=b,
                           max_sums=MAX_SUMS,
                           attributes=f"__attribute__((intel_reqd_sub_group_size({lanes})))\n")  # fmt: skip


INSTRUCTIONS = {"dpas8": _dpas(8), "dpas16": _dpas(16)}


@dataclass(frozen=True)
class IntelTile(VendorTile):
    """A tile that DPAS instructions multiply."""

    PACKAGE = __package__
    INSTRUCTIONS = INSTRUCTIONS


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
