"""Normalisation over neighbouring channels of bytes, by tables: what a quantizer makes of a local response norm."""

from __future__ import annotations

import numpy as np
import pyopencl as cl

from ...device.programs.kernels import Launch, build, config_macros, keeps_programs, kernel_text
from ...device.tracing import operation
from ...elementwise.tensor import Tensor
from ..convolution import dense

BLOCK_PIXELS = 64
"""The most pixels of a block that a work item computes with channels first."""
BLOCK_NUMBERS = 1 << 14
"""The most numbers of a block that a work item holds in private memory."""
ITEM_ELEMENTS = 1 << 15
"""The approximate number of elements that a work item computes."""


@operation
def table_norm(
    x: Tensor, values: Tensor, results: Tensor, size: int, before: int, zero_point: int, *, layout: str = "nchw"
) -> Tensor:
    """``y[c] = results[m[c]][x[c]]``, m the mean of ``values[x[j]]`` over the ``size`` channels from c - before on.

    x is int8 or uint8 with four axes, as y. ``values`` are 256 int32 by x's bits, of at most 16 bits. Means are rounded
    and ``zero_point`` is added; channels outside of x add 0. ``results`` are 256 rows by m's bits of 256 bytes by x's
    bits. ``size`` is odd.
    """
    dense_x, y = dense(x), Tensor.empty(x.shape, results.dtype, x.queue)
    if not x.size:
        return y
    channels = x.shape[1 if layout == "nchw" else -1]
    inner_size = 1 if layout == "nhwc" else x.size // (x.shape[0] * channels)
    launch = _launch(x.context, x.size, x.shape[0], channels, inner_size, size, before, zero_point)
    arrays = (dense_x.base_data, np.int64(dense_x.offset), values.base_data, results.base_data, y.base_data)
    launch(x.queue, arrays)
    return y


@keeps_programs
def _launch(
    context: cl.Context, total: int, images: int, channels: int, inner: int, size: int, before: int, zero_point: int
) -> Launch:
    block = max(1, min(BLOCK_PIXELS, inner, BLOCK_NUMBERS // (channels + size)))
    images = 1 if inner == 1 else images
    blocks = total // channels if inner == 1 else -(-inner // block)
    each = max(1, min(ITEM_ELEMENTS // (channels * block), -(-blocks // 16)))
    values = {
        "channels": channels, "inner": inner, "size": size, "before": before, "zero": zero_point, "block": block,
        "blocks": blocks, "each": each,
    }  # fmt: skip
    program = build(context, config_macros(values) + kernel_text(__package__, "table_norm.cl"))
    names = ("x", "offset", "values", "results", "y")
    return Launch(program, "table_norm", (-(-blocks // each), images, 1), (1, 1, 1), " ".join(names), names=names,
                  dtypes=[None, np.int64, None, None, None])  # fmt: skip
