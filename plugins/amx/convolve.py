"""``amx.tiles``: forward and data gradient in tiles of 32 pixels by 32 channels of AMX matrix registers."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from convdispatch.api import (
    OPERANDS,
    Areas,
    ConvProblem,
    DeviceInfo,
    Launch,
    StepPlan,
    TensorLayout,
    build,
    define,
    epilogue_macros,
    geometry_of,
    kernel_text,
    phase_count,
    storage_macros,
)
from convdispatch.api.cpu import PAGE, TILE_MACROS, cdiv, uneven

from .banded import MAX_SLOT_BYTES, BandedKernel, BandedSolver, tiles_of
from .geometry import bands_of
from .instructions import PRODUCTS, product
from .probe import require

SLOT_BYTES = 768 * 1024
"""Bytes of a work item's workspace slot that the offered bands do not exceed, unless one row alone takes more."""
NEAR_WEIGHT_BYTES = 512 * 1024
"""Most bytes of packed weights that are assumed to stay in the cache together with a band of the source."""
FIRST_CACHE_BYTES = 34 << 10
"""Most bytes of weights that stay in the L1 cache together with eight positions of the source."""
MAX_TRANSPOSED_VECTORS = 512
"""Most vectors of weights that are transposed before the first of them is packed."""
TILE_SUMS = 2048
"""Number of float32 sums of a 32x32 tile, counted twice: as computed, and transposed."""
NOTE_NUMBERS = 34
"""32-bit numbers that are stored behind the packed weights for each block of a panel."""
MAX_STEPS = 4096
"""Most entries of the kernel's table of tap offsets; a problem that needs more is refused."""
MAX_PHASES = 16
"""Most phases that the data gradient of a strided convolution may have."""


class Costs(NamedTuple):
    """Costs in operations at the device's peak rate. Tuples: NHWC, NCHW with several taps, NCHW with one tap."""

    step: float
    """Cost of one product of two planes, for one tile and one step of 32 summed values."""
    step_across: float
    read: float
    """Cost of reading one byte of packed weights for one band."""
    packed: float
    """Cost of packing one weight."""
    launch: float
    """Cost of one kernel launch on two cores."""
    split: tuple[float, float, float]
    """Cost of splitting one element of a band into bfloat16 planes."""
    split_apart: float
    """Cost of splitting one element of an NCHW row that is read with a stride, in parts of vectors."""
    stored: tuple[float, float, float]
    """Cost of storing one element of the result."""
    rounded: tuple[float, float, float] = (0.0, 0.0, 0.0)
    """Cost of storing one element that leaves the registers as bfloat16."""
    narrow: float = 0.5
    """Cost of a tile of 16 channels or fewer, relative to a tile of 32."""


class TilesKernel(BandedKernel):
    name = "amx.tiles"
    costs = Costs(4650.0, 7200.0, 6.0, 112.0, 2.2e6, (63.0, 86.0, 50.0), 134.0, (21.0, 115.0, 23.0))
    timed = 1.25, 1.45
    """Measured over modelled time, with one plane and with several: 69 of 154 random problems, four cores of a Xeon."""

    def __init__(self, problem: ConvProblem, config: Mapping[str, Any]) -> None:
        super().__init__(problem, config)
        problem, geometry, flat = self.problem, self.geometry, self.flat
        # In NCHW a 1x1 kernel reads whole cache lines in place; with several taps most reads start inside a cache line.
        self.across = not self.nhwc and geometry.volume == 1
        self.sides = 2 if not self.nhwc and geometry.out_step[2] == 2 and geometry.target.size[2] > 1 else 1
        reads_all = geometry.pointwise if self.nhwc else self.across and geometry.out_step[2] == 1
        whole_tiles = geometry.c % 32 == 0 and self.rows * flat.pitch >= 32
        self.in_place = self.vectors and self.nhwc and reads_all and whole_tiles
        self.rounded = self.vectors and reads_all and not fused(problem)
        weight_bytes = 64 * config["panels"] * cdiv(geometry.c, 32) * 32
        self.tall = 8 if self.in_place and weight_bytes <= FIRST_CACHE_BYTES else 32
        # Each plane takes an odd number of cache lines, so that its rows spread over the sets of the cache.
        self.positions = (cdiv(self.band_rows * flat.pitch + 48, 16) | 1) * 16
        self.unit = 4 if self.across else 64 * self.planes
        self.area = 64 if self.in_place else self.positions * 64 * self.planes
        self.sums_at = cdiv(self.blocks * len(flat.parts) * self.area, 64) * 64
        self.jobs = geometry.groups * self.bands * self.shares
        self.items = min(self.jobs, config["items"])
        self.taps = [len(taps) for taps in flat.taps]
        self.steps = self.blocks * sum(self.taps)
        # Bytes of three tables: source offsets of rows, result offsets of each phase's rows, and offsets of steps.
        table_bytes = 8 * (self.band_rows + len(geometry.phases) * self.rows) + 4 * self.steps
        sum_bytes = 4 * (self.sides * TILE_SUMS + 1024 * self.scaled)
        self.slot = cdiv(self.sums_at + sum_bytes + table_bytes + 256, PAGE) * PAGE
        self.step_w = 2048 * self.planes
        self.slots_size = self.items * self.slot
        self.notes_at = geometry.groups * self.panels * self.steps * self.step_w
        note_bytes = 4 * NOTE_NUMBERS * geometry.groups * self.panels * self.blocks * self.scaled
        self.packed_size = self.notes_at + note_bytes

    @property
    def packed(self) -> list[int]:
        """Offset in bytes of the packed weights of each phase."""
        size = self.geometry.groups * self.panels * self.blocks * self.step_w
        return [size * sum(self.taps[:phase]) for phase in range(len(self.taps))]

    def sizes(self) -> tuple[str, Any]:
        """(OpenCL text, kernel argument) that hold the numbers of the geometry."""
        geometry, flat, size = self.geometry, self.flat, self.geometry.target.size
        triples = {"X": geometry.source.size, "S": geometry.step, "Q": [axis.pitch for axis in flat.axes], "T": size}
        ints = {name + axis: n for name, triple in triples.items() for axis, n in zip("DHW", triple, strict=True)}
        ints |= {f"O{axis}_": value for axis, value in zip("DHW", geometry.out_step, strict=True)}
        ints |= {"IMAGES": geometry.images, "GROUPS": geometry.groups, "G": geometry.source.channels}
        ints |= {"C": geometry.c, "N": geometry.m}
        ints |= {"BLOCKS": self.blocks, "PANELS": self.panels, "PER": self.config["panels"], "PARTS_OF_N": self.shares}
        ints |= {"ROWS": self.rows, "BANDS": self.bands, "BAND_ROWS": self.band_rows, "ALL_ROWS": self.all_rows}
        weights_stay = self.nhwc and self.config["panels"] * self.steps * self.step_w <= NEAR_WEIGHT_BYTES
        ints |= {"POSITIONS": self.positions, "ITEMS": self.items, "PLACES_FIRST": weights_stay}
        ints |= {"PHASES": len(geometry.phases), "PARTS": len(flat.parts)}
        longs = {"AREA": self.area, "SUMS_AT": self.sums_at, "SLOT": self.slot, "JOBS": self.jobs}
        longs |= {"NOTES_AT": self.notes_at}
        phases, unit = geometry.phases, geometry.target.channels if self.nhwc else 1
        starts = [((f[0] * size[1] + f[1]) * size[2] + f[2]) * unit for f in (phase.first for phase in phases)]
        taps = [tap.part * self.area + tap.offset * self.unit for taps in flat.taps for tap in taps]
        parts = [r + axis.first for part in flat.parts for r, axis in zip(part, flat.axes, strict=True)]
        lists = {"TAP_AT": ("int", taps, 16), "PART_AT": ("int", parts, 16),
                 "PLACES": ("int", [n for phase in phases for n in phase.count], 1), "FIRST": ("long", starts, 1),
                 "TAPS": ("int", self.taps, 1), "PACKED": ("long", self.packed, 1),
                 "BEFORE": ("int", [sum(self.taps[:phase]) for phase in range(len(phases))], 1)}  # fmt: skip
        return sizes_argument(ints, longs, lists)

    def _begin(self) -> str:
        text = storage_macros(self.problem.dtype) + define(V="float16", LANES=16, NHWC=int(self.nhwc))
        text += define(ACROSS=int(self.across), PLANES=self.planes, STEP_W=f"{self.step_w}L", SCALED=int(self.scaled))
        return text + define(VECTORS=int(self.vectors), IN_PLACE=int(self.in_place), ROUNDED=int(self.rounded))

    def text(self, sizes: str) -> str:
        """The program; ``sizes`` is the text of the geometry's numbers."""
        text = self._begin() + epilogue_macros(self.problem) + sizes
        text += define(
            UNIT=self.unit, SIDES=self.sides, SIDE_=TILE_SUMS, TALL=self.tall, ROW="2L * G" if self.in_place else "64L"
        )
        if not self.nhwc:
            text += define(STEP=self.geometry.step[2], OUT_STEP=self.geometry.out_step[2])
        for name in ("split.cl", "rows.cl", "transpose.cl.mako", "band.cl"):
            text += kernel_text(__package__, name)
        return text + self.products() + kernel_text(__package__, "convolve.cl")

    def products(self) -> str:
        weights = {"row": 64, "tile": 1024, "plane": 2048, "step": self.step_w}
        if self.across:
            a, b, narrow = weights, {"tile": 64}, (1, 2)
        else:
            a, b, narrow = {"row": 64 * self.planes, "tile": 1024 * self.planes, "plane": 64}, weights, (2, 1)
        return (
            TILE_MACROS + product("tile", self.planes, a, b, (2, 2)) + product("narrow_tile", self.planes, a, b, narrow)
        )

    def areas(self) -> tuple[int, int, int]:
        """(bytes of workspace, offset of packed weights, bytes of packed weights); the slots come first."""
        areas = Areas(PAGE)
        areas.add(self.slots_size)
        packed_offset = 0 if self.problem.constant_weights else areas.add(self.packed_size)
        return areas.size, packed_offset, self.packed_size

    def plan(self, context: Any) -> StepPlan:
        problem = self.problem
        size, packed_offset, packed_size = self.areas()
        (text, sizes), (packing, taps) = self.sizes(), self._packing()
        source, target = ("x", "y") if problem.direction == "fwd" else ("y", "x")
        weights, weights_offset = "w" if problem.constant_weights else "workspace", np.int64(packed_offset)
        arguments = [source, weights, weights_offset, "workspace", sizes, target, *problem.epilogue_operands]
        run = Launch(build(context, self.text(text)), "conv", (self.items, 1, 1), (1, 1, 1), arguments, names=OPERANDS)
        items = (self.geometry.groups * self.panels, self.blocks, 1)
        arguments = ["w", "workspace", weights_offset, taps]
        pack = Launch(build(context, packing), "pack", items, (1, 1, 1), arguments, names=OPERANDS)
        key = [self.name, str(problem.replace(mb=1)), self.planes]
        return StepPlan.packing(problem.constant_weights, size, [pack], [run], packed_size, key)

    def operations(self, device: DeviceInfo) -> float:
        geometry, flat, costs = self.geometry, self.flat, self.costs
        launch = self.launch_cost(device)
        layout_index = 0 if self.nhwc else 2 if self.across else 1
        tiles = geometry.groups * self.bands * cdiv(self.rows * flat.pitch, 32) * tiles_of(geometry.m, costs.narrow)
        step = costs.step_across if self.across else costs.step
        product_ops = step * len(PRODUCTS[self.planes]) * tiles * self.steps
        product_ops += costs.read * self.bands * self.packed_size
        split_ops = geometry.groups * self.bands * self.band_rows * flat.pitch * self.blocks * 32 * len(flat.parts)
        split_cost = costs.split_apart if layout_index and geometry.step[2] > 1 else costs.split[layout_index]
        split_ops *= min(self.shares, self.items) * split_cost
        store_cost = (costs.rounded if self.rounded else costs.stored)[layout_index]
        store_ops = store_cost * 1024 * tiles * len(geometry.phases)
        cost = (product_ops + (not self.in_place) * split_ops + store_ops) * uneven(self.jobs, device) + launch
        if self.problem.constant_weights:
            return cost
        return cost + costs.packed * self.packed_size / (2 * self.planes) + launch

    def _packing(self) -> tuple[str, Any]:
        """(OpenCL text of the program that packs weights, the argument with the geometry's numbers)."""
        problem, geometry = self.problem, self.geometry
        w, is_gradient = TensorLayout.of(problem, "w"), problem.direction == "bwd_data"
        n, c = (w.channel, w.image) if is_gradient else (w.image, w.channel)
        size = math.prod(problem.w_shape)
        longs = {"WN": n, "WC": c, "WT": w.axes[2], "W_GROUP": size // geometry.groups, "W_SIZE": size}
        longs["NOTES_AT"] = self.notes_at
        ints = {"ALL_TAPS": geometry.volume, "C": geometry.c, "N": geometry.m}
        ints |= {"PANELS": self.panels, "BLOCKS": self.blocks}
        tap_offsets = [(-1, 0)] * geometry.volume
        for taps, phase_offset in zip(self.flat.taps, self.packed, strict=True):
            for number, tap in enumerate(taps):
                tap_offsets[tap.kernel] = phase_offset + number * self.step_w, len(taps) * self.step_w
        columns = zip(("TO_AT", "TO_BLOCK"), zip(*tap_offsets, strict=True), strict=True)
        sizes, argument = sizes_argument(ints, longs, {name: ("long", column, 16) for name, column in columns})
        text = self._begin() + sizes + define(ORDER=0 if n == 1 else 1 if n < c else 2)
        if c < n:
            run = 1 if c == 1 else geometry.volume
            text += define(RUN=run, CHUNK=next((n for n in (32, 16, 8, 4) if n * run <= MAX_TRANSPOSED_VECTORS), 2))
        files = ("split.cl", "transpose.cl.mako", "pack.cl")
        return text + "".join(kernel_text(__package__, name) for name in files), argument


def fused(problem: ConvProblem) -> bool:
    """Whether an epilogue follows the convolution: bias, residual, accumulation or activation."""
    return problem.bias or problem.residual or problem.accumulate or problem.activation is not None


class Tiles(BandedSolver):
    """Forward and data gradient on a CPU with matrix registers."""

    kernel: type[TilesKernel] = TilesKernel

    def rejects(self, problem: ConvProblem, device: DeviceInfo) -> str | None:
        if problem.direction == "bwd_weights":
            return "forward and data gradient only, got bwd_weights"
        if phase_count(problem) > MAX_PHASES:
            return f"strides of {MAX_PHASES} phases at most, got {phase_count(problem)}"
        reason = self.common_refusal(problem)
        if reason:
            return reason
        if not any(phase.volume for phase in geometry_of(problem).phases):
            return "some tap that reaches the image only"
        smallest = self.kernel(problem, {"planes": self.planes_of(problem), "rows": 1, "panels": 1, "items": 1})
        if smallest.slot > MAX_SLOT_BYTES or smallest.positions > 1 << 20:
            return f"rows of {MAX_SLOT_BYTES} bytes for all channels of a group at most, got {smallest.slot}"
        if smallest.steps > MAX_STEPS:
            return f"{MAX_STEPS} steps of 32 summed products at most, got {smallest.steps}"
        return None

    def candidates(self, problem: ConvProblem, device: DeviceInfo) -> Iterator[dict[str, Any]]:
        base, units = self.base(problem, device.compute_units), device.compute_units
        panels = base["panels"]
        all_rows = self.kernel(problem, {**base, "rows": 1}).all_rows
        slots = {rows: self.kernel(problem, {**base, "rows": rows}).slot for rows in bands_of(all_rows)}
        heights = [rows for rows, slot in slots.items() if slot <= SLOT_BYTES] or [1]
        # A source that is read in place is not copied to a slot, so bands only divide the work.
        if self.kernel(problem, {**base, "rows": all_rows}).in_place:
            heights = [rows for rows in heights if rows <= -(-all_rows // base["items"])] or heights[:1]
        for rows in heights[-4:]:
            for shares in sorted({1, min(2, panels), min(4, panels), min(panels, 2 * units)}):
                yield {**base, "rows": rows, "panels": cdiv(panels, shares)}

    def _operations(self, problem: ConvProblem, device: DeviceInfo, config: Mapping[str, Any]) -> float:
        return self.cost(problem, device, config)

    def workspace(self, problem: ConvProblem, device: DeviceInfo, config: Mapping[str, Any]) -> int:
        return self.kernel(problem, config).areas()[0]

    def plan(self, context: Any, problem: ConvProblem, config: Mapping[str, Any]) -> StepPlan:
        require(context, problem, self.kernel)
        return self.kernel(problem, config).plan(context)


MAX_LISTED = 64
"""Longest list of numbers that is a kernel argument; longer lists are constants in the program text."""


def sizes_argument(
    ints: Mapping[str, int], longs: Mapping[str, int], lists: Mapping[str, tuple[str, Sequence[int], int]]
) -> tuple[str, Any]:
    """(OpenCL text, the argument): a struct ``Sizes``, each of whose members has a macro of its name.

    ``lists`` map a name to (``int`` or ``long``, values, least capacity); the capacity is a power of four. A function
    that reads members begins its parameters with ``SIZES_IN``, and a call of it its arguments with ``SIZES``; ``sizes``
    points to the struct. The text depends only on names and capacities. Raises OverflowError if a number is too large.

    One program so serves all geometries that differ only in numbers; reading a number costs less than compiling.
    """
    formats, constants = {"int": "<i4", "long": "<i8"}, ""
    members = [(name, "long", 1, value) for name, value in longs.items()]
    members += [(name, "int", 1, value) for name, value in ints.items()]
    text, types, values = "", [], []
    for name, (kind, numbers, capacity_at_least) in lists.items():
        if len(numbers) > MAX_LISTED:
            constants += f"constant {kind} {name}[] = {{{', '.join(map(str, numbers))}}};\n"
            continue
        capacity = next(4**n for n in range(4) if 4**n >= max(len(numbers), capacity_at_least))
        members.append((name, kind, capacity, [*numbers, *[0] * (capacity - len(numbers))]))  # type: ignore[arg-type]
    for name, kind, capacity, value in members:
        text += f"  {kind} {name}_{f'[{capacity}]' if name in lists else ''};\n"
        types.append((name, formats[kind], (capacity,)) if name in lists else (name, formats[kind]))
        values.append(value)
    text = "typedef struct {\n" + text + "} Sizes;\n" + "".join(f"#define {n} (sizes->{n}_)\n" for n, *_ in members)
    text += "#define SIZES_IN const Sizes *restrict sizes,\n#define SIZES sizes,\n"
    struct = np.array([tuple(values)], np.dtype(types, align=True))
    # NumPy void without field names, because pyopencl's caches distinguish struct types by size alone.
    return constants + text, np.void(struct.tobytes())
