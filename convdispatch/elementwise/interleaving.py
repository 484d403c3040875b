"""Planes of few channels to pixels: the first step of a net with channels last, whose pictures lie channels first.

Sixteen pixels are loaded of each plane and shuffled into as many vectors as there are channels; element-wise copies of
rows of three elements take ten times as long. Numbers may become integers of 8 bits on their way.
"""

from __future__ import annotations

import math

import numpy as np
import pyopencl as cl

from ..device import runtime
from ..device.programs.kernels import Launch, build, keeps_programs
from .tensor import Tensor

LANES = 16
"""The number of elements of the kernel's vectors."""
MAX_CHANNELS = 8
"""The most channels of an image that is interleaved."""
ITEM_VECTORS = 64
"""The number of vectors of pixels per work item; 16 took 1.04 to 1.3 times as long, 128 took 0.86 to 1 times as
long."""


def interleaved(x: Tensor) -> Tensor | None:
    """x of ``[mb, c, h, w]`` as ``[mb, h, w, c]``, in new memory; None where this kernel is not for it."""
    return _turned(x, x.dtype, "uint16", "") if x.dtype.itemsize == 4 else None


def quantized_pixels(x: Tensor, scale: float, zero_point: int, dtype: str) -> Tensor | None:
    """Numbers of ``[mb, c, h, w]`` as integers of ``[mb, h, w, c]``; None where this kernel is not for them.

    As ONNX's QuantizeLinear has it. The quotient is exact by Markstein's step: a product with the reciprocal, and its
    error times that; numbers far beyond the dtype's, infinity among them, come nearer first.
    """
    if x.dtype != np.float32 or not 2.0**-60 < scale < 2.0**60:
        return None
    limits, divisor = np.iinfo(dtype), np.float32(scale)
    given = {
        "v": divisor, "r": np.float32(1) / divisor, "most": divisor * np.float32(2**16), "z": zero_point,
        "low": limits.min - zero_point, "high": limits.max - zero_point,
    }  # fmt: skip
    numbers = {
        name: f"{float(each).hex()}f" if name in ("v", "r", "most") else str(each) for name, each in given.items()
    }
    text = """inline uchar16 read(global const uint *from) {
  const float16 x = clamp(vload16(0, (global const float *)from), (float16)(-MOST), (float16)(MOST)), q = x * R;
  const float16 exact = fma(fma(-q, (float16)(V), x), (float16)(R), q);
  return convert_uchar16((convert_int16_rte(clamp(exact, (float16)(LOW), (float16)(HIGH))) + Z) & 255);
}
"""
    defines = "".join(f"#define {name.upper()} ({each})\n" for name, each in numbers.items())
    return _turned(x, np.dtype(dtype), "uchar16", defines + text)


def _turned(x: Tensor, dtype: np.dtype, vector: str, read: str) -> Tensor | None:
    images, channels = x.shape[:2]
    pixels = math.prod(x.shape[2:])
    if not 2 <= channels <= MAX_CHANNELS or pixels < LANES or not images or not x.contiguous:
        return None
    if runtime.device_info(x.queue.device).type != "cpu":
        return None
    y = Tensor.empty((images, *x.shape[2:], channels), dtype, x.queue)
    launch = _launch(x.context, images, channels, pixels, vector, read)
    launch(x.queue, (x.base_data, np.int64(x.offset // 4), y.base_data))
    return y


@keeps_programs
def _launch(context: cl.Context, images: int, channels: int, pixels: int, vector: str, read: str) -> Launch:
    lines = []
    # Vector k has the elements 16 k to 16 k + 15; element e is channel e % C of pixel e / C, of C channels.
    for k in range(channels):
        places = [divmod(LANES * k + lane, channels) for lane in range(LANES)]
        value = "v0"
        for c in range(1, channels):
            # Lanes of channel c are taken from its plane, lanes of earlier channels from the vector built so far.
            first = [pixel if c == 1 else lane for lane, (pixel, _) in enumerate(places)]
            mask = [LANES + pixel if channel == c else first[lane] for lane, (pixel, channel) in enumerate(places)]
            value = f"shuffle2({value}, v{c}, ({vector})({', '.join(map(str, mask))}))"
        lines.append(f"vstore16({value}, {k}, to);")
    load = "read(from + {})" if read else "vload16(0, from + {})"
    loads = [f"const {vector} v{c} = {load.format(f'{c * pixels}L')};" for c in range(channels)]
    body = "\n    ".join([*loads, *lines])
    text = f"""// y[p][c] = x[c][p], sixteen pixels p at a time; the last begin early enough to end with the picture.
{read}kernel __attribute__((reqd_work_group_size(1, 1, 1)))
void interleave(global const uint *restrict x, const long offset, global {vector[:-2]} *restrict y) {{
  x += offset + get_global_id(1) * {channels * pixels}L;
  y += get_global_id(1) * {channels * pixels}L;
  const int first = get_global_id(0) * {ITEM_VECTORS * LANES}, end = min(first + {ITEM_VECTORS * LANES}, {pixels});
  for (int at = first; at < end; at += {LANES}) {{
    const int p = min(at, {pixels - LANES});
    global const uint *from = x + p;
    global {vector[:-2]} *to = y + p * {channels};
    {body}
  }}
}}
"""
    work = (-(-pixels // (ITEM_VECTORS * LANES)), images, 1)
    return Launch(build(context, text), "interleave", work, (1, 1, 1), "x offset y", names=("x", "offset", "y"),
                  dtypes=[None, np.int64, None])  # fmt: skip
