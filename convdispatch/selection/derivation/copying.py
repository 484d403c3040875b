"""Strided copies with gaps: one kernel that pads, crops, dilates, flips, transposes, gathers and scatters.

Along each axis, element ``t`` of the target is a copy of element ``(t - before) / step`` of the source if that is an
integer inside the source, and zero otherwise.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ...api.problem import ConvProblem
from ...device.programs.kernels import Launch, build, kernel_text
from ...device.runtime import device_info

_COPY_TYPES = {2: "ushort", 4: "uint", 8: "ulong"}
"""The OpenCL type by which elements of a size in bytes are copied; the device need not support their dtype."""


@dataclass(frozen=True)
class CopyAxis:
    """One axis of a copy; strides are in elements, and ``source_stride`` may be negative."""

    extent: int
    target_stride: int
    source_stride: int
    size: int
    """The number of source elements along the axis."""
    before: int = 0
    step: int = 1


@dataclass(frozen=True)
class Copy:
    """A copy from one operand to another; ``source`` and ``target`` are their names.

    ``source_start`` is the element at which the source's strides start. In a loop over parts, part ``q`` starts
    ``q source_part`` and ``q target_part`` elements later.
    """

    source: str
    target: str
    axes: tuple[CopyAxis, ...]
    source_start: int = 0
    source_part: int = 0
    target_part: int = 0
    elements: int = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "elements", math.prod(axis.extent for axis in self.axes))

    @property
    def moved(self) -> int:
        """The number of elements that the copy reads and writes."""
        return self.elements + math.prod(min(axis.extent, axis.size) for axis in self.axes)

    def launch(self, context: Any, problem: ConvProblem, part: int = 0) -> Launch:
        """The launch that copies one part; its operands are target and source."""
        rows = device_info(context.devices[0]).type == "cpu"
        word = _COPY_TYPES[problem.itemsize]
        text = f"#define WORD {word}\n#define START {self.source_start}L\n#define ROWS {int(rows)}\n"
        for number, axis in enumerate(self.axes):
            values = (axis.extent, axis.target_stride, axis.source_stride, axis.size, axis.before, axis.step)
            text += "".join(f"#define {name}{number} ({v})\n" for name, v in zip("ETSNBP", values, strict=True))
        program = build(context, text + kernel_text("convdispatch.selection.derivation", "rearrange.cl"))
        last = self.axes[-1].extent
        size = (self.elements // last if rows else self.elements,)
        starts = [np.int64(part * self.target_part), np.int64(part * self.source_part)]
        return Launch(program, "rearrange", size, None, ["target", "source", *starts], names=("target", "source"))


def contiguous(shape: tuple[int, ...]) -> list[int]:
    """Strides in elements of a contiguous array."""
    return [math.prod(shape[number + 1 :]) for number in range(len(shape))]


def axes_of(problem: ConvProblem, name: str) -> dict[str, tuple[int, int]]:
    """(size, stride) of an operand's axes: ``n`` outermost, ``c`` channels, ``d h w``; missing axes are (1, 0)."""
    shape = getattr(problem, name + "_shape")
    letters = "nc" + problem.axes if problem.layout == "nchw" else "n" + problem.axes + "c"
    size_and_stride = dict.fromkeys("dhw", (1, 0))
    return size_and_stride | dict(zip(letters, zip(shape, contiguous(shape), strict=True), strict=True))
