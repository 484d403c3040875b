"""Max pooling without gradients, for callers who bring memory and layout of their own."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ...api.dtypes import DTYPES
from ...device.opencl.platforms import device_info
from ...device.programs.kernels import Launch, build, define, kernel_text

if TYPE_CHECKING:
    import pyopencl as cl

_INF = {"float32": "0x7f800000u", "float16": "0x7c00", "bfloat16": "0x7f80"}
"""The bits of infinity; the dtypes that are pooled."""
_INSTRUCTIONS = {"float32": "max.NaN.f32", "float16": "max.NaN.f16x2", "bfloat16": "max.NaN.bf16x2"}
_GROUP = 256


class Windows(NamedTuple):
    """Sizes of images and of windows: (height, width) of each."""

    input: tuple[int, int]
    output: tuple[int, int]
    kernel: tuple[int, int]
    stride: tuple[int, int]
    padding: tuple[int, int]
    dilation: tuple[int, int]

    @property
    def inside(self) -> bool:
        """Whether no window reaches beyond the input."""
        axes = zip(*self, strict=True)
        return all(not p and (o - 1) * s + (k - 1) * d < i for i, o, k, s, p, d in axes)


def max_pool_launch(
    context: cl.Context, dtype: str, images: int, channels: int, windows: Windows, last: bool
) -> Launch:
    """``launch(queue, (x, y))``: y ``[images, channels, *output]``, with ``last`` ``[images, *output, channels]``.

    ``dtype`` is float32, float16 or bfloat16. x and y begin at a multiple of 16 bytes. NaN counts as the largest.
    Raises ValueError for another dtype and for more elements than 32 bits count.
    """
    if dtype not in _INF:
        raise ValueError(f"max pooling in words takes {', '.join(_INF)}, got {dtype}")
    bits, few = 8 * DTYPES[dtype].itemsize, 1
    (ih, iw), (oh, ow) = windows.input, windows.output
    if last:
        few = next(n for n in (128 // bits, 64 // bits, 32 // bits, 1) if n and channels % n == 0)
    elif bits == 16 and ow % 2 == 0 and (windows.inside or windows.dilation == (1, 1)):
        few = 2
    items = images * channels * oh * ow // few
    if max(items + _GROUP, ih * iw * (channels if last else 1)) >= 1 << 31:
        raise ValueError("more elements than 32 bits count")
    letters = {"I": "input", "O": "output", "K": "kernel", "S": "stride", "P": "padding", "D": "dilation"}
    sizes = {f"{a}{axis}": getattr(windows, name)[n] for a, name in letters.items() for n, axis in enumerate("HW")}
    more = {"CHANNELS": channels, "INF": _INF[dtype]} if last else {"INF": _INF[dtype]}
    info = device_info(context.devices[0])
    if info.vendor == "nvidia" and info.arch.startswith("sm_") and int(info.arch[3:]) >= 80:
        more["INSTRUCTION"] = f'"{_INSTRUCTIONS[dtype]}"'
    text = define(**sizes, NHWC=int(last), BITS=bits, FEW=few, INSIDE=int(windows.inside), **more)
    program = build(context, text + kernel_text(__package__, "max_pool_words.cl"))
    size = -(-items // _GROUP) * _GROUP
    return Launch(program, "max_pool", (size,), (_GROUP,), ("x", "y", np.uint32(items)), names=("x", "y"))
