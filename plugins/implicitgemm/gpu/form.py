"""What is compiled into the tiled product's programs, and the numbers of a geometry, which are literals."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from .product import Loader, Product, Tile


@dataclass(frozen=True)
class Form:
    """A tile, and the properties of a geometry that decide which code is generated. Templates see nothing else, so all
    geometries of a form have the same text."""

    tile: Tile
    """The tile, its sum unsplit: the number of parts is a number of the geometry."""
    data: bool
    accsize: int
    run: tuple[int, int, int] | None
    """Taps of a slice along each axis if slices contain taps."""
    flat: bool
    partial: bool
    phased: bool
    """Whether there are several phases."""
    planar: bool
    """Whether output pixels have one plane only."""
    pointwise: bool
    out_plain: bool
    out_vector: str | None
    guarded: tuple[bool, ...]
    walked: tuple[bool, ...]
    c_ragged: bool
    m_ragged: bool
    n_ragged: bool
    q_ragged: bool
    n_quads: bool
    """Whether rows of partial sums of the weights' gradient are whole vectors."""
    source_nhwc: bool
    a: Loader | None
    b: Loader
    index: str
    norm: bool
    """Whether the source is normalised as it is loaded."""
    sums: bool
    """Whether work groups leave the sums of their part of the channels."""
    slope: bool
    """Whether these are the sums of a norm's gradients."""
    shared: int
    """Elements of local memory, if sums follow in the slices' place."""

    @classmethod
    def of(cls, p: Product) -> Form:
        """The form of a product."""
        geo, t, data = p.geometry, p.tile, p.data
        columns, width = (p.n, t.bn) if p.flat else (geo.c, t.bn)
        return cls(
            dataclasses.replace(t, split=1), data, p.accsize, p.run if p.taps_in_slice else None, p.flat,
            bool(p.partial), len(geo.phases) > 1, geo.phases[0].count[0] == 1, geo.pointwise,
            p.out_plain, p.out_vector if data else None, p.guarded, p.walked, p.c_ragged,
            not data and geo.m % t.bm > 0, not data and columns % width > 0, not data and p.n_places % t.bk > 0,
            not data and columns % 4 == 0, geo.source.nhwc, None if data else p.a, p.b, p.index,
            p.norm, p.sums, p.problem.masked, p.local_size // p.accsize if p.sums else 0,
        )  # fmt: skip


def numbers(p: Product, parts_at: int) -> dict[str, Any]:
    """The numbers that kernels name, of NumPy's integer types; ``parts_at``: where partial sums begin, in elements, and
    without them the sums of channels."""
    geo, t, problem = p.geometry, p.tile, p.problem
    phase, source, target = geo.phases[0], geo.source, geo.target
    offset, out_offset = (np.int32 if index == "int" else np.int64 for index in (p.index, p.out_index))
    stride, dilation, pad = (tuple(getattr(problem, letter + axis) for axis in "dhw") for letter in "sdp")
    ints: dict[str, Any] = {
        "M_TILES": p.m_tiles, "N_TILES": p.n_tiles, "SPLIT": t.split, "PHASES": len(geo.phases), "GROUPS": geo.groups,
        "IMAGES": geo.images, "SLICES": p.slices[0], "N_END": p.n, "PLACES_ALL": p.n_places, "PLACES": phase.places,
        "PLANE": phase.count[1] * phase.count[2], "COUNT_X": phase.count[2], "CHUNKS_N": -(-geo.c // t.bn),
        "KERNEL": geo.volume, "SOURCE_CHANNELS": geo.c, "TARGET_CHANNELS": geo.m, "CHANNELS_PADDED": p.c_padded,
        "CHUNKS": -(-geo.c // t.bk), "RUNS": p.runs if p.taps_in_slice else 1,
    }  # fmt: skip
    triples = {
        "STEP": geo.step, "SPREAD": geo.spread, "OUT_STEP": geo.out_step, "TAP_STEP": geo.tap_step, "TAPS": phase.taps,
        "KERNEL": geo.kernel, "ORIGIN": phase.origin, "FIRST": phase.first, "TAP0": phase.tap0, "SIZE": source.size,
        "TARGET_SIZE": target.size,
    }  # fmt: skip
    if len(geo.phases) > 1:
        counts = [min(pixels, step) for pixels, step in zip(target.size, stride, strict=True)]
        shared = [math.gcd(s, d) for s, d in zip(stride, dilation, strict=True)]
        inverse = [pow(d // h, -1, s // h) for s, d, h in zip(stride, dilation, shared, strict=True)]
        taps = [sum({f.first[axis]: f.taps[axis] for f in geo.phases}.values()) for axis in range(3)]
        triples |= {"PHASES": counts, "SHARED": shared, "INVERSE": inverse, "PHASE_TAPS": taps, "STRIDE": stride,
                    "DILATION": dilation, "PAD": pad}  # fmt: skip
    ints |= {f"{name}_{axis}": triple[i] for name, triple in triples.items() for i, axis in enumerate("ZYX")}
    result: dict[str, Any] = {name: np.int32(value) for name, value in ints.items()}
    for name, layout in (("SOURCE", source), ("TARGET", target)):
        strides = {"IMAGE": layout.image, "CHANNEL": layout.channel, **dict(zip("ZYX", layout.axes, strict=True))}
        kind = out_offset if p.data and name == "TARGET" else offset
        result |= {f"{name}_{key}": kind(value) for key, value in strides.items()}
    m, c, tap = p.weight_strides
    longs = {"GROUP_WEIGHTS": geo.m * geo.c * geo.volume, "WEIGHT_M": m, "WEIGHT_C": c, "WEIGHT_TAP": tap,
             "SLICES_ALL": p.slices_all, "PACKED_SLICE": p.m_tiles * t.bk * t.bm, "PARTS_AT": parts_at}  # fmt: skip
    result |= {name: np.int64(value) for name, value in longs.items()}
    return result | {"OUT_SIZE": out_offset(p.out_size)}
