"""The cost of the copies around a product on a CPU, in operations at peak rate, fitted together with ``gemm_cost``."""

from __future__ import annotations

LOWERED_OPS = 101.0, 85.0
"""Operations at peak rate per element of the lowered matrix that is read and written, in NCHW and in NHWC."""
CACHED_WEIGHT_BYTES = 6 << 20
"""Bytes of weights that a CPU's caches are assumed to hold from one call to the next."""
UNCACHED_PACKING_OPS = 120.0, 240.0
"""Operations at peak rate per packed weight, along its rows and across them, if the weights exceed
``CACHED_WEIGHT_BYTES``: along rows 100 to 200 over nine layers of 9 to 38 MB, the more the longer their rows."""
WIDE_PACKING_OPS = 90.0, 140.0
"""Operations at peak rate per weight packed in panels of whole vectors, below and above ``CACHED_WEIGHT_BYTES``:
60 to 130 over 12 layers of 128 to 2048 channels and 4 to 49 pixels, 115 to 225 over ten layers of 9 to 85 MB (Xeon)."""
COLUMN_OPS = 32.0, 75.0
"""Operations at peak rate per element of the columns (or of x, if it has more) that is summed, in NCHW and in NHWC."""
COLUMN_RUN_OPS = 1000.0
"""Operations at peak rate per run of NHWC columns of one tap, pixel and group, even a short one: 16 loop cycles."""
CONVERTED_OPS = 45.0
"""Operations at peak rate per element that is converted between 16 bits and float32: 0.11 to 0.16 ms per
million on two cores of a Xeon."""
FOLLOWING_LAUNCH_OPS = 3e6
"""Operations at peak rate that a product's launch saves when it follows another launch directly."""
UNCACHED_WEIGHT_BYTES = 3 << 19
"""Bytes of weights from which on each image reads the weights from memory again."""
WORSE_FORM_FACTOR = 1.07
"""Measured over predicted time of the worse form of an in-place product: images as one matrix, or one by one."""
