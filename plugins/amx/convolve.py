"""``amx.tiles``: forward and data gradient, tiles of 32 places by 32 channels in matrix registers."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from convdispatch.api import (
    EPILOGUE,
    OPERANDS,
    Areas,
    ConvProblem,
    DeviceInfo,
    Launch,
    Phase,
    Solver,
    StepPlan,
    TensorLayout,
    build,
    define,
    epilogue_macros,
    kernel_text,
    rates,
    storage_macros,
    walk_of,
)
from convdispatch.api.cpu import PAGE, uneven

from .geometry import bands_of, flat_of
from .instructions import CONFIGURE, product
from .probe import require
from .splits import PRODUCTS, planes_of

__all__ = ["Tiles"]

_LEAST = 8
"""Channels of a group, below which most of a tile would be empty."""
_SLOT, _MOST_SLOT = 768 * 1024, 4 << 20  # bytes of a band's planes: wanted, and at most
_NEAR = 512 * 1024
"""Bytes of weights that stay in the cache beside a band."""
_STEPS = 4096
"""Entries of the table of offsets at most."""


def _ceil(a: int, b: int) -> int:
    return -(-a // b)


class TilesKernel:
    """One phase of one configuration, worked out without compiling."""

    def __init__(self, problem: ConvProblem, phase: Phase, config: Mapping[str, Any]) -> None:
        self.problem, self.config = problem, config
        self.walk = walk = walk_of(problem)
        self.flat = flat = flat_of(walk, phase)
        self.planes, self.nhwc = config["planes"], problem.layout == "nhwc"
        self.blocks, self.panels = _ceil(walk.c, 32), _ceil(walk.m, 32)
        self.all_rows = walk.images * flat.rows
        self.rows = min(config["rows"], self.all_rows)
        self.bands = _ceil(self.all_rows, self.rows)
        self.band_rows = self.rows + flat.beyond
        # An odd number of cache lines a plane, so that rows spread over the cache's sets.
        self.positions = (_ceil(self.band_rows * flat.pitch + 48, 16) | 1) * 16
        self.unit = 64 * self.planes if self.nhwc else 4
        self.area = self.positions * 64 * self.planes
        self.sums_at = _ceil(self.blocks * len(flat.parts) * self.area, 64) * 64
        self.slot = _ceil(self.sums_at + 4096 + 256, PAGE) * PAGE
        self.shares = _ceil(self.panels, config["panels"])
        self.jobs = walk.groups * self.bands * self.shares
        self.items = min(self.jobs, config["items"])
        self.steps = self.blocks * len(flat.taps)
        self.step_w = 2048 * self.planes
        self.slots_size = self.items * self.slot
        self.packed_size = walk.groups * self.panels * self.steps * self.step_w

    @property
    def offsets(self) -> list[int]:
        """Bytes of the slot where each step begins for position 0."""
        parts = len(self.flat.parts)
        return [
            (block * parts + tap.part) * self.area + tap.offset * self.unit
            for block in range(self.blocks)
            for tap in self.flat.taps
        ]

    def text(self) -> str:
        """The program."""
        problem, walk, flat = self.problem, self.walk, self.flat
        source, target = walk.source, walk.target
        text = storage_macros(problem.dtype) + epilogue_macros(problem) + define(V="float16", LANES=16)
        triples = {"X": source.size, "S": walk.step, "Q": [axis.pitch for axis in flat.axes], "Y": flat.phase.count,
                   "T": target.size, "F": flat.phase.first}  # fmt: skip
        for prefix, triple in triples.items():
            text += define(**{prefix + axis: value for axis, value in zip("DHW", triple, strict=True)})
        text += define(**{f"O{axis}_": value for axis, value in zip("DHW", walk.out_step, strict=True)})
        text += define(NHWC=int(self.nhwc), PLANES=self.planes, IMAGES=walk.images, GROUPS=walk.groups)
        text += define(G=source.channels, C=walk.c, N=walk.m, BLOCKS=self.blocks, PANELS=self.panels)
        text += define(PER=self.config["panels"], PARTS_OF_N=self.shares, ROWS=self.rows, BANDS=self.bands)
        text += define(BAND_ROWS=self.band_rows, ALL_ROWS=self.all_rows, POSITIONS=self.positions, UNIT=self.unit)
        text += define(AREA=f"{self.area}L", SUMS_AT=f"{self.sums_at}L", SLOT=f"{self.slot}L", JOBS=f"{self.jobs}L")
        text += define(ITEMS=self.items, STEPS=f"{self.steps}L", STEP_W=f"{self.step_w}L", TAPS=len(flat.taps))
        text += define(PARTS=len(flat.parts)) + self._weights()
        text += kernel_text(__package__, "split.cl") + kernel_text(__package__, "rows.cl")
        if flat.taps:
            text += self._tables() + kernel_text(__package__, "band.cl") + CONFIGURE + self._products()
            text += kernel_text(__package__, "turn.cl.mako") + kernel_text(__package__, "pack.cl")
        rest = walk.m % 32
        return text + kernel_text(
            __package__, "convolve.cl.mako", taps=bool(flat.taps), nhwc=self.nhwc, bias=problem.bias,
            narrow=0 < rest <= 16, places_first=self.nhwc and self.config["panels"] * self.steps * self.step_w <= _NEAR,
        )  # fmt: skip

    def _weights(self) -> str:
        w, backwards = TensorLayout.of(self.problem, "w"), self.problem.direction == "bwd_data"
        n, c = (w.channel, w.image) if backwards else (w.image, w.channel)
        group = math.prod(self.problem.w_shape) // self.walk.groups
        return define(WN=n, WC=c, WT=f"{w.axes[2]}L", W_GROUP=f"{group}L")

    def _tables(self) -> str:
        flat = self.flat
        first = [axis.first for axis in flat.axes]
        parts = [[r + at for r, at in zip(part, first, strict=True)] for part in flat.parts]
        at = ", ".join(f"(int4)({d}, {h}, {w}, 0)" for d, h, w in parts)
        return (
            f"constant int OFFSETS[] = {{{', '.join(map(str, self.offsets))}}};\n"
            f"constant int TAP_AT[] = {{{', '.join(str(tap.kernel) for tap in flat.taps)}}};\n"
            f"constant int4 PART_AT[] = {{{at}}};\n"
        )

    def _products(self) -> str:
        weights = {"row": 64, "tile": 1024, "plane": 2048, "step": self.step_w}
        line = 4 * self.positions
        source = {"row": 64 * self.planes, "tile": 1024 * self.planes, "plane": 64} if self.nhwc else {
            "row": line * self.planes, "tile": 64, "plane": line}  # fmt: skip
        a, b = (source, weights) if self.nhwc else (weights, source)
        whole = product("tile", self.planes, a, b, (2, 2))
        return whole + product("narrow_tile", self.planes, a, b, (2, 1) if self.nhwc else (1, 2))

    def launches(self, context: Any, packed_at: int) -> tuple[list[Launch], Launch]:
        """(the weights' packing, where there is some; the product). ``packed_at``: where in the packed form."""
        program, constant = build(context, self.text()), self.problem.constant_weights
        source, target = ("x", "y") if self.problem.direction == "fwd" else ("y", "x")
        extras = [name for name in ("bias", "residual") if getattr(self.problem, name)]
        at = np.int64(packed_at)
        arguments = [source, "w" if constant else "workspace", at, "workspace", target, *extras]
        run = Launch(program, "conv", (self.items, 1, 1), (1, 1, 1), arguments, names=OPERANDS)
        if not self.steps:
            return [], run
        sizes = (self.walk.groups * self.panels, self.blocks, 1)
        return [Launch(program, "pack", sizes, (1, 1, 1), ["w", "workspace", at], names=OPERANDS)], run


def kernels(problem: ConvProblem, config: Mapping[str, Any]) -> list[TilesKernel]:
    """One a phase."""
    return [TilesKernel(problem, phase, config) for phase in walk_of(problem).phases]


def areas_of(problem: ConvProblem, found: list[TilesKernel]) -> tuple[int, list[int], int]:
    """(bytes of workspace, where each phase's packed weights begin, bytes of these): slots first, shared by phases."""
    areas, packed = Areas(PAGE), Areas(PAGE)
    if not problem.constant_weights:
        packed = areas
    areas.add(max(kernel.slots_size for kernel in found))
    before = packed.size
    places = [packed.add(kernel.packed_size) for kernel in found]
    return areas.size, places, packed.size - before


class Tiles(Solver):
    """Forward and data gradient on a CPU with matrix registers."""

    name = "amx.tiles"
    exact = True
    fuses = EPILOGUE

    def rejects(self, problem: ConvProblem, device: DeviceInfo) -> str | None:
        """Weights' gradients, float64, few channels, and bands that fit no cache."""
        if problem.direction == "bwd_weights":
            return "forward and data gradient only, got bwd_weights"
        if not planes_of(problem):
            return f"float32 but for ieee, float16 and bfloat16 only, got {problem.dtype} and {problem.math}"
        if problem.mb < 1:
            return f"1 image or more, got {problem.mb}"
        walk = walk_of(problem)
        if min(walk.c, walk.m) < _LEAST:
            return f"{_LEAST} channels a group or more, got {min(walk.c, walk.m)}"
        if len(walk.phases) > 16:
            return f"strides of 16 phases at most, got {len(walk.phases)}"
        if not any(phase.volume for phase in walk.phases):
            return "some tap that reaches the image only"
        least = {"planes": planes_of(problem), "rows": 1, "panels": 1, "items": 1}
        worst = max(kernels(problem, least), key=lambda kernel: kernel.slot)
        if worst.slot > _MOST_SLOT or worst.positions > 1 << 20:
            return f"rows of {_MOST_SLOT} bytes for all channels of a group at most, got {worst.slot}"
        if worst.steps > _STEPS:
            return f"{_STEPS} steps of 32 summed products at most, got {worst.steps}"
        return None

    def configs(self, problem: ConvProblem, device: DeviceInfo) -> Iterator[Mapping[str, Any]]:
        """Bands and shares by predicted cost."""
        walk, units = walk_of(problem), device.compute_units
        panels = _ceil(walk.m, 32)
        base = {"planes": planes_of(problem), "panels": panels, "items": min(4 * units, max(units, 16))}
        most = max(kernel.all_rows for kernel in kernels(problem, {**base, "rows": 1}))
        slots = {rows: max(each.slot for each in kernels(problem, {**base, "rows": rows})) for rows in bands_of(most)}
        found: dict[str, tuple[float, dict[str, Any]]] = {}
        for rows in ([rows for rows, slot in slots.items() if slot <= _SLOT] or [1])[-4:]:
            for shares in sorted({1, min(2, panels), min(4, panels), min(panels, 2 * units)}):
                config = {**base, "rows": rows, "panels": _ceil(panels, shares)}
                found[str(config)] = self.cost(problem, device, config), config
        for _, config in sorted(found.values(), key=lambda each: each[0])[:3]:
            yield config

    def workspace(self, problem: ConvProblem, device: DeviceInfo, config: Mapping[str, Any]) -> int:
        """Slots, and packed weights unless they are constant."""
        return areas_of(problem, kernels(problem, config))[0]

    def cost(self, problem: ConvProblem, device: DeviceInfo, config: Mapping[str, Any]) -> float:
        """What tiles take, what is split and stored, and launches."""
        return sum(cost_of(kernel, device) for kernel in kernels(problem, config)) / rates(device).flops

    def plan(self, context: Any, problem: ConvProblem, config: Mapping[str, Any]) -> StepPlan:
        """Compile, once the device has proved that it can. Raises PluginError."""
        require(context)
        return compiled(context, problem, config)


def compiled(context: Any, problem: ConvProblem, config: Mapping[str, Any]) -> StepPlan:
    """The plan of one configuration."""
    found = kernels(problem, config)
    size, places, packed = areas_of(problem, found)
    packers, runs = [], []
    for kernel, at in zip(found, places, strict=True):
        pack, run = kernel.launches(context, at)
        packers += pack
        runs.append(run)
    if not problem.constant_weights:
        return StepPlan(size, [*packers, *runs])
    key = json.dumps([Tiles.name, str(problem.replace(mb=1)), config["planes"]])
    return StepPlan(size, runs, packed, packers, key)


# In operations of the peak, what takes the time of: a product of a step of a tile, a byte of weights read for a band,
# an element split, one written, one of the weights packed (channels last: 1.4 times as much), and a launch.
# In NCHW a tile's rows of the source lie far apart and across cache lines.
_STEP, _STEP_NCHW, _READ, _SPLIT, _STORED, _PACKED, _LAUNCH = 3600.0, 5000.0, 8.0, 85.0, 60.0, 270.0, 4e6


def cost_of(kernel: TilesKernel, device: DeviceInfo) -> float:
    """Operations of the peak that one phase takes the time of."""
    walk, flat = kernel.walk, kernel.flat
    tiles = walk.groups * kernel.bands * _ceil(kernel.rows * flat.pitch, 32) * kernel.panels
    step = _STEP if kernel.nhwc else _STEP_NCHW
    work = step * len(PRODUCTS[kernel.planes]) * tiles * kernel.steps + _READ * kernel.bands * kernel.packed_size
    split = walk.groups * kernel.bands * kernel.band_rows * flat.pitch * kernel.blocks * 32 * len(flat.parts)
    split *= min(kernel.shares, kernel.items)
    idle = uneven(kernel.jobs, device)
    cost = (work + _SPLIT * split + _STORED * 1024 * tiles) * idle + _LAUNCH
    if not kernel.problem.constant_weights and kernel.steps:
        cost += _PACKED * (1.4 if kernel.nhwc else 1) * kernel.packed_size / (2 * kernel.planes) + _LAUNCH
    return cost
