"""What the copies around a product cost a CPU, in operations fitted together with ``gemm_cost``'s."""

from __future__ import annotations

from convdispatch.api import GEMM_LAUNCH as LAUNCH
from convdispatch.api import GEMM_PACKED as PACKED

__all__ = ["COLUMN", "LAUNCH", "LOWERED", "PACKED"]

LOWERED = 110.0
"""Of an element of the lowered matrix: read, placed, written."""
COLUMN = 75.0
"""Of an element of columns: read and added to what it goes into."""
