"""Strided copies with gaps: one kernel that pads, crops, dilates, flips, transposes, gathers and scatters.

Along each axis element ``t`` of the target comes from element ``(t - before) / step`` of the source where that is whole
and inside, and is zero elsewhere.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ...api.problem import ConvProblem
from ...device.programs.kernels import Launch, build, kernel_text
from ...device.runtime import device_info

_WORD = {2: "ushort", 4: "uint", 8: "ulong"}
"""The OpenCL type by which elements are copied, by their size in bytes: the device need not support the dtype
itself."""


@dataclass(frozen=True)
class CopyAxis:
    """One axis of a copy; strides in elements, ``source_stride`` may be negative."""

    extent: int
    target_stride: int
    source_stride: int
    size: int
    """The number of source elements along the axis."""
    before: int = 0
    step: int = 1


@dataclass(frozen=True)
class Copy:
    """Target's elements from the source's; ``source`` and ``target`` name operands.

    ``source_start`` is the element from which the source's strides count. In a loop over parts, part ``q`` begins
    ``q source_part`` and ``q target_part`` elements further on.
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
        """Elements read and written."""
        return self.elements + math.prod(min(axis.extent, axis.size) for axis in self.axes)

    def launch(self, context: Any, problem: ConvProblem, part: int = 0) -> Launch:
        """The kernel for one part; operands are target and source."""
        rows = device_info(context.devices[0]).type == "cpu"
        text = f"#define WORD {_WORD[problem.itemsize]}\n#define START {self.source_start}L\n#define ROWS {int(rows)}\n"
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
    """(size, stride) of an operand's axes: ``n`` outermost, ``c`` channels, ``d h w``; unused ones are (1, 0)."""
    shape = getattr(problem, name + "_shape")
    letters = "nc" + problem.axes if problem.layout == "nchw" else "n" + problem.axes + "c"
    found = dict.fromkeys("dhw", (1, 0))
    return found | dict(zip(letters, zip(shape, contiguous(shape), strict=True), strict=True))
