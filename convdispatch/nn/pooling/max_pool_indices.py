"""Max pooling that also returns the index of each largest value."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...device.tracing import operation
from ...elementwise import apply
from ...elementwise.tensor import Tensor
from .pooling2d import pooled, windows_of

_CUT = 1 << 30
"""A power of two above every pixel's number in a note, so that ``note % _CUT`` is the pixel."""


@operation
def max_pool_with_places(
    x: Tensor,
    kernel: Any,
    stride: Any = None,
    padding: Any = 0,
    *,
    dilation: Any = 1,
    ceil_mode: bool = False,
    column_major: bool = False,
) -> tuple[Tensor, Tensor]:
    """``max_pool`` of x ``[mb, c, h, w]``, and the places of the largest values among all of x's elements, int64.

    With ``column_major`` the pixels of a picture are numbered down its columns. Raises InvalidArgument as max_pool.
    """
    values = windows_of(x, "nchw", kernel, stride, padding, dilation, ceil_mode)
    mb, channels, h, w = x.shape
    y, notes, _ = pooled("max", x, values, "nchw", gradients=True, notes=True)
    shape = y.shape
    if notes is None:
        return y, Tensor.empty(shape, np.int64, x.queue)
    # In a recording, constants are made on the recording's own queue, so that they exist before the net runs.
    queue = getattr(x.queue, "queue", x.queue)

    def numbers(count: int, *wide: int) -> Tensor:
        return Tensor.from_numpy(np.arange(count, dtype=np.int64).reshape(wide), queue)

    operands: dict[str, Any] = {"note": notes, "plane": numbers(mb * channels, mb, channels, 1, 1)}
    if notes.dtype == np.uint8:
        k = {name: values[name] for name in ("sh", "sw", "ph", "pw", "dh", "dw", "kw")}
        text = (
            "q = note % 128; r = oy * {sh} - {ph} + q // {kw} * {dh}; c = ox * {sw} - {pw} + q % {kw} * {dw}; ".format(
                **k
            )
        )
        operands |= {"oy": numbers(shape[2], shape[2], 1), "ox": numbers(shape[3], shape[3])}
    else:
        text = f"q = note % {_CUT}; r = q // {w}; c = q % {w}; "
    pixel = f"c * {h} + r" if column_major else f"r * {w} + c"
    return y, apply(f"{text} plane * {h * w} + {pixel}", dtype=np.int64, **operands)
