"""1x1 kernels of few channels: neighbouring pixels as one pixel of more channels, their weights on the diagonal.

    y[i M + m] = sum over (j, c) of (w[m, c] where i = j, else 0) x[j C + c],    i, j < pixels

Channels last, pixels lie one after another, so the tensors stay as they are. The copy engine gathers rows of 32 bytes
an order slower than rows of 128, and gathered channels beyond the last cost it more than channels: 16 channels
of four pixels are one whole row. Tensor cores multiply as many zeros, in time that memory takes anyhow.
"""

from __future__ import annotations

from typing import Any

from convdispatch.api import OPERANDS, ConvProblem, Launch, build, define, kernel_text

_WHOLE = 64  # channels of a slice of 128 bytes
_MOST_SOURCE, _MOST_TARGET = 384, 1536  # channels of folded pixels: beyond, zeros take longer than what they spare


def folds(problem: ConvProblem) -> tuple[int, ...]:
    """Pixels that may be taken as one: one, and the numbers of them whose channels fill slices."""
    geometry = [getattr(problem, letter + axis) for axis in problem.axes for letter in "kspd"]
    far = [getattr(problem, f"p{axis}_r") for axis in problem.axes]
    plain = geometry == [1, 1, 0, 1] * len(problem.axes) and not any(far)
    narrow = problem.itemsize == 2 and problem.layout == "nhwc" and problem.direction != "bwd_weights"
    if not plain or problem.g > 1 or not narrow:
        return (1,)
    source, target = (problem.ic, problem.oc) if problem.direction == "fwd" else (problem.oc, problem.ic)
    places = problem.mb * problem.id * problem.ih * problem.iw
    if source % _WHOLE == 0:
        return (1,)
    many = [n for n in (2, 4, 8) if source * n % _WHOLE == 0 and places % n == 0]
    return (1, *(n for n in many if source * n <= _MOST_SOURCE and target * n <= _MOST_TARGET))


def folded(problem: ConvProblem, pixels: int) -> ConvProblem:
    """The same tensors as a problem of fewer pixels and more channels, but for its weights."""
    if pixels == 1:
        return problem
    places = problem.mb * problem.ih * problem.iw // pixels
    return problem.replace(mb=1, ih=1, iw=places, ic=problem.ic * pixels, oc=problem.oc * pixels)


def fold_launch(context: Any, problem: ConvProblem, pixels: int, at: int) -> Launch:
    """Writes the weights of ``folded(problem, pixels)`` behind ``at`` elements of the operand ``workspace``."""
    text = define(PIXELS=pixels, OC=problem.oc, IC=problem.ic, TO_AT=f"{at}L") + kernel_text(__package__, "fold.cl")
    items = -(-pixels * pixels * problem.oc * problem.ic // 8 // 256) * 256
    return Launch(build(context, text), "fold", (items,), (256,), ["w", "workspace"], names=OPERANDS)
