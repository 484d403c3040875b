"""The cost of the copies around a product on a CPU, in operations of the peak, fitted together with ``gemm_cost``."""

from __future__ import annotations

LOWERED = 101.0, 85.0
"""An element of the lowered matrix, NCHW and NHWC: read, placed and written."""
CACHED = 6 << 20
"""Bytes of weights that caches hold between calls."""
PACKED_FAR = 120.0, 240.0
"""A weight that is packed along its rows and across them, of more weights than CACHED bytes: 100 to 200 of the former
over nine layers of 9 to 38 MB, the more the longer their rows."""
PACKED_WIDE = 90.0, 140.0
"""A weight that is packed in panels of whole vectors, of fewer and of more weights than CACHED bytes: 60 to 130 on an
Intel Xeon, 12 layers of 128 to 2048 channels and 4 to 49 pixels; 115 to 225 over ten layers of 9 to 85 MB."""
COLUMN = 32.0, 75.0
"""An element of columns that is read and added, NCHW and NHWC; or of x, where x has more elements."""
RUN = 1000.0
"""A run of NHWC columns of one tap, place and group, however short: some 16 cycles of its loops."""
CONVERTED = 45.0
"""An element that is converted between 16 bits and float32: 0.11 to 0.16 ms a million on two cores of a Xeon."""
FOLLOWS = 3e6
"""What a product's launch takes less when it follows another one."""
HEAVY = 3 << 19
"""Bytes of weights that come from memory again for each image."""
OTHER = 1.07
"""Measured over predicted time of several images as one matrix, or separate, where the other form is expected to be
faster."""
