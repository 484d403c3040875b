"""Powers of two that bring two operands into float16's range: one per row of A, column of B, and summed index.

    A'[r, k] = A[r, k] 2^(14 + e_k - a_r)      B'[k, q] = B[k, q] 2^(14 - e_k - b_q)
    sum over k of A[r, k] B[k, q] = 2^(a_r + b_q - 28) sum over k of A'[r, k] B'[k, q]

| direction | A: r, k | B: q, k |
|---|---|---|
| forward | x: image, input channel | w: output channel, input channel |
| data gradient | dy: image, output channel | w: input channel, output channel |
| weights' gradient | dy: output channel, image | x: input channel, image |

so multiplying an image, an output channel, or a summed index (and dividing its partner) by powers of two changes
exponents only. ``e_k`` is the mean exponent of B's planes at k, where a plane's exponent is that of its largest finite
magnitude: scaling rows or columns moves all means alike, and one outlier hardly moves a mean. ``e_k`` is at most 10
below the largest exponent at k, or a column whose other planes are tiny would lose its own bits. ``a_r`` and ``b_q``
are the largest exponents that remain, so nothing overflows. B alone decides ``e_k``, so constant weights are packed
once.

Exponents are integers, and maxima and means do not depend on the order: results are the same bits every time, and the
host waits for nothing. Infinities and NaN do not count.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from ...api.problem import ConvProblem
from ..plans.steps import Areas
from ..programs.geometry_arguments import numbers_as_arguments
from ..programs.kernels import OPERANDS, Launch, build, kernel_text
from . import MATRIX_TILES

TOP = 14
"""The exponent to which scaling brings the largest magnitude of a row."""
LEAST_EXPONENT = 127 - 112
"""The least biased float32 exponent that the scales distinguish; smaller exponents count as this one."""
NO_EXPONENT = -400
"""The norm (exponent) of a summed index at which all of B is zero: values of A there become zero."""
MEAN_REACH = 10
"""The most bits by which the norm of a summed index may be below its largest exponent."""
ITEMS = 256
"""Work items of a work group in the kernels that compute scales."""
WANTED_GROUPS = 512
"""Work groups that should search a tensor for its exponents; few planes are cut into parts to reach the number."""
WANTED_READS = 16
"""The fewest reads that a work item of the search for exponents should do."""


class Reads(NamedTuple):
    """What decides the code that searches a tensor's planes for their exponents, [group][row][part][k]."""

    near: bool
    width: int
    outer_summed: bool
    of_norm: bool


@dataclass(unsafe_hash=True)
class Planes:
    """A tensor as planes [group][outer][channel], each of some pixels (taps). Of ``outer`` and ``channel``, one is the
    row and the other the summed index."""

    name: str
    groups: int
    outer: int
    """The number of images, or for weights of output channels of a group."""
    channels: int
    """Channels of a group."""
    pixels: int
    steps: tuple[int, int, int, int]
    """Strides in elements: from group to group, outer to outer, channel to channel, pixel to pixel."""
    summed: str
    """``outer`` or ``channels``: which of the two is k."""

    def __post_init__(self) -> None:
        # k, rows: number of summed indices of a group, and of its rows of A or columns of B.
        self.k, self.rows = (self.outer, self.channels)[:: 1 if self.summed == "outer" else -1]
        # near: whether neighbouring work items read neighbouring channels, not neighbouring pixels.
        self.near = self.steps[2] == 1 and self.channels > 1
        self.width = 4 if self.steps[3] == 1 and self.pixels % 4 == 0 else 1  # number of pixels of one vector load
        self.reads = self.pixels // self.width
        # side, lanes: planes (neighbouring channels) that a work group searches, and work items per plane.
        max_side = 32 if self.near and self.pixels >= 8 else max(1, ITEMS // _power(-(-self.reads // WANTED_READS)))
        self.side = min(_power(self.channels), max_side)
        self.lanes = ITEMS // self.side
        self.blocks = -(-self.channels // self.side)  # number of work groups along the channels of a tensor
        groups = self.groups * self.outer * self.blocks
        # parts: the number of parts that a plane is cut into.
        self.parts = max(1, min(WANTED_GROUPS // groups, self.reads // (8 * self.lanes)))
        self.work_groups = groups * self.parts
        # table_bytes: bytes of the table of exponents, one for each plane and part.
        self.table_bytes = self.groups * self.rows * self.parts * self.k

    def numbers(self, number: int) -> dict[str, Any]:
        """The numbers of the tensor by the names that kernels give them, as the tensor ``number`` of a program."""
        sizes = {"GROUPS": self.work_groups, "PARTS": self.parts, "BLOCKS": self.blocks, "OUTER": self.outer,
                 "CHANNELS": self.channels, "READS": self.reads, "ROWS": self.rows, "K": self.k,
                 "SIDE_SHIFT": self.side.bit_length() - 1, "K_BLOCKS": -(-self.k // 16),
                 "ALL_ROWS": self.groups * self.rows}  # fmt: skip
        names = ("GROUP_STEP", "OUTER_STEP", "CHANNEL_STEP", "PIXEL_STEP")
        steps = {f"{name}{number}": np.int64(step) for name, step in zip(names, self.steps, strict=True)}
        return {f"{name}{number}": np.int32(size) for name, size in sizes.items()} | steps


def _power(n: int) -> int:
    """The least power of two that is at least ``n``, limited to the work items of a work group."""
    return min(ITEMS, 1 << max(0, n - 1).bit_length())


def planes(problem: ConvProblem, name: str) -> Planes:
    """The tensor x, y or w of a problem as planes."""
    nhwc, g = problem.layout == "nhwc", problem.g
    if name == "w":
        outer, channels = problem.oc // g, problem.ic // g
        pixels = problem.kd * problem.kh * problem.kw
        steps = (outer * channels * pixels, channels * pixels)
        all_channels, summed = channels, "channels" if problem.direction == "fwd" else "outer"
    else:
        size = [getattr(problem, ("i" if name == "x" else "o") + axis) for axis in "dhw"]
        all_channels, pixels, outer = problem.ic if name == "x" else problem.oc, math.prod(size), problem.mb
        channels = all_channels // g
        steps = (channels * (1 if nhwc else pixels), all_channels * pixels)
        summed = "outer" if problem.direction == "bwd_weights" else "channels"
    return Planes(name, g, outer, channels, pixels, (*steps, *((1, all_channels) if nhwc else (pixels, 1))), summed)


class Scales:
    """A problem's scales: their offsets, the launches that compute them, and the exponents that kernels add.

    ``areas`` are the workspace's; ``b_areas`` are those of B's buffer, which is another one for constant weights.
    """

    def __init__(self, problem: ConvProblem, areas: Areas, b_areas: Areas) -> None:
        self._problem = problem
        names = {"fwd": "xw", "bwd_data": "yw", "bwd_weights": "yx"}[problem.direction]
        self.a, self.b = planes(problem, names[0]), planes(problem, names[1])
        self.constant = b_areas is not areas
        self._table, self._marks = {}, {}
        for operand, area in ((self.a, areas), (self.b, b_areas)):
            self._table[operand.name] = area.add(operand.table_bytes)
            self._marks[operand.name] = area.add(operand.groups * operand.rows * 4) // 4
        self.norms_at = b_areas.add(self.b.groups * self.b.k * 4) // 4
        """Offset, in ints, of the norms of the summed indices, in B's buffer."""

    def named(self, letter: str) -> str:
        """The name (x, w or y) of the operand that is A or B."""
        return (self.a if letter == "A" else self.b).name

    def marks_at(self, name: str) -> int:
        """Offset, in ints, of an operand's exponents (one per row or column), in its buffer."""
        return self._marks[name]

    def exponent(self, name: str, number: int = 0, margin: int = 0) -> str:
        """OpenCL expression: the exponent by which an element of the program's tensor ``number`` is scaled. ``{norms}``
        and ``{marks}`` stand for pointers to the two buffers as ints, ``{group}``, ``{row}`` and ``{k}`` for the
        element; ``margin``: bits by which it may grow later."""
        sign = "" if name == self.a.name else "-"
        norm, mark = f"NORMS + {{group}} * K{number} + {{k}}", f"MARKS{number} + {{group}} * ROWS{number} + {{row}}"
        return f"{sign}({{norms}})[{norm}] - ({{marks}})[{mark}] + {TOP - margin}"

    def numbers(self, names: Sequence[str]) -> dict[str, Any]:
        """The numbers that the exponents of the operands ``names`` name, each by its place among them."""
        result: dict[str, Any] = {"NORMS": np.int32(self.norms_at)}
        for number, name in enumerate(names):
            operand = self.a if name == self.a.name else self.b
            result |= {f"K{number}": np.int32(operand.k), f"ROWS{number}": np.int32(operand.rows),
                       f"MARKS{number}": np.int32(self._marks[name])}  # fmt: skip
        return result

    def launches(self, context: Any, names: Sequence[str]) -> list[Launch]:
        """Launches that compute the scales of the operands ``names``; B's norms come first, if B is among them."""
        scaled = [operand for operand in (self.a, self.b) if operand.name in names]
        has_b = self.b in scaled
        numbers = self.numbers([operand.name for operand in scaled])
        for i, operand in enumerate(scaled):
            numbers |= operand.numbers(i) | {f"TABLE{i}": np.int64(self._table[operand.name])}
        # Scales of a normalised x are those of its norm.
        of_norm, text = self._problem.normalised and "x" in names, ""
        if of_norm:
            text = self._problem.macros() + kernel_text("convdispatch.api", "vectors.cl")
            text += kernel_text("convdispatch.api", "norm.cl")
        reads = tuple(
            Reads(operand.near, operand.width, operand.summed == "outer", of_norm and operand.name == "x")
            for operand in scaled
        )
        arguments = {}
        for kernel in ("exponents", *(["norms"] if has_b else []), "marks"):
            part = kernel_text(MATRIX_TILES, "scales.cl.mako", kernel=kernel, of_norm=of_norm, tensors=reads,
                               b=len(scaled) - 1, signs=["+" if operand is self.a else "-" for operand in scaled],
                               least=LEAST_EXPONENT, reach=MEAN_REACH, nothing=NO_EXPONENT)  # fmt: skip
            part, arguments[kernel] = numbers_as_arguments(part, numbers)
            text += part
        program = build(context, text)

        def launch(kernel: str, groups: int, operands: list[str]) -> Launch:
            operands_and_numbers = [*operands, *arguments[kernel]]
            return Launch(program, kernel, (groups * ITEMS,), (ITEMS,), operands_and_numbers, names=OPERANDS)

        operands = [name for operand in scaled for name in (operand.name, "workspace")]
        operands += ["norm"] if of_norm else []
        steps = [launch("exponents", sum(operand.work_groups for operand in scaled), operands)]
        if has_b:
            steps.append(launch("norms", self.b.groups * -(-self.b.k // 16), ["workspace"]))
        rows = sum(operand.groups * operand.rows for operand in scaled)
        norms_of = "workspace" if has_b or not self.constant else "w"
        steps.append(launch("marks", -(-rows // 8), ["workspace", norms_of] * len(scaled)))
        return steps
