"""The windows of a pooling, from the definition."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np


def windows(
    x: np.ndarray, kernel: Sequence[int], stride: Sequence[int], pads: Any, dilation: Any, fill: float, ceil=False
) -> tuple[np.ndarray, np.ndarray]:
    """``[mb, c, *outputs, taps]`` of x ``[mb, c, *sizes]`` in float64 with ``fill`` for the padding; and, without the
    first two axes, which are inside of x. ``pads``: a number, or (before, after) of each axis; ``dilation``: one, or
    each axis's."""
    ndim = len(kernel)
    pads = ((pads, pads),) * ndim if isinstance(pads, int) else pads
    dilation = (dilation,) * ndim if isinstance(dilation, int) else dilation
    taken, inside = x.astype(np.float64), np.ones(x.shape[2:], bool)
    for axis, (size, k, s, (near, far), d) in enumerate(zip(x.shape[2:], kernel, stride, pads, dilation, strict=True)):
        span = size + near + far - d * (k - 1) - 1
        count = (-(-span // s) if ceil else span // s) + 1
        count -= ceil and (count - 1) * s >= size + near
        at = np.arange(count)[:, None] * s + np.arange(k) * d - near
        within = (at >= 0) & (at < size)
        # The taps of each axis go last: what was there moves one place to the front.
        taken = np.moveaxis(taken.take(at.clip(0, size - 1), axis + 2), axis + 3, -1)
        inside = np.moveaxis(inside.take(at.clip(0, size - 1), axis), axis + 1, -1)
        inside = inside & within.reshape(*[1] * axis, count, *[1] * (inside.ndim - axis - 2), k)
    flat = inside.shape[:ndim]
    return np.where(inside, taken, fill).reshape(*x.shape[:2], *flat, -1), inside.reshape(*flat, -1)
