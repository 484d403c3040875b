"""The layout of a quantized convolution's source: a band of x with its padding, in which a tap is an offset.

A slot holds the rows of x that some rows of y read, ``pixel`` bytes per pixel:

    slot[kd][h % sh][h // sh][column][channel of the group, for some kernels rounded up to 4]

Positions count pixels of y as if a row of y were as long as a row of the slot, so that a tile continues across rows;
results between two rows are computed but not stored. Along an axis with one tap the slot has only the rows or columns
that are read, without the stride. Taps of a row whose pixels are contiguous are one run of bytes.
"""

from __future__ import annotations

import functools

from convdispatch.api import ConvProblem
from convdispatch.api.cpu import round_up

__all__ = ["Band"]


class Band:
    """The bytes of x for ``rows`` rows of y of one image and group; a step multiplies ``unit`` bytes."""

    def __init__(self, problem: ConvProblem, rows: int, unit: int) -> None:
        p = self.problem = problem
        self.rows, self.unit = rows, unit
        self.channels = p.ic // p.g
        # In NHWC channels may be copied unpadded: a tap then reads into the next pixel, where its weights are zeros.
        self.pixel = self.channels if unit == 4 and p.layout == "nhwc" else round_up(self.channels, 4)
        # Stride of output pixels along w and h: ``step`` in the slot's pixels, ``skip`` between the slot's pixels in x.
        self.step_w, self.skip_w = (1, p.sw) if p.kw == 1 else (p.sw, 1)
        self.step_h, self.skip_h = (1, p.sh) if p.kh == 1 else (p.sh, 1)
        self.columns = round_up((p.ow - 1) * self.step_w + (p.kw - 1) * p.dw + 1, self.step_w)
        self.row_positions = self.columns // self.step_w
        """Positions from one row of y to the next in the slot."""
        self.band_rows = (rows - 1) * self.step_h + (p.kh - 1) * p.dh + 1
        self.half_rows = -(-self.band_rows // self.step_h)
        self.line = self.columns * self.pixel
        self.area = self.step_h * self.half_rows * self.line
        self.row = self.step_w * self.pixel
        """Bytes of the slot from one position to the next."""
        runs = p.dw == 1 or p.kw == 1
        self.run_taps = p.kw if runs else 1
        self.steps = -(-self.run_taps * self.pixel // unit)
        self.taps = p.kd * p.kh * (1 if runs else p.kw)
        self.positions = (rows - 1) * self.row_positions + p.ow

    @functools.cached_property
    def offsets(self) -> list[int]:
        """For each tap the byte offset in the slot that it reads for position 0."""
        p, tap_offsets = self.problem, []
        for d in range(p.kd):
            for h in range(p.kh):
                remainder, quotient = (h * p.dh) % self.step_h, (h * p.dh) // self.step_h
                start = d * self.area + (remainder * self.half_rows + quotient) * self.line
                tap_offsets += [start + w * p.dw * self.pixel for w in range(p.kw // self.run_taps)]
        return tap_offsets

    @property
    def halves(self) -> int:
        """A bit mask of the remainders, modulo the stride along h, of the rows that some tap reads."""
        return sum({1 << (h * self.problem.dh) % self.step_h for h in range(self.problem.kh)})

    @property
    def panel(self) -> int:
        """Bytes of 32 output channels' packed weights."""
        return self.taps * self.steps * self.unit * 32

    def size(self, tile: int) -> int:
        """Bytes of the slot, including those that a tile of positions reads beyond the last row."""
        return self.problem.kd * self.area + (tile + 1) * self.row + self.steps * self.unit + self.line
