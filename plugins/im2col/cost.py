"""What the copies around a product cost a CPU, in operations fitted together with ``gemm_cost``'s."""

from __future__ import annotations

from convdispatch.api import GEMM_LAUNCH as LAUNCH
from convdispatch.api import GEMM_PACKED as PACKED

__all__ = [
    "CACHED",
    "COLUMN",
    "CONVERTED",
    "FOLLOWS",
    "HEAVY",
    "LAUNCH",
    "LOWERED",
    "OTHER",
    "PACKED",
    "PACKED_FAR",
    "PACKED_WIDE",
    "RUN",
]

LOWERED = 101.0, 85.0
"""Of an element of the lowered matrix, NCHW and channels last: read, placed, written."""
CACHED = 6 << 20
"""Bytes of weights that caches keep between calls."""
PACKED_FAR = 120.0, 240.0
"""Of an element of more weights than that, which is packed as it lies or across rows: 100 to 200 of the former over
nine layers of 9 to 38 MB, the more the longer their rows."""
PACKED_WIDE = 90.0, 140.0
"""Of an element of weights that is packed in panels of whole vectors, and of more weights than caches keep: 60 to 130
on an Intel Xeon, 12 layers of 128 to 2048 channels and 4 to 49 pixels, and 115 to 225 over ten layers of 9 to 85 MB."""
COLUMN = 32.0, 75.0
"""Of an element of columns, or of what they go into where that has more: read and added, NCHW and channels last."""
RUN = 1000.0
"""Of a run of columns of one tap, place and group, channels last, however short: some 16 cycles of its loops."""
CONVERTED = 45.0
"""Of an element that is converted between 16 bits and float32: 0.11 to 0.16 ms a million on two cores of a Xeon."""
FOLLOWS = 3e6
"""Of a product's launches, what one spares that follows another."""
HEAVY = 3 << 19
"""Bytes of weights that are read from afar for each image anew."""
OTHER = 1.07
"""What several images take beside their count as one matrix, or apart, where the other is expected to pay."""
