"""Operands that a launch rewrites before the product, because the copy engine would gather them slowly or not at all.

*Folded* pixels, for 1x1 kernels of few channels: consecutive pixels count as one pixel of more channels, and the
weights are repeated on the diagonal.

    y[i M + m] = sum over (j, c) of (w[m, c] where i = j, else 0) x[j C + c],    i, j < pixels

In NHWC consecutive pixels are contiguous, so x and y need no copy. The copy engine gathers rows of 32 bytes ten times
as slowly as rows of 128, and zeros beyond the last channel even more slowly; 16 channels of four pixels are one whole
row. Tensor cores also multiply the zeros, while they would wait for memory anyway.

*Gathered* taps, for first layers with few channels: taps along w become channels of a source that is written first.

    x'[row, p, kx C + c] = x[row, p sw - pw + kx, c]     w'[m, ky, kx C + c] = w[m, ky, kx, c]

Then a kernel of kh x 1 taps over kw C channels computes the same sums: in a row of a 7x7 kernel over three channels 21
of 24 numbers are useful, instead of three of eight per tap.

*Transposed* weights, for the data gradient in TF32, whose tensor cores only accept rows along the summed channels.

*Turned* tensors, of callers whose channels lie first: the source and the weights are laid channels last before the
product, its result channels first after it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from convdispatch.api import OPERANDS, ConvProblem, Launch, build, define, kernel_text, numbers_as_arguments

SLICE_CHANNELS = 64
"""16-bit channels of a K-slice of 128 bytes."""
MAX_FOLDED_SOURCE = 384
"""Most source channels of a folded pixel: with more, multiplying zeros takes more time than folding saves."""
MAX_FOLDED_TARGET = 1536
"""Most target channels of a folded pixel."""
MIN_GATHERED = 8
"""Fewest channels that the copy engine gathers."""
SEGMENT = 128
"""Output pixels of a row that a work group of ``gather`` writes."""
TRANSPOSE_SIDE = 64
"""Rows and columns of the square that a work group of ``transpose`` transposes."""
_TYPES = {2: "ushort", 4: "uint"}


def folds(problem: ConvProblem) -> tuple[int, ...]:
    """Numbers of pixels that may count as one: 1, and the numbers whose channels together fill K-slices."""
    geometry = [getattr(problem, letter + axis) for axis in problem.axes for letter in "kspd"]
    end_padding = [getattr(problem, f"p{axis}_r") for axis in problem.axes]
    plain = geometry == [1, 1, 0, 1] * len(problem.axes) and not any(end_padding)
    suited = problem.itemsize == 2 and problem.layout == "nhwc" and problem.direction != "bwd_weights"
    if not plain or problem.g > 1 or not suited or problem.norm or problem.sums:
        return (1,)
    source, target = (problem.ic, problem.oc) if problem.direction == "fwd" else (problem.oc, problem.ic)
    pixels = problem.mb * problem.id * problem.ih * problem.iw
    if source % SLICE_CHANNELS == 0:
        return (1,)
    multiples = [n for n in (2, 4, 8) if source * n % SLICE_CHANNELS == 0 and pixels % n == 0]
    return (1, *(n for n in multiples if source * n <= MAX_FOLDED_SOURCE and target * n <= MAX_FOLDED_TARGET))


def folded(problem: ConvProblem, pixels: int) -> ConvProblem:
    """The problem on the same x and y with fewer pixels and more channels; its weights are written by a launch."""
    if pixels == 1:
        return problem
    width = problem.mb * problem.id * problem.ih * problem.iw // pixels
    return problem.replace(mb=1, id=1, ih=1, iw=width, ic=problem.ic * pixels, oc=problem.oc * pixels)


def gathers(problem: ConvProblem) -> int:
    """Channels of the source that is written first, if taps along w may become channels; otherwise 0.

    Its rows are multiples of 64 bytes: with rows of 32 in boxes of 64, the product of 3→64, 3×3 at 224×224 took 384 µs
    on an H200, while packing and ``wgmma`` took 346 µs together.
    """
    first_layer = problem.ic < MIN_GATHERED and problem.g == 1 and problem.kw > 1 and problem.dw == 1
    if not first_layer or problem.direction != "fwd" or problem.layout != "nhwc" or problem.ndim > 2:
        return 0
    step = 64 // problem.itemsize
    return -(-problem.kw * problem.ic // step) * step


def gathered(problem: ConvProblem, channels: int) -> ConvProblem:
    """The problem over a source of ``channels`` channels that is written first."""
    return problem.replace(ic=channels, iw=problem.ow, kw=1, sw=1, pw=0, pw_r=0)


@dataclass(frozen=True)
class Gathered:
    """The rewritten source of gathered taps: its name and bytes, for ``packed.plan.Layout``."""

    name: str
    bytes: int


def fold_launch(context: Any, problem: ConvProblem, pixels: int, offset: int) -> Launch:
    """The launch that writes the weights of ``folded(problem, pixels)`` at byte ``offset`` of the workspace."""
    text = define(PIXELS=pixels, OC=problem.oc, IC=problem.ic, TO_AT=f"{offset // 2}L")
    items = -(-pixels * pixels * problem.oc * problem.ic // 8 // 256) * 256
    return _launch(context, "fold.cl", text, ("fold", "w"), items)


def gather_launch(context: Any, problem: ConvProblem, operand: str, channels: int, offset: int) -> Launch:
    """The launch that writes x or w of ``gathered(problem, channels)`` at byte ``offset`` of the workspace."""
    size = problem.itemsize
    text = define(NUMBER=_TYPES[size], STEP=problem.sw, PAD=problem.pw, C=problem.ic, NUMBERS=problem.kw * problem.ic,
                  WIDE=channels, LANES=16 // size)  # fmt: skip
    offset_text = f"{offset // size}L"
    if operand == "x":
        text += define(GATHER=1, ROW=problem.iw * problem.ic, P=problem.ow, X_AT=offset_text)
        groups = problem.mb * problem.ih * -(-problem.ow // SEGMENT)
        return _launch(context, "gather.cl", text, ("gather", "x"), groups * 256)
    rows = problem.oc * problem.kh
    text += define(GATHER=0, ROWS=rows, W_AT=offset_text)
    return _launch(context, "gather.cl", text, ("widen", "w"), -(-rows * channels // 256) * 256)


@dataclass(frozen=True)
class Matrices:
    """Matrices in memory that ``transpose.cl``, which says what the fields are, turns; strides are in elements."""

    rows: int
    columns: int
    outer: int
    from_outer: int
    to_outer: int
    inner: int = 1
    from_inner: int = 0
    to_inner: int = 0
    from_row: int = 0
    """0: rows without gaps."""
    to_row: int = 0


def transposed_weights(problem: ConvProblem) -> Matrices:
    """Weights [oc][taps][ic/g] as [ic][taps][oc/g]."""
    o, i, taps = problem.oc // problem.g, problem.ic // problem.g, _taps(problem)
    return Matrices(o, i, problem.g, o * taps * i, i * taps * o, taps, i, o, taps * i, taps * o)


def turned_weights(problem: ConvProblem, transposed: bool) -> Matrices:
    """Weights [oc][ic/g][taps] as [oc][taps][ic/g], or ``transposed`` as [ic][taps][oc/g]."""
    o, i, taps = problem.oc // problem.g, problem.ic // problem.g, _taps(problem)
    if transposed:
        return Matrices(o, i * taps, problem.g, o * i * taps, o * i * taps)
    return Matrices(i, taps, problem.oc, i * taps, i * taps)


def turned_pixels(problem: ConvProblem, name: str, channels_last: bool) -> Matrices:
    """x or y as [image][pixel][channel], or from there back."""
    shape = getattr(problem.replace(layout="nchw"), name + "_shape")
    channels, pixels = shape[1], math.prod(shape[2:])
    rows, columns = (channels, pixels) if channels_last else (pixels, channels)
    return Matrices(rows, columns, shape[0], channels * pixels, channels * pixels)


def _taps(problem: ConvProblem) -> int:
    return math.prod(getattr(problem, "k" + axis) for axis in problem.axes)


def transpose_launch(
    context: Any, itemsize: int, matrices: Matrices, operands: tuple[str, str], at: tuple[int, int]
) -> Launch:
    """The launch that turns matrices of one of two operands into the other, from and to ``at`` bytes."""
    m = matrices
    longs = {"FROM_AT": at[0] // itemsize, "TO_AT": at[1] // itemsize, "FROM_OUTER": m.from_outer,
             "TO_OUTER": m.to_outer, "FROM_INNER": m.from_inner, "TO_INNER": m.to_inner,
             "FROM_ROW": m.from_row or m.columns, "TO_ROW": m.to_row or m.rows}  # fmt: skip
    ints = {"ROWS": m.rows, "COLUMNS": m.columns, "INNER": m.inner}
    named = {name: np.int64(value) for name, value in longs.items()}
    named |= {name: np.int32(value) for name, value in ints.items()}
    number = _TYPES[itemsize]
    whole = {side: all(value % 4 == 0 for name, value in longs.items() if side in name) for side in ("FROM", "TO")}
    text = define(NUMBER=number, FOUR=number + "4", WIDE_FROM=4 if whole["FROM"] and m.columns % 4 == 0 else 1,
                  WIDE_TO=4 if whole["TO"] and m.rows % 4 == 0 else 1)  # fmt: skip
    kernel, arguments = numbers_as_arguments(kernel_text(__package__, "transpose.cl"), named)
    program = build(context, text + kernel)
    squares = -(-m.rows // TRANSPOSE_SIDE) * -(-m.columns // TRANSPOSE_SIDE) * m.outer * m.inner
    return Launch(program, "transpose", (squares * 256,), (256,), [*operands, *arguments], names=OPERANDS)


def _launch(context: Any, file: str, macros: str, kernel: tuple[str, str], items: int) -> Launch:
    """A launch of ``kernel`` = (its name, the operand that it reads), which writes to the workspace."""
    program = build(context, macros + kernel_text(__package__, file))
    return Launch(program, kernel[0], (items,), (256,), [kernel[1], "workspace"], names=OPERANDS)
