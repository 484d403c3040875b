"""Shared by the kernels with inline assembly: slots of work items, packed weights, launches, and solvers."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from convdispatch.api import OPERANDS, Areas, ConvProblem, DeviceInfo, Launch, Solver, StepPlan, build, define, rates
from convdispatch.api.cpu import PAGE, cdiv, round_up, uneven

ONCE = "#define ONCE __attribute__((opencl_unroll_hint(1)))\n"
"""OpenCL macro that keeps Intel's compiler from unrolling the loop after it."""
BAND_BYTES = 256 << 10
"""Target size of a band of x, in bytes: about the size of a core's cache."""
MAX_SLOT_BYTES = 16 << 20
"""Largest workspace slot of a work item, in bytes."""
MAX_TAPS = 4096
MIN_POSITIONS = 96
"""Fewest output positions of a job: with fewer, its weights are read too often."""
# These costs are in operations at the device's peak rate.
STORE_COST = 350.0  # operations per sixteen elements of y that are stored in NHWC
SCATTERED_STORE_COST = 500.0  # operations per element of y that is stored in NCHW
COPY_COST = 8.0  # operations per byte of a band that is copied
READ_COST = 8.0  # operations per byte of weights that is read for a band
PACK_COST = 400.0  # operations per byte of weights that is packed
LAUNCH_COST = 3e5  # operations in the time of one kernel launch


def depthwise_refusal(problem: ConvProblem) -> str | None:
    """The reason to refuse groups of several channels, channels first or an empty batch; otherwise None."""
    if not problem.depthwise or problem.oc != problem.ic:
        return f"depthwise only, got {problem.ic} and {problem.oc} channels in {problem.g} groups"
    if problem.layout != "nhwc":
        return f"channels last only, got {problem.layout}"
    return f"1 image or more, got {problem.mb}" if problem.mb < 1 else None


def run_arguments(problem: ConvProblem, offset: int = 0) -> list[Any]:
    """The arguments of a kernel ``conv``: x, packed weights and their offset, y, the quantization table, a residual."""
    weights = "w" if problem.constant_weights else "workspace"
    return ["x", weights, np.int64(offset), "y", "bias", *(["residual"] if problem.residual else [])]


class DepthwiseSolver(Solver):
    """Base of the depthwise solvers that sum in float32 and whose kernel ``pack`` makes weights float32."""

    channels: int
    """Channels that one work item sums together; packed weights have a multiple of them."""

    def packed_size(self, problem: ConvProblem) -> int:
        """Bytes of the packed weights."""
        return 4 * round_up(problem.oc, self.channels) * problem.kd * problem.kh * problem.kw

    def workspace(self, problem: ConvProblem, device: DeviceInfo | None, config: Mapping[str, Any]) -> int:
        return 0 if problem.constant_weights else self.packed_size(problem)

    def launches(self, problem: ConvProblem, program: Any, run: Any, pack: Any) -> StepPlan:
        """The plan of the program's kernels; ``run`` and ``pack`` are (global size, local size) of theirs."""
        conv = Launch(program, "conv", *run, run_arguments(problem), names=OPERANDS)
        packer = Launch(program, "pack", *pack, ["w", "workspace", np.int64(0)], names=OPERANDS)
        size, once = self.packed_size(problem), problem.constant_weights
        return StepPlan.packing(once, 0 if once else size, [packer], [conv], size, [self.name, *problem.w_shape])


class PackedKernel:
    """One configuration of a kernel: its sizes, computed without compiling."""

    problem: ConvProblem
    items: int
    slot: int
    """Bytes of workspace of a work item."""
    packed_size: int
    panels: int
    groups: int
    packing_group: tuple[int, int, int] = (1, 1, 32)
    """Size of a work group that packs weights: one work item per channel of a panel of 32 channels."""

    def text(self) -> str:
        """The program: kernels ``conv`` and ``pack``."""
        raise NotImplementedError

    @property
    def packing(self) -> tuple[int, int, int]:
        """Global size of the launch that packs weights: one work group per panel of each group of channels."""
        return self.panels, self.groups, 32

    @property
    def pack_key(self) -> list[Any]:
        """Cache key of packed weights: everything that their bytes depend on."""
        raise NotImplementedError

    def areas(self) -> tuple[int, int]:
        """(bytes of workspace, offset of packed weights); the slots come first."""
        areas = Areas(PAGE)
        areas.add(self.items * self.slot)
        offset = 0 if self.problem.constant_weights else areas.add(self.packed_size)
        return areas.size, offset

    def plan(self, context: Any) -> StepPlan:
        """Compile the kernels and return the plan that launches them."""
        problem, program, (size, offset) = self.problem, build(context, self.text()), self.areas()
        arguments = [*run_arguments(problem, offset), "workspace"]
        run = Launch(program, "conv", (self.items, 1, 1), (1, 1, 1), arguments, names=OPERANDS)
        pack_arguments = ["w", "workspace", np.int64(offset)]
        pack = Launch(program, "pack", self.packing, self.packing_group, pack_arguments, names=OPERANDS)
        return StepPlan.packing(problem.constant_weights, size, [pack], [run], self.packed_size, self.pack_key)


class BandKernel(PackedKernel):
    """A kernel that multiplies tiles of positions by panels of 32 channels, over bands of x or over x in place."""

    unit: int
    """Bytes of x that one step multiplies, for each position."""
    band: Band
    in_place: bool
    taps: int
    steps: int
    rows: int
    parts: int
    bands: int
    area: int
    """Bytes of a band in the slot."""

    def _set_shares(self) -> None:
        """Set what follows from bands and panels: jobs, work items, and the size of packed weights."""
        p, config = self.problem, self.config
        self.panel = self.taps * self.steps * self.unit * 32
        self.shares = cdiv(self.panels, config["panels"])
        self.jobs = self.bands * self.shares
        self.items = min(self.jobs, config["items"])
        self.finish = self.nhwc and p.out_itemsize == 1  # whether inline assembly converts sums to bytes
        self.w_sums = self.groups * self.panels * self.panel
        self.packed_size = self.w_sums + 128 * self.groups * self.panels

    def macros(self, text: str = "", **more: Any) -> str:
        """OpenCL macros of the problem, ``text``, macros of the band and the kernel, and the table of tap offsets."""
        p, band = self.problem, self.band
        text = p.macros() + ONCE + text + define(
            IN_PLACE=int(self.in_place), PIXEL=band.pixel, LINE=band.line, AREA=band.area, HALF_ROWS=band.half_rows,
            STEP_H=band.step_h, SKIP_H=band.skip_h, SKIP_W=band.skip_w, COLUMNS=band.columns, HALVES=band.halves,
            BAND_ROWS=band.band_rows, RUN_TAPS=band.run_taps, TAPS=self.taps, STEPS=self.steps, UNIT=self.unit,
            PANEL=f"{self.panel}L", ROWS=self.rows, PARTS=self.parts, PANELS=self.panels, PER=self.config["panels"],
            SHARES=self.shares, ITEMS=f"{self.items}L", JOBS=f"{self.jobs}L", SLOT=f"{self.slot}L",
            W_SUMS=f"{self.w_sums}L", FINISH=int(self.finish),
            CHANNEL=1 if self.nhwc else f"{p.od * p.oh * p.ow}L", **more,
        )  # fmt: skip
        offsets = [0] if self.in_place else band.offsets
        return text + f"constant int OFFSETS[{len(offsets)}] = {{{', '.join(map(str, offsets))}}};\n"

    def cost(self, device: DeviceInfo, steps: float) -> float:
        """Predicted seconds: ``steps`` operations at the peak rate, plus bytes of bands and weights, plus stores."""
        problem, elements = self.problem, math.prod(self.problem.y_shape)
        operations = steps + (STORE_COST * elements / 16 if self.nhwc else SCATTERED_STORE_COST * elements)
        operations += 0 if self.in_place else COPY_COST * self.bands * self.shares * self.area
        operations += READ_COST * self.bands * self.panels * self.panel
        operations += 0 if problem.constant_weights else PACK_COST * self.packed_size
        peaks = rates(device)
        return peaks.launch + (LAUNCH_COST + operations * uneven(self.jobs, device)) / peaks.flops


class PackedSolver(Solver):
    """Base of the solvers whose kernel is a PackedKernel."""

    kernel: type[PackedKernel]

    def workspace(self, problem: ConvProblem, device: DeviceInfo, config: Mapping[str, Any]) -> int | None:
        return self.kernel(problem, config).areas()[0]


class BandSolver(PackedSolver):
    """Base of the solvers whose kernel is a BandKernel."""

    kernel: type[BandKernel]

    def least(self, problem: ConvProblem) -> tuple[Any, str | None]:
        """(the kernel with the smallest bands, the reason why even that cannot run or None)."""
        if problem.mb < 1:
            return None, f"1 image or more, got {problem.mb}"
        if problem.depthwise:
            return None, "more than 1 channel a group, got depthwise"
        smallest = self.kernel(problem, {"rows": 1, "panels": 1, "items": 1})
        if smallest.slot > MAX_SLOT_BYTES:
            return smallest, f"rows of {MAX_SLOT_BYTES} bytes for all channels of a group at most, got {smallest.slot}"
        return smallest, f"{MAX_TAPS} taps at most, got {smallest.taps}" if smallest.taps > MAX_TAPS else None

    def configs(self, problem: ConvProblem, device: DeviceInfo) -> Iterator[dict[str, Any]]:
        """Bands of about ``BAND_BYTES``, a quarter and four times that; few bands divide their panels among jobs."""
        yielded = []
        for nbytes in (BAND_BYTES, BAND_BYTES // 4, 4 * BAND_BYTES):
            config = self.config_of(problem, device, nbytes)
            if config not in yielded:
                yielded.append(config)
                yield config

    def config_of(self, problem: ConvProblem, device: DeviceInfo, nbytes: int) -> dict[str, Any]:
        """The configuration of bands of about ``nbytes``."""
        raise NotImplementedError


class Band:
    """The bytes of x for ``rows`` rows of y of one image and group; a step multiplies ``unit`` bytes.

    They are copied to a slot, in which a tap is an offset, with ``pixel`` bytes per pixel:

        slot[kd][h % sh][h // sh][column][channel of the group, for some kernels rounded up to 4]

    Positions count pixels of y as if a row of y were as long as a row of the slot, so that a tile continues across
    rows; results between two rows are computed but not stored. Along an axis with one tap the slot has only the rows or
    columns that are read, without the stride. Taps of a row whose pixels are contiguous are one run of bytes.
    """

    def __init__(self, problem: ConvProblem, rows: int, unit: int) -> None:
        p = self.problem = problem
        self.rows, self.unit = rows, unit
        self.channels = p.ic // p.g
        # In NHWC channels may be copied unpadded: a tap then reads into the next pixel, where its weights are zeros.
        self.pixel = self.channels if unit == 4 and p.layout == "nhwc" else round_up(self.channels, 4)
        # Stride of output pixels along w and h: ``step`` in the slot's pixels, ``skip`` between the slot's pixels in x.
        self.step_w, self.skip_w = (1, p.sw) if p.kw == 1 else (p.sw, 1)
        self.step_h, self.skip_h = (1, p.sh) if p.kh == 1 else (p.sh, 1)
        self.columns = round_up((p.ow - 1) * self.step_w + (p.kw - 1) * p.dw + 1, self.step_w)
        self.row_positions = self.columns // self.step_w
        """Positions from one row of y to the next in the slot."""
        self.band_rows = (rows - 1) * self.step_h + (p.kh - 1) * p.dh + 1
        self.half_rows = -(-self.band_rows // self.step_h)
        self.line = self.columns * self.pixel
        self.area = self.step_h * self.half_rows * self.line
        self.row = self.step_w * self.pixel
        """Bytes of the slot from one position to the next."""
        runs = p.dw == 1 or p.kw == 1
        self.run_taps = p.kw if runs else 1
        self.steps = -(-self.run_taps * self.pixel // unit)
        self.taps = p.kd * p.kh * (1 if runs else p.kw)
        self.positions = (rows - 1) * self.row_positions + p.ow

    @functools.cached_property
    def offsets(self) -> list[int]:
        """For each tap the byte offset in the slot that it reads for position 0."""
        p, tap_offsets = self.problem, []
        for d in range(p.kd):
            for h in range(p.kh):
                remainder, quotient = (h * p.dh) % self.step_h, (h * p.dh) // self.step_h
                start = d * self.area + (remainder * self.half_rows + quotient) * self.line
                tap_offsets += [start + w * p.dw * self.pixel for w in range(p.kw // self.run_taps)]
        return tap_offsets

    @property
    def halves(self) -> int:
        """A bit mask of the remainders, modulo the stride along h, of the rows that some tap reads."""
        return sum({1 << (h * self.problem.dh) % self.step_h for h in range(self.problem.kh)})

    @property
    def panel(self) -> int:
        """Bytes of 32 output channels' packed weights."""
        return self.taps * self.steps * self.unit * 32

    def size(self, tile: int) -> int:
        """Bytes of the slot, including those that a tile of positions reads beyond the last row."""
        return self.problem.kd * self.area + (tile + 1) * self.row + self.steps * self.unit + self.line
