"""What is compiled into the programs that pack tensors and multiply them, and the numbers of a geometry, which are the
kernels' arguments.

Templates see a ``PackForm`` or a ``ProductForm`` and nothing else of a problem, so that a text is rendered once for all
geometries of a form.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ....api.problem import ConvProblem
from ..geometry import Triple, along
from ..instruction import Format
from .tiling import ProductTile, ProductTiling, Source

LETTERS, AXES = "zyx", "DHW"
"""The ends of the names of variables and of numbers along (d, h, w)."""


_LOCAL = ("under_way", "drained", "row_bytes", "a_bytes", "b_bytes", "stage_bytes", "local_bytes", "window_bytes",
          "staging", "staged")  # fmt: skip
"""Fields of a form that are the tiling's, which a tile and the rows of its window decide."""


@dataclass(frozen=True)
class ProductForm:
    """A tile, and the properties of a geometry that decide which code is generated."""

    tile: ProductTile
    """The tile; its sum is in one part, or for all other numbers of parts in two."""
    format: Format
    narrow_pair: str
    unshift: int
    """The exponents that are subtracted from the sums of scaled formats."""
    data: bool
    nhwc: bool
    axes: tuple[int, ...]
    """The axes of the problem, of (d, h, w)."""
    tapped: tuple[int, ...]
    """Axes along which some phase has several taps."""
    guarded: tuple[int, ...]
    """Axes along which a phase reads outside the source."""
    near: bool
    """Whether taps are one source pixel apart, forward or back, along each guarded axis."""
    flat: bool
    """Whether a place reads the source pixel of its own number and no other one."""
    flat_target: bool
    """Whether places are the target's pixels in their order."""
    whole: bool
    """Whether there are taps, and each K-slice of forward and data gradient belongs to one."""
    weights: str
    """``packed``, or read in place: by ``rows``, or ``transposed``."""
    phases: tuple[tuple[int, ...], ...]
    """Of several phases: first place, taps and origin along d, h and w, and the volume."""
    out_step: Triple
    """Of several phases: target pixels from place to place along each axis."""
    stacked: Triple | None
    under_way: int
    drained: bool
    row_bytes: int
    a_bytes: int
    b_bytes: int
    stage_bytes: int
    local_bytes: int
    window_rows: int
    window_bytes: int
    staging: tuple[int, int]
    staged: bool
    span: int
    """Taps of a window over which the copies of the next one are spread; 0 without a window."""
    ragged: bool
    """Whether the last tile has columns beyond the last channel; False where sums of channels do not leave."""
    residual: bool
    masked: bool
    summed: bool
    partial: bool
    index: str
    out_index: str
    row_mark: str
    """OpenCL expression of ``{m}`` and ``{image}``: the index of a row's exponent among A's."""
    column_mark: str

    @classmethod
    def of(cls, tiling: ProductTiling) -> ProductForm:
        """The form of a tiling."""
        t, geo, p = tiling.tile, tiling.geometry, tiling.problem
        data = tiling.data
        axes, phases, (first, *_) = tuple(range(3 - p.ndim, 3)), geo.phases, geo.phases
        many, ones = len(phases) > 1, (1, 1, 1)
        # Kernels of one row or one column share the programs of others: an axis of one tap counts like any other.
        tapped = axes if max(phase.volume for phase in phases) > 1 else ()
        simple = not many and geo.step == ones and first.origin == (0, 0, 0) and first.count == geo.source
        flat = simple and first.volume == 1 and not any(tiling.guarded)
        flat_target = data and not many and geo.out_step == ones and not geo.stacked and not t.window
        weights = "transposed" if tiling.transposed_weights else "rows" if tiling.direct_weights else "packed"
        return cls(
            tile=dataclasses.replace(t, split=min(t.split, 2)), format=tiling.format, narrow_pair=tiling.narrow_pair,
            unshift=tiling.unshift, data=data, nhwc=data and p.layout == "nhwc",
            axes=() if flat and (flat_target or not data) else axes, tapped=tapped,
            guarded=tuple(axis for axis in axes if tiling.guarded[axis]),
            near=data and all(abs(geo.spread[axis]) == 1 for axis in axes), flat=flat, flat_target=flat_target,
            whole=data and bool(tapped) and geo.c8 % (t.bk // 8) == 0, weights=weights,
            phases=tuple((*phase.first, *phase.taps, *phase.origin, phase.volume) for phase in phases) if many else (),
            out_step=geo.out_step if many else ones, stacked=geo.stacked, window_rows=tiling.window_rows,
            **{name: getattr(tiling, name) for name in _LOCAL},
            span=first.volume - tiling.under_way if t.window else 0,
            ragged=tiling.summed and geo.m % t.bn > 0, residual=p.residual, masked=p.masked, summed=tiling.summed,
            partial=bool(tiling.partial), index=tiling.index, out_index=tiling.out_index,
            row_mark=tiling.row_mark, column_mark=tiling.column_mark,
        )  # fmt: skip

    @property
    def returning(self) -> bool:
        """Whether results are needed as they are stored."""
        return (self.summed or self.masked) and not self.partial

    @property
    def specialised(self) -> bool:
        """Whether the geometry's numbers are literals, where each item divides by them in the main loop.

        As arguments they took, on an H200, 1.03 to 1.55 times as long of windows, 1.2 to 1.6 of stacked phases, and of
        others 1.02 in the mean.
        """
        parts_of_taps = self.data and bool(self.tapped) and not self.whole
        return self.tile.window or bool(self.stacked) or (parts_of_taps and not self.counted)

    @property
    def counted(self) -> bool:
        """Whether taps are counted from slice to slice: one for each slice, or for each item's chunk of channels."""
        divided = not self.whole and (self.weights == "transposed" or self.tile.norm_in_place)
        return self.data and bool(self.tapped) and not self.tile.window and not divided

    def number(self, field: str, axis: int) -> str:
        """OpenCL expression: the phase's ``first``, ``count``, ``taps`` or ``origin`` along an axis."""
        return f"{field}_{LETTERS[axis]}" if self.phases else f"{field.upper()}_{AXES[axis]}"

    def over(self, value: str, field: str, axis: int) -> str:
        """OpenCL expression: a variable divided by a number of the phase, 0 only where nothing is copied."""
        if self.phases:
            return f"{value} / max(1, {self.number(field, axis)})"
        return f"DIVIDED({value}, {self.number(field, axis)})"

    def split(self, value: str, field: str, names: Sequence[str], first: str) -> str:
        """OpenCL statements that divide a variable into coordinates, the last axis fastest: ``names`` are those of the
        axes (d, h, w), empty without one; ``first`` is the variable of what remains, or empty if nothing does."""
        axes, text, rest = [axis for axis in range(3) if names[axis]], "", value
        for axis in reversed(axes):
            if axis == axes[0] and not first:
                return f"{text}const int {names[axis]} = {rest}; "
            above = first if axis == axes[0] else f"above_{names[axis]}"
            size = f"{field}_{AXES[axis]}"
            quotient = f"DIVIDED({rest}, {size})"
            if self.phases and field in ("COUNT", "TAPS"):
                size = self.number(field.lower(), axis)
                quotient = self.over(rest, field.lower(), axis)
            text += f"const int {above} = {quotient}, {names[axis]} = {rest} - {above} * {size}; "
            rest = above
        return text or (f"const int {first} = {value}; " if first else "")

    def along(self, prefix: str, of_problem: bool = True) -> list[str]:
        """Names of variables along (d, h, w), empty for an axis that the problem lacks, or that has no taps."""
        axes = self.axes if of_problem else self.tapped
        return [prefix + LETTERS[axis] if axis in axes else "" for axis in range(3)]

    def summand(self, names: Sequence[str], stride: str) -> str:
        """OpenCL expression: the sum of the variables times the numbers ``stride`` along each axis."""
        terms = [f"({self.index}){name} * {stride}_{AXES[axis]}" for axis, name in enumerate(names) if name]
        return " + ".join(terms) or "0"


def numbers(tiling: ProductTiling, layout: Any) -> dict[str, Any]:
    """The numbers that ``product.cl.mako`` names, of NumPy's integer types."""
    t, geo, p = tiling.tile, tiling.geometry, tiling.problem
    phase, data, source = geo.phases[0], tiling.data, tiling.source
    index, out_index = (np.int64 if kind == "long" else np.int32 for kind in (tiling.index, tiling.out_index))
    rows = geo.images * phase.places if data else geo.m
    ints = {
        "N_TILES": tiling.n_tiles, "M_TILES": tiling.m_tiles, "SPLIT": t.split, "GROUPS": geo.groups,
        "SLICES": tiling.slices[0], "BLOCKS": -(-geo.c8 * 8 // t.bk), "TAPS": phase.volume, "C8": geo.c8,
        "DEPTH": tiling.depth(phase), "IMAGES": geo.images, "M_END": rows, "PLACES": tiling.n_places,
        "PIXELS": phase.places, "SOURCE": geo.c, "TARGET": geo.m, "COLUMNS": tiling.n, "CHUNKED": geo.c8 * 8,
        "CHANNELS": geo.m // (np.prod(geo.stacked) if geo.stacked else 1), "FOLDED": p.ic // p.g,
        "SLICE_STEP": tiling.n_tiles * tiling.weight_slice, "GROUP_SLICES": sum(tiling.slices),
        "WEIGHTS_ROW": tiling.depth(phase) * 8, "CHANNEL_STEP": tiling.weight_strides[0],
        "LOW_H": tiling.tap_bits[2], "LOW_D": tiling.tap_bits[1] + tiling.tap_bits[2],
    }  # fmt: skip
    indices = {"SOURCE_IMAGE": source.image, "SOURCE_GROUP": source.group, 
               "SOURCE_PLANE": source.plane}  # fmt: skip
    outs = {"PART_ELEMENTS": tiling.partial_elements}
    along = {"COUNT": phase.count, "ORIGIN": phase.origin, "TAPS": phase.taps, "STEP": geo.step, "SPREAD": geo.spread,
             "SIZE": geo.source, "KERNEL": geo.kernel, "OUT_STEP": geo.out_step, "TARGET": geo.target}  # fmt: skip
    if t.window:
        win = tiling.window
        ints |= {
            "M_END": win.places,
            "BLOCKS": tiling.slices[0] // phase.volume,
            "FIRST_SHIFT": win.shifts[0],
            "WINDOW_IMAGE": win.image,
        }
        ints |= {f"SHIFT_{AXES[axis]}": geo.spread[axis] * step
                 for axis, step in enumerate((win.size[1] * win.size[2], win.size[2], 1))}  # fmt: skip
        along |= {"NEAR": win.near, "WINDOW": win.size}
    if data:
        dst = tiling.target
        outs |= {"OUT_IMAGE": dst.image, "OUT_CHANNEL": dst.channel, "OUT_GROUP": dst.channel * int(ints["CHANNELS"])}
        outs |= {f"OUT_{AXES[axis]}": dst.axes[axis] for axis in range(3)}
        ints |= {f"KERNEL_STEP_{AXES[axis]}": geo.tap_step[axis] * tiling.kernel_axes[axis] for axis in range(3)}
        ints["KERNEL_AT"] = sum(tap * step for tap, step in zip(phase.tap0, tiling.kernel_axes, strict=True))
        groups_weights = geo.c * tiling.weight_strides[0] if tiling.transposed_weights else geo.m * ints["WEIGHTS_ROW"]
    else:
        dy, groups_weights = tiling.places, 0
        indices |= {"PLACES_GROUP": dy.group, "PLACES_PIXEL": dy.pixel, "PLACES_PLANE": dy.plane}
        ints["PLACES_CHANNELS"] = dy.c8 * 8
    for axis in range(3):
        ints |= {f"{name}_{AXES[axis]}": values[axis] for name, values in along.items()}
        indices |= {
            f"SOURCE_{AXES[axis]}": source.axes[axis],
            f"TAP_{AXES[axis]}": geo.spread[axis] * source.axes[axis],
        }
    a, b = (source.name, "w") if data else ("y", "x")
    longs = {"A_AT": layout.at.get(a, 0) // 2, "B_AT": layout.at.get(b, 0) // 2, "WEIGHTS_GROUP": groups_weights,
             "PARTS_AT": layout.partial // 4, "SUMS_AT": getattr(layout, "sums", 0) // 4}  # fmt: skip
    if layout.scales:
        longs |= {"MARKS_A_AT": layout.marks_at("A"), "MARKS_B_AT": layout.marks_at("B")}
    kinds = ((np.int32, ints), (index, indices), (out_index, outs), (np.int64, longs))
    return {name: kind(value) for kind, values in kinds for name, value in values.items()}


@dataclass(frozen=True)
class SourceForm:
    """A packed source's properties that decide code."""

    fold: bool
    turn: int
    """Chunks that neighbouring work items write side by side when NCHW is packed; 0 in NHWC."""
    ragged: bool
    """Whether the last chunk of any of a launch's sources has fewer than eight channels."""
    of_norm: bool


@dataclass(frozen=True)
class WeightsForm:
    """The packed weights' properties that decide code."""

    window: bool
    fold: bool
    stacked: Triple | None
    phases: tuple[tuple[Triple, Triple], ...]
    """Of several phases: their taps and the first one."""
    tap_step: Triple
    """Of several phases; otherwise 1, like the kernel."""
    kernel: Triple


@dataclass(frozen=True)
class PackForm:
    """The pieces of a launch that packs, and what decides code; templates see nothing else."""

    format: Format
    data: bool
    nhwc: bool
    pieces: tuple[SourceForm | None, ...]
    """None is the weights."""
    weights: WeightsForm | None
    index: str
    """OpenCL type of offsets in the tensors that are packed."""
    exponents: tuple[str, ...]
    """Of each piece, the OpenCL expression of its elements' exponents; empty if nothing is scaled."""

    @property
    def specialised(self) -> bool:
        """Whether the geometry's numbers are literals: of folded sources, whose elements are each divided by them.
        First layers took 1.07 to 1.11 times as long with arguments on an H200."""
        return any(source is not None and source.fold for source in self.pieces)

    @classmethod
    def of(cls, tiling: ProductTiling, tensors: Sequence[tuple[str, Source | None]], scales: Any) -> PackForm:
        """The form of the tensors of a tiling; a source of None is the weights."""
        p = tiling.problem
        weights = _weights_form(tiling) if any(source is None for _, source in tensors) else None
        ragged = any(source is not None and source.c % 8 > 0 for _, source in tensors)
        pieces = tuple(source and _source_form(tiling, source, ragged) for _, source in tensors)
        exponents = tuple(scales.exponent(name, number) for number, (name, _) in enumerate(tensors)) if scales else ()
        return cls(tiling.format, tiling.data, p.layout == "nhwc", pieces, weights, _index(p), exponents)


def _index(problem: ConvProblem) -> str:
    """OpenCL type of offsets in the problem's tensors."""
    sizes = map(math.prod, (problem.x_shape, problem.w_shape, problem.y_shape))
    return "int" if max(sizes) < 2**31 else "long"


def _source_form(tiling: ProductTiling, source: Source, ragged: bool) -> SourceForm:
    of_norm = tiling.problem.normalised and source.name == "x"
    turn = 0 if tiling.problem.layout == "nhwc" else source.turn
    return SourceForm(source.fold, turn, ragged, of_norm)


def _weights_form(tiling: ProductTiling) -> WeightsForm:
    geo, t, ones = tiling.geometry, tiling.tile, (1, 1, 1)
    many = len(geo.phases) > 1
    phases = tuple((phase.taps, phase.tap0) for phase in geo.phases) if many else ()
    return WeightsForm(t.window, geo.fold, geo.stacked, phases, geo.tap_step if many else ones,
                       geo.kernel if many else ones)  # fmt: skip


def work_groups(tiling: ProductTiling, source: Source | None) -> int:
    """Work groups of 256 items that pack a source, or for None the weights."""
    if source is None:
        rows = tiling.n_tiles * tiling.tile.bn
        return -(-tiling.geometry.groups * rows * tiling.weight_chunks * tiling.tap_parts // 256)
    pixels = source.images * source.pixels
    if tiling.problem.layout == "nhwc":
        return -(-pixels * source.groups * source.c8 // 256)
    return -(-pixels * source.turn // 256) * source.groups * -(-source.c8 // source.turn)


def pack_numbers(
    tiling: ProductTiling, tensors: Sequence[tuple[str, Source | None]], at: Mapping[str, int]
) -> dict[str, Any]:
    """The numbers that ``pack.cl.mako`` names; ``at`` are the byte offsets of packed tensors."""
    result: dict[str, Any] = {}
    begin = 0
    index = np.int32 if _index(tiling.problem) == "int" else np.int64
    for number, (name, source) in enumerate(tensors):
        groups = work_groups(tiling, source)
        ints, offsets = _weights_numbers(tiling) if source is None else _source_numbers(tiling, source)
        ints |= {"BEGIN": begin, "WORK_GROUPS": groups}
        result |= {f"{key}{number}": np.int32(value) for key, value in ints.items()}
        result |= {f"{key}{number}": index(value) for key, value in offsets.items()}
        result[f"AT{number}"] = np.int64(at[name] // 2)
        begin += groups
    return result


def _source_numbers(tiling: ProductTiling, source: Source) -> tuple[dict[str, int], dict[str, int]]:
    p = tiling.problem
    own = along(p, "i" if source.name == "x" else "o")
    in_group = p.ic // p.g if source.fold else source.c
    channels, pixels, nhwc = source.groups * in_group, math.prod(own), p.layout == "nhwc"
    ints = {
        "PLACES": source.images * source.pixels, "PIXELS": source.pixels, "CHUNKS": source.c8, "SOURCE": source.c,
        "BLOCKS": -(-source.c8 // source.turn), "GROUPS": source.groups, "WIDTH": source.size[2],
        "OWN_WIDTH": own[2], "FOLDED": p.ic // p.g, "STRIDE": p.sw, "PAD": p.pw, "DILATION": p.dw,
        "TO_PIXEL": source.pixel, "TO_PLANE": source.plane,
    }  # fmt: skip
    pixel, channel = (channels, 1) if nhwc else (1, pixels)
    return ints, {"IMAGE": channels * pixels, "GROUP_STEP": in_group * channel, "CHANNEL_STEP": channel,
                  "PIXEL_STEP": pixel}  # fmt: skip


def _weights_numbers(tiling: ProductTiling) -> tuple[dict[str, int], dict[str, int]]:
    p, geo, phase = tiling.problem, tiling.geometry, tiling.geometry.phases[0]
    oc, ic, tap, group = tiling.weight_strides
    forward, bk = p.direction == "fwd", tiling.tile.bk
    # Neighbouring work items pack neighbouring chunks of a row or, where these are contiguous, neighbouring rows.
    by_row = not forward and not geo.stacked
    lines = tiling.n_tiles * tiling.tile.bn
    ints = {
        "BY_ROW": int(by_row), "INNER": lines if by_row else tiling.weight_chunks,
        "OUTER": tiling.weight_chunks if by_row else lines, "ROW_STEP": oc if forward else ic,
        "SUMMED_STEP": ic if forward else oc, "BK": bk, "SLICE_CHUNKS": bk // 8, "HALF_ROWS": int(bk == 32),
        "CHUNKS": tiling.weight_chunks, "GROUPS": geo.groups,
        "TAP_PARTS": tiling.tap_parts, "TAPS": phase.volume, "SLICE_STEP": tiling.n_tiles * tiling.weight_slice,
        "GROUP_SLICES": sum(tiling.slices), "TARGET": geo.m, "SOURCE": geo.c, "FOLDED": p.ic // p.g,
        "W_OC": oc, "W_IC": ic, "W_TAP": tap,
        "BN": tiling.tile.bn, "TILE": tiling.weight_slice,
    }  # fmt: skip
    letters = {"PAD": "p", "STRIDE": "s", "DILATION": "d", "KERNEL": "k"}
    numbers = {name: along(p, letter) for name, letter in letters.items()}
    for name, values in (numbers | {"TAPS": phase.taps, "ORIGIN": phase.origin}).items():
        ints |= {f"{name}_{AXES[axis]}": values[axis] for axis in range(3)}
    return ints, {"W_GROUP": group}
