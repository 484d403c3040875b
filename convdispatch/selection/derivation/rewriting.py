"""The rewritings: each turns a problem into another one with the same result, and names the copies that this needs.

Backward data as a forward convolution (Dumoulin and Visin, "A guide to convolution arithmetic for deep learning",
2016, chapter 4): dx is dy, spread by the stride and padded by d (k - 1) - p, convolved with the weights flipped and
their input and output channels exchanged. Backward weights as a forward convolution: images and channels are exchanged,
dy is the kernel, and stride and dilation are exchanged.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ...api.errors import InvalidProblem
from ...api.problem import ConvProblem
from ...device.programs.kernels import Launch, build, kernel_text
from ...device.runtime import device_info

MOST_GROUPS = 64
"""The most groups of a problem that is rewritten as a loop over groups; with more, launch overhead dominates."""


@dataclass(frozen=True)
class Rewritten:
    """A problem's rewriting: the problem ``inner``, and the copies before and after it.

    ``copies`` run before the inner convolution and write its operands; ``back`` run after it and read its output. Each
    copy names the outer operand as source and the inner one as target. ``through`` maps an inner operand to the outer
    operand that is passed uncopied. With ``parts`` above 1 all of this runs once for each part.
    """

    inner: ConvProblem
    words: str
    copies: tuple[Copy, ...] = ()
    back: tuple[Copy, ...] = ()
    through: Mapping[str, str] = field(default_factory=dict)
    parts: int = 1

    @property
    def operand_bytes(self) -> dict[str, int]:
        """Return the bytes of each inner operand that is allocated in the workspace, by name."""
        return {
            name: math.prod(getattr(self.inner, name + "_shape")) * self.inner.itemsize
            for name in "xwy"
            if name not in self.through
        }

    def packs(self, problem: ConvProblem) -> bool:
        """Whether constant weights of the outer problem are rotated once, when they are packed."""
        return problem.constant_weights and self.parts == 1 and any(copy.source == "w" for copy in self.copies)

    @property
    def moved(self) -> int:
        """Bytes that the copies read and write, over all parts."""
        return self.parts * self.inner.itemsize * sum(copy.moved for copy in (*self.copies, *self.back))

    @property
    def launches(self) -> int:
        """The number of launches of the copies, and of the inner convolutions beyond the first."""
        return self.parts * (len(self.copies) + len(self.back)) + self.parts - 1


def flat(problem: ConvProblem) -> Rewritten | str:
    """1-D as 2-D of height 1: the memory is the same."""
    if problem.ndim != 1:
        return f"1-D only, got {problem.ndim}-D"
    return Rewritten(problem.replace(ndim=2), "1-D as 2-D of height 1", through=dict(zip("xwy", "xwy", strict=True)))


def rotated(problem: ConvProblem) -> Rewritten | str:
    """The data gradient, which is the transposed convolution, as a forward one with rotated weights."""
    if problem.direction != "bwd_data":
        return f"bwd_data only, got {problem.direction}"
    changes: dict[str, int] = {}
    ends, spread = {}, False
    spatial: dict[str, tuple[int, int, int]] = {}
    for axis in "dhw":
        i, o, k, s, d, p = (getattr(problem, letter + axis) for letter in "ioksdp")
        padding_before, after = d * (k - 1) - p, i - ((o - 1) * s + 1) + p
        ends[axis] = padding_before, after
        spread |= s > 1 and o > 1
    copies = spread or any(min(pair) < 0 for pair in ends.values())
    for axis, (padding_before, after) in ends.items():
        # A copy that is made anyway also adds the part of the padding by which one side exceeds the other.
        common = max(0, min(padding_before, after))
        low, high = (padding_before - common, after - common) if copies else (0, 0)
        s, o = getattr(problem, "s" + axis), getattr(problem, "o" + axis)
        extent = (o - 1) * s + 1 + low + high
        if extent < 1:
            return f"padding within the gradient's reach, got p{axis}={getattr(problem, 'p' + axis)}"
        pads = (common, common) if copies else (padding_before, after)
        changes |= {f"i{axis}": extent, f"s{axis}": 1, f"p{axis}": pads[0], f"p{axis}_r": pads[1]}
        spatial[axis] = (extent, low, s)
    inner = problem.replace(direction="fwd", ic=problem.oc, oc=problem.ic, constant_weights=False, **changes)
    weights = _rotated(problem, inner)
    words = "data gradient as forward with rotated weights"
    if not copies:
        return Rewritten(inner, words, (weights,), through={"x": "y", "y": "x"})
    words += ", y spread by the stride" if spread else ", y cropped"
    into, source = axes_of(inner, "x"), axes_of(problem, "y")
    axes = [_whole_axis("n", into, source), *_ordered_axes(problem, {"c": _whole_axis("c", into, source)} | {
        axis: CopyAxis(extent, into[axis][1], source[axis][1], source[axis][0], before, step)
        for axis, (extent, before, step) in spatial.items()
    })]  # fmt: skip
    return Rewritten(inner, words, (weights, Copy("y", "x", _six_axes(axes))), through={"y": "x"})


def _rotated(problem: ConvProblem, inner: ConvProblem) -> Copy:
    """The copy that rotates the weights: it flips each kernel axis and exchanges the channels of each group."""
    into, source = axes_of(inner, "w"), axes_of(problem, "w")
    icg, ocg = problem.ic // problem.g, problem.oc // problem.g
    start, spatial = 0, {}
    for axis in "dhw":
        size, stride = source[axis]
        spatial[axis] = CopyAxis(size, into[axis][1], -stride, size)
        start += (size - 1) * stride
    axes = [
        CopyAxis(problem.g, into["n"][1] * icg, source["n"][1] * ocg, problem.g),
        CopyAxis(icg, into["n"][1], source["c"][1], icg),
        *_ordered_axes(problem, {"c": CopyAxis(ocg, into["c"][1], source["n"][1], ocg)} | spatial),
    ]
    return Copy("w", "w", _six_axes(axes), start)


def exchanged(problem: ConvProblem) -> Rewritten | str:
    """The weights' gradient as a forward convolution of x with dy, images and channels exchanged."""
    if problem.direction != "bwd_weights":
        return f"bwd_weights only, got {problem.direction}"
    if problem.g != 1:
        return f"no groups, got {problem.g}"
    changes: dict[str, int] = {}
    for axis in "dhw":
        i, o, k, s, d, p = (getattr(problem, letter + axis) for letter in "ioksdp")
        after = d * (k - 1) + (o - 1) * s + 1 - i - p
        extent = i + min(after, 0)
        changes |= {f"i{axis}": extent, f"k{axis}": o, f"s{axis}": d, f"d{axis}": s}
        changes |= {f"p{axis}": p, f"p{axis}_r": max(after, 0)}
        if extent < 1:
            return f"an output that reads the input, got o{axis}={o} and p{axis}={p}"
    inner = problem.replace(
        direction="fwd", mb=problem.ic, ic=problem.mb, oc=problem.oc, constant_weights=False, **changes
    )
    copies = (_exchange(problem, inner, "x", "x"), _exchange(problem, inner, "y", "w"))
    into, source = axes_of(problem, "w"), axes_of(inner, "y")
    axes = [
        CopyAxis(problem.oc, into["n"][1], source["c"][1], problem.oc),
        *_ordered_axes(problem, {"c": CopyAxis(problem.ic, into["c"][1], source["n"][1], problem.ic)} | {
            axis: _whole_axis(axis, into, source) for axis in "dhw"
        }),
    ]  # fmt: skip
    words = "weights' gradient as forward of x with y, images and channels exchanged"
    return Rewritten(inner, words, copies, (Copy("w", "y", _six_axes(axes)),))


def _exchange(problem: ConvProblem, inner: ConvProblem, name: str, target: str) -> Copy:
    into, source = axes_of(inner, target), axes_of(problem, name)
    axes = {axis: _whole_axis(axis, into, source) for axis in "dhw"}
    channels = CopyAxis(into["c"][0], into["c"][1], source["n"][1], source["n"][0])
    images = CopyAxis(into["n"][0], into["n"][1], source["c"][1], source["c"][0])
    return Copy(name, target, _six_axes([images, *_ordered_axes(problem, {"c": channels} | axes)]))


def padded(problem: ConvProblem) -> Rewritten | str:
    """Padding by a padded copy of x."""
    if all(getattr(problem, f"p{axis}{side}") == 0 for axis in problem.axes for side in ("", "_r")):
        return "padding only, got none"
    if problem.direction == "bwd_data":
        return "fwd or bwd_weights, got bwd_data"
    changes = {}
    for axis in problem.axes:
        before, after = getattr(problem, "p" + axis), getattr(problem, f"p{axis}_r")
        changes |= {f"i{axis}": getattr(problem, "i" + axis) + before + after, f"p{axis}": 0, f"p{axis}_r": 0}
    inner = problem.replace(**changes)
    into, source = axes_of(inner, "x"), axes_of(problem, "x")
    spatial = {
        axis: dataclasses.replace(_whole_axis(axis, into, source), before=getattr(problem, "p" + axis))
        for axis in "dhw"
    }
    axes = [_whole_axis("n", into, source), *_ordered_axes(problem, {"c": _whole_axis("c", into, source)} | spatial)]
    copy = Copy("x", "x", _six_axes(axes))
    return Rewritten(inner, "padding through a padded copy of x", (copy,), through={"w": "w", "y": "y"})


def grouped(problem: ConvProblem) -> Rewritten | str:
    """Groups as a loop over convolutions of one group each."""
    if problem.g == 1:
        return "groups only, got 1"
    if problem.g > MOST_GROUPS:
        return f"at most {MOST_GROUPS} groups, got {problem.g}"
    inner = problem.replace(g=1, ic=problem.ic // problem.g, oc=problem.oc // problem.g, constant_weights=False)
    copies = {}
    for name in "xwy":
        group_axes, outer_axes = axes_of(inner, name), axes_of(problem, name)
        is_input = name != problem.written
        into, source = (group_axes, outer_axes) if is_input else (outer_axes, group_axes)
        letters = {a: CopyAxis(group_axes[a][0], into[a][1], source[a][1], group_axes[a][0]) for a in "ncdhw"}
        axes = _six_axes([letters.pop("n"), *_ordered_axes(problem, letters)])
        # A group's weights are consecutive rows of w; a group's channels are neighbours within the channels of x and y.
        step = outer_axes["n"][1] * group_axes["n"][0] if name == "w" else outer_axes["c"][1] * group_axes["c"][0]
        copies[name] = Copy(name, name, axes, source_part=step if is_input else 0, target_part=0 if is_input else step)
    back = copies.pop(problem.written)
    return Rewritten(inner, f"{problem.g} groups in a loop", tuple(copies.values()), (back,), parts=problem.g)


def _whole_axis(letter: str, into: Mapping[str, tuple[int, int]], source: Mapping[str, tuple[int, int]]) -> CopyAxis:
    return CopyAxis(into[letter][0], into[letter][1], source[letter][1], source[letter][0])


def _ordered_axes(problem: ConvProblem, axes: Mapping[str, CopyAxis]) -> list[CopyAxis]:
    """The axes of channels and pixels in the order of memory, the innermost last."""
    return [axes[letter] for letter in ("cdhw" if problem.layout == "nchw" else "dhwc")]


def _six_axes(axes: list[CopyAxis]) -> tuple[CopyAxis, ...]:
    return (*(CopyAxis(1, 0, 0, 1) for _ in range(6 - len(axes))), *axes)


def _valid(rewrite: Callable[[ConvProblem], Rewritten | str]) -> Callable[[ConvProblem], Rewritten | str]:
    def tried(problem: ConvProblem) -> Rewritten | str:
        try:
            return rewrite(problem)
        except InvalidProblem as error:  # A rewriting of a problem with an extreme geometry may be no valid problem.
            return str(error)

    return tried


REWRITINGS: dict[str, Callable[[ConvProblem], Rewritten | str]] = {
    rewrite.__name__: _valid(rewrite) for rewrite in (flat, rotated, padded, grouped, exchanged)
}
"""The rewritings by name, in the order in which they are tried; each returns a Rewritten, or the reason why it does not
apply."""


_COPY_TYPES = {2: "ushort", 4: "uint", 8: "ulong"}
"""The OpenCL type by which elements of a size in bytes are copied; the device need not support their dtype."""


@dataclass(frozen=True)
class CopyAxis:
    """One axis of a copy; strides are in elements, and ``source_stride`` may be negative.

    Element ``t`` of the target is a copy of element ``(t - before) / step`` of the source if that is an integer inside
    the source, and zero otherwise.
    """

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
