"""First layers: few channels, whose taps along w are channels of a source that is written first.

    x'[row, p, kx C + c] = x[row, p sw - pw + kx, c]     w'[m, ky, kx C + c] = w[m, ky, kx, c]

Then a kernel of kh x 1 taps over kw C channels computes the same sums: 21 of 24 numbers count in a row of a 7x7 kernel
over three channels, where three of eight would. Channels last, a place's numbers lie one after another in x already.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from convdispatch.api import OPERANDS, ConvProblem, Launch, build, define, kernel_text

_FEW = 8
"""Channels of which the copy engine gathers none."""
_SEGMENT = 128
"""Places of a row that a work group writes."""
_TYPES = {2: "ushort", 4: "uint"}


def gathers(problem: ConvProblem) -> int:
    """Channels of the written source, where taps along w may be channels, else 0.

    Its rows are whole pieces of 64 bytes: with 32 in boxes of 64, the product of 3→64, 3×3 at 224×224 took 384 µs on an
    H200, where packing and ``wgmma`` took 346 in all.
    """
    few = problem.ic < _FEW and problem.g == 1 and problem.kw > 1 and problem.dw == 1
    if not few or problem.direction != "fwd" or problem.layout != "nhwc" or problem.ndim > 2:
        return 0
    step = 64 // problem.itemsize
    return -(-problem.kw * problem.ic // step) * step


def gathered(problem: ConvProblem, wide: int) -> ConvProblem:
    """The problem over a source of ``wide`` channels that is written first."""
    return problem.replace(ic=wide, iw=problem.ow, kw=1, sw=1, pw=0, pw_r=0)


@dataclass(frozen=True)
class Gathered:
    """That source, as where it lies is asked of it."""

    name: str
    bytes: int


def _text(problem: ConvProblem, wide: int, **numbers: Any) -> str:
    size = problem.itemsize
    common = {"NUMBERS": problem.kw * problem.ic, "WIDE": wide, "LANES": 16 // size}
    text = define(NUMBER=_TYPES[size], STEP=problem.sw, PAD=problem.pw, C=problem.ic, **common, **numbers)
    return text + kernel_text(__package__, "gather.cl")


def x_launch(context: Any, problem: ConvProblem, wide: int, at: int) -> Launch:
    """Writes the source, ``at`` bytes into the operand ``workspace``."""
    rows, at = problem.mb * problem.ih, at // problem.itemsize
    text = _text(problem, wide, GATHER=1, ROW=problem.iw * problem.ic, P=problem.ow, X_AT=f"{at}L")
    groups = rows * -(-problem.ow // _SEGMENT)
    return Launch(build(context, text), "gather", (groups * 256,), (256,), ["x", "workspace"], names=OPERANDS)


def w_launch(context: Any, problem: ConvProblem, wide: int, at: int) -> Launch:
    """Writes the weights, ``at`` bytes into the operand ``workspace``."""
    rows, at = problem.oc * problem.kh, at // problem.itemsize
    text = _text(problem, wide, GATHER=0, ROWS=rows, W_AT=f"{at}L")
    items = -(-rows * wide // 256) * 256
    return Launch(build(context, text), "widen", (items,), (256,), ["w", "workspace"], names=OPERANDS)
