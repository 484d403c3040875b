"""The solver ``implicitgemm.tiled``: products of tiles in local memory, for every geometry."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from convdispatch.api import (
    MOST_PHASES,
    ConvProblem,
    DeviceInfo,
    Launch,
    Solver,
    StepPlan,
    define,
    epilogue_macros,
    kernel_text,
    merging,
    norm_macros,
    numbers_as_arguments,
    numbers_as_literals,
    phase_count,
    storage_macros,
    summing,
)
from convdispatch.api.matrix import Parts, reduction_launch

from ..solving import launch
from .choice import choices, fits, least_seconds, seconds
from .product import MAX_INT_OFFSET, Loader, Product, Tile, most_columns


class Tiled(Solver):
    """Every direction, rank, group, stride, dilation, padding, layout and dtype, on devices with local memory."""

    def rejects(self, problem: ConvProblem, device: DeviceInfo) -> str | None:
        """Reject strides of too many phases, empty problems, and devices with too little local memory."""
        if phase_count(problem) > MOST_PHASES:
            return f"strides of {MOST_PHASES} phases at most, got {phase_count(problem)}"
        if problem.mb < 1:
            return f"1 image or more, got {problem.mb}"
        if most_columns(problem) >= MAX_INT_OFFSET:
            return f"fewer than {MAX_INT_OFFSET} columns of the matrix product, got {most_columns(problem)}"
        if not fits(problem, device):
            return f"the smallest tile needs more than {device.local_mem_size} bytes of local memory"
        return None

    def configs(self, problem: ConvProblem, device: DeviceInfo) -> Iterator[Mapping[str, Any]]:
        """Tiles that fit the device, the fastest by prediction first."""
        for tile in choices(problem, device):
            yield tile.config()

    def workspace(self, problem: ConvProblem, device: DeviceInfo, config: Mapping[str, Any]) -> int:
        """Return the bytes of packed weights (unless they are constant) and of partial sums."""
        product = Product(problem, Tile.of(config))
        return packed_bytes(product) + product.partial_size + product.sums_size

    def cost(self, problem: ConvProblem, device: DeviceInfo, config: Mapping[str, Any]) -> float:
        """Return the predicted seconds: tiles in whole waves of work groups, at the share of the peak they reach."""
        return seconds(Product(problem, Tile.of(config)), device)

    def least_seconds(self, problem: ConvProblem, device: DeviceInfo) -> float:
        """The operations at the largest share of the peak that any tile reaches."""
        return least_seconds(problem, device)

    def plan(self, context: Any, problem: ConvProblem, config: Mapping[str, Any]) -> TiledPlan:
        return TiledPlan(context, problem, config)


PACKED_ALIGNMENT = 1024
"""Packed weights are padded to a multiple of so many bytes; no device requires more alignment of a sub-buffer."""


def packed_bytes(product: Product) -> int:
    """Return the bytes of the workspace that packed weights take."""
    if product.problem.constant_weights:
        return 0
    return -(-product.packed_size // PACKED_ALIGNMENT) * PACKED_ALIGNMENT


class TiledPlan(StepPlan):
    """The plan of one tiled product; ``product.cl.mako`` explains the kernel."""

    def __init__(self, context: Any, problem: ConvProblem, config: Mapping[str, Any]) -> None:
        product = self._product = Product(problem, Tile.of(config))
        self._context, self._pack_bytes = context, packed_bytes(product)
        self._extras = list(problem.epilogue_operands)
        self._form, self._numbers = Form.of(product), numbers(product, self._pack_bytes // product.accsize)
        sums_at = self._pack_bytes + product.partial_size
        self._macros = storage_macros(problem.dtype) + epilogue_macros(problem)
        self._macros += norm_macros(problem) if problem.norm else ""
        self._macros += define(NHWC=int(problem.layout == "nhwc"), OUT_INDEX=product.out_index, PARTIAL_AT=0)
        packers = [self._pack_launch()] if product.packed_size else []
        steps = [*([] if problem.constant_weights else packers), self._product_launch()]
        steps += [self._reduce_launch()] if product.partial else []
        if product.sums:
            steps += merging(context, problem, product.sums_parts, sums_at)
        elif problem.sums:
            steps += summing(context, problem, sums_at)
        packed_size = product.packed_size if problem.constant_weights else 0
        super().__init__(sums_at + product.sums_size, steps, packed_size, packers, self._pack_key())

    def _pack_key(self) -> str:
        product, tile = self._product, self._product.tile
        problem = product.problem
        names = ("id", "ih", "iw", "sd", "sh", "sw", "pd", "ph", "pw", "dd", "dh", "dw")
        # Packed slices depend only on the taps of the phases; the key has the numbers that determine them, because
        # these are easy to compare.
        geometry = () if problem.direction == "fwd" else tuple(getattr(problem, name) for name in names)
        return repr(("tiled", problem.direction, problem.layout, problem.dtype, problem.w_shape, problem.g, geometry,
                     tile.bm, tile.bk, tile.walk))  # fmt: skip

    def _launch(
        self, text: tuple[str, list[Any]], name: str, size: tuple[int, ...], local: tuple[int, ...], operands: list[str]
    ) -> Launch:
        """``text``: the program without the macros of all, and the kernel's arguments beyond the operands."""
        return launch(self._context, self._macros + text[0], name, size, local, [*operands, *text[1]])

    def _pack_launch(self) -> Launch:
        product = self._product
        rows = product.m_tiles * product.tile.bm
        size = (-(-rows // 32) * 32, -(-product.c_padded // 4) * 4, product.geometry.groups)
        pack, numbers = pack_text(self._form), self._numbers
        # Functions, in which kernels' arguments are not known, compute the phases' numbers.
        text = (numbers_as_literals(pack, numbers), []) if self._form.phased else numbers_as_arguments(pack, numbers)
        return self._launch(text, "pack", size, (32, 4, 1), ["w", "workspace"])

    def _product_launch(self) -> Launch:
        product, problem = self._product, self._product.problem
        functions = define(PARTIAL=int(product.partial)) + kernel_text(__package__, "output.cl")
        if product.data:
            source, written = ("x", "y") if problem.direction == "fwd" else ("y", "x")
            operands = ["workspace" if self._pack_bytes else "w", source, "workspace" if product.partial else written]
        else:
            operands = ["y", "x", "workspace"]
        operands += [] if product.partial else self._extras
        operands += (["norm"] if product.norm else []) + (["workspace"] if product.sums else [])
        items = product.tile.items
        text = functions + numbers_as_literals(product_text(self._form), self._numbers), []
        return self._launch(text, "product", (product.work_groups * items,), (items,), operands)

    def _reduce_launch(self) -> Launch:
        product, geo = self._product, self._product.geometry
        order = {"order": 1, "axes": (geo.c, geo.volume)} if product.reordered else {}
        parts = Parts(product.split, product.out_size, product.out_index, self._pack_bytes // product.accsize,
                      lanes=1, items=128, **order)  # fmt: skip
        return reduction_launch(self._context, product.problem, parts, [product.problem.written, *self._extras])


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


_AXES = "zyx"


def _numbers_of_phase(f: Form, field: str) -> list[str]:
    """OpenCL text of a field of the work group's phase, along each axis: variables if there are several phases."""
    return [f"{field}_{axis}" if f.phased else f"{field}_{axis}".upper() for axis in _AXES]


def _divided(f: Form, number: str, places: str) -> str:
    return f"{number} / {places}" if f.phased else f"DIVIDED({number}, {places})"


def _slot_tap(f: Form, k: int) -> tuple[int, int, int]:
    """The tap at row ``k`` of a slice of taps, relative to the slice's first tap."""
    _, rows, columns = f.run
    return k // (rows * columns), k // columns % rows, k % columns


def _slot_offset(f: Form, k: int) -> str:
    """OpenCL text of the source elements from a slice's first tap to the tap at row ``k``."""
    taps = zip(_slot_tap(f, k), _AXES.upper(), strict=True)
    return " + ".join(f"{tap} * SPREAD_{axis} * SOURCE_{axis}" for tap, axis in taps if tap) or "0"


def _part(f: Form, file: str, **more: Any) -> str:
    """Return the rendered text of another template file, with the same values."""
    return kernel_text(__package__, file, **_values(f), **more)


def _values(f: Form) -> dict[str, Any]:
    """Return the values of the templates by their names."""
    t = f.tile
    rows, columns = t.bm // t.tm, t.bn // t.tn
    warp_n, places = min(t.ln, columns), "places" if f.phased else "PLACES"
    return {
        "f": f, "t": t, "b": f.b, "bm": t.bm, "bn": t.bn, "bk": t.bk, "items": t.items, "columns": columns,
        "warp_n": warp_n, "warp_m": max(1, min(32 // warp_n, rows)), "quads_m": t.tm // 4, "quads_n": t.tn // 4,
        "axes": range(3), "names": _AXES, "capitals": _AXES.upper(), "places": places,
        "divided": functools.partial(_divided, f), "slot_tap": functools.partial(_slot_tap, f),
        "slot_offset": functools.partial(_slot_offset, f), "phases": _phases() if f.phased else "",
        **{field: _numbers_of_phase(f, field) for field in ("first", "taps", "origin")},
        "a_slots": -(-t.bk * t.bm // 4 // t.items), "a_pitch": t.bm if f.data else f.a.pitch,
        "masked": f.run is not None and any(g and not w for g, w in zip(f.guarded, f.walked, strict=True)),
    }  # fmt: skip


def _phases() -> str:
    return kernel_text(__package__, "phase.cl")


@functools.lru_cache(maxsize=256)
def product_text(f: Form) -> str:
    """The text of the kernel ``product``, without the functions that it calls."""
    return kernel_text(__package__, "product.cl.mako", **_values(f), part=functools.partial(_part, f))


@functools.lru_cache(maxsize=256)
def pack_text(f: Form) -> str:
    """The text of the kernel ``pack``."""
    return kernel_text(__package__, "pack.cl.mako", f=f, phases=_phases() if f.phased else "")
