"""Planes of few channels to pixels: the first step of a net with channels last, whose pictures lie channels first.

Sixteen pixels are loaded of each plane and shuffled into as many vectors as there are channels; element-wise copies of
rows of three elements take ten times as long.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from ..device import runtime
from ..device.programs.kernels import Launch, build, keeps_programs
from .tensor import Tensor

if TYPE_CHECKING:
    import pyopencl as cl

__all__ = ["interleaved"]

_LANES, _MOST = 16, 8
"""Elements of a vector, and channels of a picture."""
_EACH = 64
"""Vectors of pixels that a work item takes: 16 took 1.04 to 1.3 times as long, 128 0.86 to 1."""


def interleaved(x: Tensor) -> Tensor | None:
    """x of ``[mb, c, h, w]`` as ``[mb, h, w, c]``, in new memory; None where this kernel is not for it."""
    images, channels = x.shape[:2]
    pixels = math.prod(x.shape[2:])
    if not 2 <= channels <= _MOST or x.dtype.itemsize != 4 or pixels < _LANES or not images or not x.contiguous:
        return None
    if runtime.device_info(x.queue.device).type != "cpu":
        return None
    y = Tensor.empty((images, *x.shape[2:], channels), x.dtype, x.queue)
    launch = _launch(x.context, images, channels, pixels)
    launch(x.queue, (x.base_data, np.int64(x.offset // 4), y.base_data))
    return y


@keeps_programs
def _launch(context: cl.Context, images: int, channels: int, pixels: int) -> Launch:
    lines = []
    for k in range(channels):  # the vector of elements 16 k to 16 k + 15: element e is channel e % C of pixel e / C
        places = [divmod(_LANES * k + lane, channels) for lane in range(_LANES)]
        value = "v0"
        for c in range(1, channels):
            # Lanes of channel c come from its plane, those of channels before it from what was put together so far.
            first = [pixel if c == 1 else lane for lane, (pixel, _) in enumerate(places)]
            mask = [_LANES + pixel if channel == c else first[lane] for lane, (pixel, channel) in enumerate(places)]
            value = f"shuffle2({value}, v{c}, (uint16)({', '.join(map(str, mask))}))"
        lines.append(f"vstore16({value}, {k}, to);")
    loads = [f"const uint16 v{c} = vload16(0, from + {c * pixels}L);" for c in range(channels)]
    body = "\n    ".join([*loads, *lines])
    text = f"""// y[p][c] = x[c][p], sixteen pixels p at a time; the last begin early enough to end with the picture.
kernel __attribute__((reqd_work_group_size(1, 1, 1)))
void interleave(global const uint *restrict x, const long offset, global uint *restrict y) {{
  x += offset + get_global_id(1) * {channels * pixels}L;
  y += get_global_id(1) * {channels * pixels}L;
  const int first = get_global_id(0) * {_EACH * _LANES}, end = min(first + {_EACH * _LANES}, {pixels});
  for (int at = first; at < end; at += {_LANES}) {{
    const int p = min(at, {pixels - _LANES});
    global const uint *from = x + p;
    global uint *to = y + p * {channels};
    {body}
  }}
}}
"""
    work = (-(-pixels // (_EACH * _LANES)), images, 1)
    return Launch(build(context, text), "interleave", work, (1, 1, 1), "x offset y", names=("x", "offset", "y"),
                  dtypes=[None, np.int64, None])  # fmt: skip
