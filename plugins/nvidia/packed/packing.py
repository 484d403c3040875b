"""The launch that packs a plan's operands: what its text says of each piece, and the sizes that come as arguments.

The text holds what decides its code: layout, format, taps, and whether chunks are whole. Sizes are arguments, divisors
as ``divide.cl`` has them, so that layers of a net share a program. First layers (folded), stacked phases and scaled
formats have more numbers, which are literals.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from convdispatch.api import OPERANDS, Launch, build, define, kernel_text, storage_macros

from .. import SHARED
from ..divisors import LARGEST, divided_by
from ..instructions import Instructions
from .layout import Layout
from .source import Source
from .tiling import Tiling

Sizes = Mapping[str, Any]
"""By name: an int32, an int64, or a divisor's three arguments."""
_ITEMS = 256


@dataclass(frozen=True)
class Piece:
    """A tensor of a launch, as the text needs it."""

    name: str
    sizes: tuple[tuple[str, str], ...]
    """Names and kinds of its arguments: int, long, or divisor. Before them come its first work group, the one after its
    last, and its place in the workspace."""
    fold: bool
    """Whether taps along w are channels."""

    @property
    def declared(self) -> str:
        """OpenCL: its sizes as parameters."""
        return ", ".join(
            f"DIVISOR({self.name}_{size})" if kind == "divisor" else f"const {kind} {self.name}_{size}"
            for size, kind in self.sizes
        )

    @property
    def handed(self) -> str:
        """OpenCL: its sizes as a function that declares them is called."""
        parts = {"divisor": ("", "_by", "_shift")}
        return ", ".join(f"{self.name}_{size}{part}" for size, kind in self.sizes for part in parts.get(kind, ("",)))


@dataclass(frozen=True)
class SourcePiece(Piece):
    """A source."""

    turn: int
    """Chunks that neighbours write side by side; 0 channels last."""
    ragged: bool
    """Whether the last chunk has fewer than eight channels."""
    ragged_block: bool
    """Whether the last block has fewer than ``turn`` chunks."""


@dataclass(frozen=True)
class WeightsPiece(Piece):
    """Weights."""

    by_row: bool
    """Whether neighbours take neighbouring rows, not chunks of a row."""
    taps: tuple[tuple[int, tuple[int, int, int], tuple[int, int, int]], ...]
    """Number, taps and first tap of each phase that has any."""
    tap_step: tuple[int, int, int]
    kernel: tuple[int, int]
    window: bool


def pack_launches(
    context: Any, tiling: Tiling, where: Layout, tensors: Sequence[tuple[str, Source | None]], emulate: bool
) -> list[Launch]:
    """What packs ``tensors``, names with their sources, or None for weights; scales first where the format has any."""
    pieces: list[Piece] = []
    arguments: list[Any] = []
    given: list[Any] = []
    begin = 0
    for name, source in tensors:
        items, sizes, text = _weights(tiling) if source is None else _source(tiling, source)
        end = begin + -(-items // _ITEMS)
        fold = tiling.geometry.fold if source is None else source.fold
        pieces.append((WeightsPiece if source is None else SourcePiece)(name, _kinds(sizes), fold, **text))
        arguments += [np.int32(begin), np.int32(end), np.int64(where.at[name] // 2)]
        for each in sizes.values():
            arguments += each if isinstance(each, list) else [each]
        given += [name, "workspace"]
        begin = end
    special = tiling.geometry.fold or tiling.geometry.stacked or where.scales
    text = storage_macros(tiling.problem.dtype) + define(WIDE=int(begin * _ITEMS > LARGEST))
    text += kernel_text(SHARED, "divide.cl") + Instructions(tiling.format.type).text(emulate)
    text += kernel_text(SHARED, "narrow.cl.mako", tiling=tiling)
    text += kernel_text(SHARED, "shifted.cl") if where.scales else ""
    text += kernel_text(__package__, "pack.cl.mako", format=tiling.format, bk=tiling.tile.bk, pieces=pieces,
                        scales=where.scales, tiling=tiling if special else None)  # fmt: skip
    launches = []
    if where.scales:
        names = [name for name, _ in tensors]
        launches += where.scales.launches(context, names)
        given.append("w" if where.constant and "w" not in names else "workspace")
    given += arguments
    launches.append(Launch(build(context, text), "pack", (begin * _ITEMS,), (_ITEMS,), given, names=OPERANDS))
    return launches


def _kinds(sizes: Sizes) -> tuple[tuple[str, str], ...]:
    names: dict[Any, str] = {np.int32: "int", np.int64: "long", list: "divisor"}
    return tuple((name, names[type(value)]) for name, value in sizes.items())


def _source(tiling: Tiling, source: Source) -> tuple[int, Sizes, Mapping[str, Any]]:
    """Work items, arguments, and what the text says."""
    problem, places = tiling.problem, source.images * source.pixels
    channels = problem.ic // problem.g if source.fold else source.c
    own = math.prod(getattr(problem, ("i" if source.name == "x" else "o") + axis) for axis in "dhw")
    sizes: dict[str, Any] = {"groups": divided_by(source.groups), "places": np.int32(places)}
    sizes |= {"pixels": divided_by(source.pixels), "plane": np.int32(source.plane), "c": np.int32(source.c)}
    sizes["image"] = np.int64(source.groups * channels * own)
    if problem.layout == "nhwc":
        items, turn = places * source.groups * source.c8, 0
        sizes |= {"c8": divided_by(source.c8), "channels": np.int32(source.groups * channels)}
    else:
        turn, blocks = source.turn, -(-source.c8 // source.turn)
        items = -(-places * turn // _ITEMS) * _ITEMS * source.groups * blocks
        sizes |= {"blocks": divided_by(blocks), "c8": np.int32(source.c8), "own": np.int32(own)}
    ragged = {"ragged": source.c % 8 > 0, "ragged_block": turn > 0 and source.c8 % turn > 0}
    return items, sizes, {"turn": turn, **ragged}


def _weights(tiling: Tiling) -> tuple[int, Sizes, Mapping[str, Any]]:
    geometry, tile, problem = tiling.geometry, tiling.tile, tiling.problem
    rows, parts = tiling.n_tiles * tile.bn, tiling.tap_parts
    oc, ic, tap, group = tiling.weight_strides
    row, k = (oc, ic) if problem.direction == "fwd" else (ic, oc)
    sizes: dict[str, Any] = {"rows": divided_by(rows), "c8": divided_by(tiling.weight_chunks)}
    sizes |= {"groups": divided_by(geometry.groups), "bn": divided_by(tile.bn), "parts": np.int32(parts)}
    sizes |= {"tiles": np.int32(tiling.n_tiles), "slices": np.int32(sum(tiling.slices)), "m": np.int32(geometry.m)}
    sizes |= {"c": np.int32(geometry.c), "row": np.int64(row), "k": np.int64(k), "tap": np.int64(tap)}
    sizes["group"] = np.int64(group)
    taps = tuple((number, p.taps, p.tap0) for number, p in enumerate(geometry.phases) if p.volume)
    for number, *_ in taps if len(geometry.phases) > 1 else ():
        sizes |= {f"before{number}": np.int32(tiling.before[number]), f"of{number}": np.int32(tiling.slices[number])}
    items = geometry.groups * rows * tiling.weight_chunks * parts
    by_row = problem.direction == "bwd_data" and not geometry.stacked
    return items, sizes, {"by_row": by_row, "taps": taps, "tap_step": geometry.tap_step,
                          "kernel": (problem.kh, problem.kw), "window": tile.window}  # fmt: skip
