"""The sum of each channel over all pixels, of data with channels last: a bias' gradient."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyopencl as cl

from ..api.dtypes import DTYPES, storage_macros
from ..device.commands.interface import Commands
from ..device.opencl.platforms import device_info
from ..device.programs.kernels import Launch, build, define, kernel_text

FIRST_GROUP_ITEMS = 256
"""The most work items in a work group of the first launch."""
SECOND_GROUP_ITEMS = 32
"""The number of work items in a work group of the second launch that sum one channel."""
MAX_VECTORS = 64
"""The most vectors of channels side by side in a work group of the first launch."""
GROUPS_PER_UNIT = 8
"""The number of work groups of the first launch for each compute unit."""
MIN_ROWS = 16
"""The least rows per work item; with fewer rows, fewer work groups are launched."""


def channel_sums(context: cl.Context, dtype: str, rows: int, channels: int) -> Callable[[Commands, Any, Any], None]:
    """``give(commands, g, sums)``: g ``[rows, channels]`` to sums ``[channels]``, both of ``dtype``, summed in float32.

    ``dtype`` is float32, float16 or bfloat16; g begins at a multiple of 16 bytes. The same numbers each time. Raises
    ValueError for another dtype, for channels that are no multiple of 16 bytes, and for more rows than 31 bits count.
    """
    if dtype not in ("float32", "float16", "bfloat16"):
        raise ValueError(f"channels are summed in float32, float16 and bfloat16, got {dtype}")
    vector = 16 // DTYPES[dtype].itemsize
    if channels % vector or not 0 < rows < 1 << 31:
        raise ValueError(f"sums take channels that {vector} divides and up to 2**31 rows, got {channels} and {rows}")
    columns = next(n for n in range(min(MAX_VECTORS, channels // vector), 0, -1) if channels // vector % n == 0)
    deep = FIRST_GROUP_ITEMS // columns
    units = device_info(context.devices[0]).compute_units
    most_groups = max(1, GROUPS_PER_UNIT * units * columns * vector // channels)
    groups = max(1, min(most_groups, -(-rows // (deep * MIN_ROWS))))
    text = storage_macros(dtype) + define(VECTOR=vector, GROUP=FIRST_GROUP_ITEMS, DEEP=SECOND_GROUP_ITEMS)
    program = build(context, text + kernel_text(__package__, "channel_sums.cl"))
    many = (np.uint32(rows), np.uint32(groups), np.uint32(channels))
    across = channels // vector
    local = (columns, deep)
    sum_parts = Launch(
        program, "channel_parts", (across, groups * deep), local, ("g", "parts", many[0], many[2]), names=("g", "parts")
    )
    size = (channels, SECOND_GROUP_ITEMS)
    local, names = (vector, SECOND_GROUP_ITEMS), ("parts", "sums")
    sum_groups = Launch(program, "channel_sums", size, local, (*names, *many[1:]), names=names)

    def give(commands: Commands, g: Any, sums: Any) -> None:
        parts = commands.allocate(4 * groups * channels)
        sum_parts(commands, (g, parts))  # type: ignore[arg-type]
        sum_groups(commands, (parts, sums))  # type: ignore[arg-type]

    return give
