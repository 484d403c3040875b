"""Powers of two that bring two operands into float16's range: one a row of A, one a column of B, one a summed index.

    A'[r, k] = A[r, k] 2^(14 + e_k - a_r)      B'[k, q] = B[k, q] 2^(14 - e_k - b_q)
    sum over k of A[r, k] B[k, q] = 2^(a_r + b_q - 28) sum over k of A'[r, k] B'[k, q]

| direction | A: r, k | B: q, k |
|---|---|---|
| forward | x: image, input channel | w: output channel, input channel |
| data gradient | dy: image, output channel | w: input channel, output channel |
| weights' gradient | dy: output channel, image | x: input channel, image |

so multiplying an image, a channel of what is written, or a summed index (with its partner divided) by powers of two
changes exponents only. ``e_k`` is the mean exponent of B's planes at k, a plane's exponent being that of its largest
finite magnitude: what scales rows or columns moves all means alike, and one outlier none. It is never more than 10
below the largest, or a column whose other planes are next to nothing would lose its own. ``a_r`` and ``b_q`` are the
largest exponents that remain, so nothing overflows. B alone decides ``e_k``, so constant weights are packed once.

Exponents are integers and their largest and means have no order: results are the same bits every time, and the host
waits for nothing. Infinities and NaN do not count.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from convdispatch.api import OPERANDS, Areas, ConvProblem, Launch, build, kernel_text

from . import SHARED

TOP = 14
"""Exponent that the largest magnitude of a row gets."""
_LEAST = 127 - 112
"""Smaller biased exponents count as this one."""
_NOTHING = -400
"""The norm of a summed index at which B holds nothing: what it meets becomes zero."""
_REACH = 10
_ITEMS, _GROUPS, _READS = 256, 512, 16


@dataclass(frozen=True)
class Planes:
    """A tensor as planes: [group][outer][channel], each of some pixels (taps). Rows and summed indices are the two."""

    name: str
    groups: int
    outer: int
    """Images, or output channels of a group."""
    channels: int
    """Of a group."""
    pixels: int
    steps: tuple[int, int, int, int]
    """Elements from group to group, outer to outer, channel to channel, pixel to pixel."""
    summed: str
    """``outer`` or ``channels``: which of the two is k."""

    @property
    def k(self) -> int:
        """Summed indices of a group."""
        return self.outer if self.summed == "outer" else self.channels

    @property
    def rows(self) -> int:
        """Rows of A, or columns of B, of a group."""
        return self.channels if self.summed == "outer" else self.outer

    @property
    def near(self) -> bool:
        """Whether neighbouring work items take neighbouring channels, not neighbouring pixels."""
        return self.steps[2] == 1 and self.channels > 1

    @property
    def width(self) -> int:
        """Pixels that are read at once."""
        return 4 if self.steps[3] == 1 and self.pixels % 4 == 0 else 1

    @property
    def reads(self) -> int:
        """Reads of a plane."""
        return self.pixels // self.width

    @property
    def lanes(self) -> int:
        """Work items of a plane."""
        return _ITEMS // self.side

    @property
    def side(self) -> int:
        """Planes of a work group, of neighbouring channels."""
        most = 32 if self.near and self.pixels >= 8 else max(1, _ITEMS // _power(-(-self.reads // _READS)))
        return min(_power(self.channels), most)

    @property
    def blocks(self) -> int:
        """Work groups along the channels."""
        return -(-self.channels // self.side)

    @property
    def parts(self) -> int:
        """Parts of a plane, which work groups share, where planes are few."""
        whole = self.groups * self.outer * self.blocks
        return max(1, min(_GROUPS // whole, self.reads // (8 * self.lanes)))

    @property
    def work_groups(self) -> int:
        """Work groups that look through the tensor."""
        return self.groups * self.outer * self.blocks * self.parts

    def cell(self, group: str, outer: str, channel: str, part: str) -> str:
        """OpenCL expression: where a part's exponent lies in the table, [group][row][part][k]."""
        row, k = (channel, outer) if self.summed == "outer" else (outer, channel)
        return f"(((long){group} * {self.rows} + {row}) * {self.parts} + {part}) * {self.k} + {k}"

    @property
    def table_bytes(self) -> int:
        """Bytes of the exponents."""
        return self.groups * self.rows * self.parts * self.k


def _power(n: int) -> int:
    """The power of two that holds ``n``, at most a work group's."""
    return min(_ITEMS, 1 << max(0, n - 1).bit_length())


def planes(problem: ConvProblem, name: str) -> Planes:
    """x, y or w of a problem as planes."""
    nhwc, g = problem.layout == "nhwc", problem.g
    if name == "w":
        outer, channels = problem.oc // g, problem.ic // g
        pixels = problem.kd * problem.kh * problem.kw
        steps = (outer * channels * pixels, channels * pixels)
        summed = "channels" if problem.direction == "fwd" else "outer"
    else:
        size = [getattr(problem, ("i" if name == "x" else "o") + axis) for axis in "dhw"]
        whole, pixels, outer = problem.ic if name == "x" else problem.oc, math.prod(size), problem.mb
        channels = whole // g
        steps = (channels * (1 if nhwc else pixels), whole * pixels)
        summed = "outer" if problem.direction == "bwd_weights" else "channels"
        return Planes(name, g, outer, channels, pixels, (*steps, *((1, whole) if nhwc else (pixels, 1))), summed)
    return Planes(name, g, outer, channels, pixels, (*steps, *((1, channels) if nhwc else (pixels, 1))), summed)


class Scales:
    """A problem's scales: where they lie, the launches that find them, and the exponents that kernels add.

    ``areas`` are the workspace's, ``b_areas`` those of B's buffer: another one where weights are constant.
    """

    def __init__(self, problem: ConvProblem, areas: Areas, b_areas: Areas) -> None:
        names = {"fwd": "xw", "bwd_data": "yw", "bwd_weights": "yx"}[problem.direction]
        self.a, self.b = planes(problem, names[0]), planes(problem, names[1])
        self.constant = b_areas is not areas
        self._table, self._marks = {}, {}
        for each, area in ((self.a, areas), (self.b, b_areas)):
            self._table[each.name] = area.add(each.table_bytes)
            self._marks[each.name] = area.add(each.groups * each.rows * 4) // 4
        self.norms_at = b_areas.add(self.b.groups * self.b.k * 4) // 4
        """Ints before the norms, in B's buffer."""

    def named(self, letter: str) -> str:
        """The operand that is A or B."""
        return (self.a if letter == "A" else self.b).name

    def marks_at(self, name: str) -> int:
        """Ints before an operand's marks, in its buffer."""
        return self._marks[name]

    def exponent(self, name: str, norms: str, marks: str, group: str, row: str, k: str, margin: int = 0) -> str:
        """OpenCL expression: what an operand's element is shifted by. ``norms`` and ``marks`` point to the two buffers
        as ints; ``margin`` are bits that it may grow afterwards."""
        each, sign = (self.a, "") if name == self.a.name else (self.b, "-")
        norm = f"{norms}[{self.norms_at} + {group} * {each.k} + {k}]"
        mark = f"{marks}[{self._marks[name]} + {group} * {each.rows} + {row}]"
        return f"{sign}{norm} - {mark} + {TOP - margin}"

    def launches(self, context: Any, names: Sequence[str]) -> list[Launch]:
        """What finds the scales of the operands ``names``, B's norms first where B is among them."""
        wanted = [each for each in (self.a, self.b) if each.name in names]
        has_b = self.b in wanted
        text = kernel_text(SHARED, "scales.cl.mako", planes=[(each, self._table[each.name]) for each in wanted],
                           norms=(self.b, self._table[self.b.name], self.norms_at) if has_b else None,
                           marks=[(each, self._table[each.name], self.norms_at, self._marks[each.name],
                                   1 if each is self.a else -1) for each in wanted],
                           least=_LEAST, reach=_REACH, nothing=_NOTHING)  # fmt: skip
        program = build(context, text)
        given = [name for each in wanted for name in (each.name, "workspace")]
        groups = sum(each.work_groups for each in wanted)
        found = [Launch(program, "exponents", (groups * _ITEMS,), (_ITEMS,), given, names=OPERANDS)]
        if has_b:
            size = (self.b.groups * -(-self.b.k // 16) * _ITEMS,)
            found.append(Launch(program, "norms", size, (_ITEMS,), ["workspace"], names=OPERANDS))
        rows = sum(each.groups * each.rows for each in wanted)
        norms = "workspace" if has_b or not self.constant else "w"
        given = [name for _ in wanted for name in ("workspace", norms)]
        found.append(Launch(program, "marks", (-(-rows // 8) * _ITEMS,), (_ITEMS,), given, names=OPERANDS))
        return found
