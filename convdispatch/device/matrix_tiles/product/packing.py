"""What is compiled into a program that packs tensors, and a geometry's numbers, which are the kernel's arguments."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ....api.problem import ConvProblem
from ..geometry import Triple, along
from ..instruction import Format
from .form import AXES
from .tiling import ProductTiling, Source


@dataclass(frozen=True)
class SourceForm:
    """A packed source's properties that decide code."""

    fold: bool
    grouped: bool
    turn: int
    """Chunks that neighbouring work items write side by side when NCHW is packed; 0 in NHWC."""
    ragged: bool
    """Whether the last chunk has fewer than eight channels."""
    of_norm: bool


@dataclass(frozen=True)
class WeightsForm:
    """The packed weights' properties that decide code."""

    window: bool
    fold: bool
    stacked: Triple | None
    ragged: bool
    """Whether there are chunks with fewer than eight channels."""
    whole: bool
    """Whether each K-slice belongs to one tap."""
    phases: tuple[tuple[Triple, Triple], ...]
    """Of several phases: their taps and the first one."""
    tap_step: Triple
    """Of several phases; otherwise 1, like the kernel."""
    kernel: Triple


@dataclass(frozen=True)
class PackForm:
    """The pieces of a launch that packs, and what decides code; templates see nothing else."""

    format: Format
    bk: int
    data: bool
    forward: bool
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
        """Whether the geometry's numbers are literals: of folded sources, whose elements are each divided by them, and
        of channels that are no whole chunks. First layers took 1.07 to 1.11 times as long with arguments on an H200."""
        return any(source is not None and (source.fold or source.ragged) for source in self.pieces)

    @classmethod
    def of(cls, tiling: ProductTiling, tensors: Sequence[tuple[str, Source | None]], scales: Any) -> PackForm:
        """The form of the tensors of a tiling; a source of None is the weights."""
        p = tiling.problem
        weights = _weights_form(tiling) if any(source is None for _, source in tensors) else None
        pieces = tuple(source and _source_form(tiling, source) for _, source in tensors)
        exponents = tuple(scales.exponent(name, number) for number, (name, _) in enumerate(tensors)) if scales else ()
        return cls(tiling.format, tiling.tile.bk, tiling.data, p.direction == "fwd", p.layout == "nhwc", pieces,
                   weights, _index(p), exponents)  # fmt: skip


def _index(problem: ConvProblem) -> str:
    """OpenCL type of offsets in the problem's tensors."""
    sizes = map(math.prod, (problem.x_shape, problem.w_shape, problem.y_shape))
    return "int" if max(sizes) < 2**31 else "long"


def _source_form(tiling: ProductTiling, source: Source) -> SourceForm:
    of_norm = tiling.problem.normalised and source.name == "x"
    turn = 0 if tiling.problem.layout == "nhwc" else source.turn
    return SourceForm(source.fold, source.groups > 1, turn, source.c % 8 > 0, of_norm)


def _weights_form(tiling: ProductTiling) -> WeightsForm:
    geo, t, ones = tiling.geometry, tiling.tile, (1, 1, 1)
    many = len(geo.phases) > 1
    phases = tuple((phase.taps, phase.tap0) for phase in geo.phases) if many else ()
    ragged, whole = tiling.weight_chunks * 8 > geo.c, geo.c8 % (t.bk // 8) == 0
    return WeightsForm(t.window, geo.fold, geo.stacked, ragged, whole, phases, geo.tap_step if many else ones,
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
    ints = {
        "CHUNKS": tiling.weight_chunks, "LINES": tiling.n_tiles * tiling.tile.bn, "GROUPS": geo.groups,
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
