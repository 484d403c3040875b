"""``implicitgemm.phases``: strided data gradients in NCHW, all phases of the stride in one launch."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from convdispatch.api import Areas, ConvProblem, DeviceInfo, StepPlan, rates
from convdispatch.api.cpu import PAGE, Balance, cdiv, registers
from convdispatch.api.cpu import lanes as lanes_of

from ..solving import KernelSolver
from .kernel import Kernel, band_heights, cheapest
from .passes import passes

SLOT_BYTES = 256 * 1024
"""Bytes of a band's source rows that configurations do not exceed, unless a band of one row does."""
MAX_SLOT_BYTES = 2 << 20
"""A problem is rejected if the rows of its smallest band have more bytes."""

# The constants of the cost model are in operations at the device's peak multiply-add rate, fitted on timings of layers
# drawn at random.
OPERATION_OPS = 1.06  # operations at peak rate per operation of a register tile
STAGED_OPS = 12.0  # operations at peak rate per element that is copied for a band
STORED_OPS = 16.0  # operations at peak rate per element of the result
PACKED_OPS = 112.0  # operations at peak rate per packed weight
FAR_PACKED_OPS = 600.0  # operations at peak rate per packed weight, if the packed weights exceed CACHED_BYTES
CACHED_BYTES = 6 << 20  # bytes of packed weights that the caches hold
LAUNCH_OPS = 4e6  # operations at peak rate in the time of one kernel launch
SINGLE_PHASE_FACTOR = 1.08
"""Measured over predicted time without a stride (a single phase), because many channels are read for few pixels."""


class Part(NamedTuple):
    """The values of one phase of the stride that the kernel's template reads."""

    number: int
    volume: int
    taps: tuple[int, ...]
    w_first: tuple[int, ...]
    w_step: tuple[int, ...]
    at: int
    """Offset in the slot of the element that tap 0 of the first target element reads."""
    before: int
    """Offset of this phase's weights in a block of packed weights."""


class PhasesKernel(Kernel):
    """The kernel of one configuration: tiles of ``mr`` target channels by ``nv`` vectors of target pixels."""

    def __init__(self, problem: ConvProblem, config: Mapping[str, Any]) -> None:
        self.passes = all_passes = passes(problem)
        super().__init__(problem, config, max(all_passes, key=lambda each: each.volume * (not each.empty)))
        p, self.mr, self.nv = self.p, config["mr"], config["nv"]
        summed = [phase for phase in all_passes if not phase.empty]
        # Compute the slot's first row and column in the source, the source rows that a band reads beyond its height,
        # and the slot's pitch.
        self.zero = tuple(min((-phase.pad[axis] for phase in summed), default=0) for axis in (1, 2))
        reach = [
            max((-phase.pad[axis] - zero + (phase.taps[axis] - 1) * phase.spread[axis] for phase in summed), default=0)
            for axis, zero in zip((1, 2), self.zero, strict=True)
        ]
        self.height, self.width = (max(phase.places[axis] for phase in all_passes) for axis in (1, 2))
        self.wp = self.width + reach[1]
        self.rows = min(config["rows"], self.height)
        self.slot_rows = self.rows + reach[0]
        positions = (self.rows - 1) * self.wp + self.width
        self.vectors = max(cdiv(positions, self.lanes), self.nv)
        # The plane of a channel has an odd number of vectors, so that channels are spread over the sets of the cache.
        self.plane = (cdiv(self.slot_rows * self.wp, 16) | 1) * 16
        self.sums = self.vectors * self.lanes
        self.slot_x = p.c * self.plane + self.vectors * self.lanes + reach[1] + 80
        self.slot = cdiv(self.slot_x + len(all_passes) * self.mr * self.sums + self.lanes, 1024) * 1024 + 80
        self.blocks, self.bands = cdiv(p.n, self.mr), cdiv(self.height, self.rows)
        self.jobs = p.images * p.groups * self.bands * self.blocks
        self.items = min(self.jobs, config["items"])
        self.wblock = p.c * self.mr * sum(phase.volume for phase in summed)
        self.pack_c = max(1, min(p.c, 16384 // max(1, self.wblock // p.c)))
        """Source channels whose weights one work item packs."""
        self.packed_size = p.groups * self.blocks * self.wblock * self.size
        self.slots_size = self.items * self.slot * self.size
        areas = Areas(PAGE)
        areas.add(self.slots_size)
        self.packed_at = 0 if problem.constant_weights else areas.add(self.packed_size) // self.size
        self.workspace_size = areas.size

    @property
    def parts(self) -> list[Part]:
        """The values of all phases for the template, in the order of the phases."""
        result, weights_offset = [], 0
        for number, p in enumerate(self.passes):
            volume = 0 if p.empty else p.volume
            start = (-p.pad[1] - self.zero[0]) * self.wp - p.pad[2] - self.zero[1]
            source_offset = 0 if p.empty else start
            result.append(Part(number, volume, p.taps, p.w_first, p.w_step, source_offset, weights_offset))
            weights_offset += p.c * self.mr * volume
        return result

    def text(self) -> str:
        p, parts, lanes = self.p, self.parts, self.lanes
        text = self.macros(
            "", MR=self.mr, NV=self.nv, XH=p.source[1], XW=p.source[2], YH=p.target[1], YW=p.target[2], SH=p.stride[1],
            SW=p.stride[2], DH=p.spread[1], DW=p.spread[2], YH0=self.height, YW0=self.width, ROW0=f"({self.zero[0]})",
            C=p.c, N=p.n, G=p.groups, NB=self.blocks, R=self.rows, BANDS=self.bands, ROWS=self.slot_rows, WP=self.wp,
            PLANE=self.plane, SUMS=self.sums, SLOT=f"{self.slot}L", SLOT_X=self.slot_x, ITEMS=self.items,
            JOBS=f"{self.jobs}L", WBLOCK=f"{self.wblock}L", PACK_C=self.pack_c, WN=p.w_strides[0], WC=p.w_strides[1],
            KW=p.kernel[2], W_GROUP=math.prod(self.problem.w_shape) // p.groups,
        )  # fmt: skip
        low = min(self.wp, max(0, -self.zero[1]))
        high = max(low, min(self.wp, p.source[2] - self.zero[1]))
        order = zip((each.start[1] for each in self.passes), parts, strict=True)
        groups = itertools.groupby(order, key=lambda pair: pair[0])
        rows = [(first_row, [part for _, part in group]) for first_row, group in groups]
        values = {"phases": parts, "rows_of_phases": rows, "mr": self.mr, "nv": self.nv, "lanes": lanes}
        values |= {"step": p.stride[2], "low": low, "high": high, "x0": self.zero[1], "bias": self.problem.bias}
        values["shapes"] = sorted({part.taps[1:] for part in parts if part.volume})
        return text + self.rendered(["runs.cl"]) + self.rendered(["phases.cl.mako"], **values)

    def plan(self, context: Any) -> StepPlan:
        """Compile the packing of the weights, then one launch for all phases."""
        constant, weights_offset = self.problem.constant_weights, np.int64(self.packed_at)
        sizes = [self.p.groups * self.blocks, cdiv(self.p.c, self.pack_c)]
        pack = self.launch(context, "pack", sizes, ["w", "workspace", weights_offset])
        weights = "w" if constant else "workspace"
        arguments = [self.source, weights, weights_offset, "workspace", self.target, *self.extras]
        conv = self.launch(context, "conv", [self.items], arguments)
        key = ["implicitgemm.phases", str(self.problem), dict(self.config)]
        return StepPlan.packing(constant, self.workspace_size, [pack], [conv], self.packed_size, key)

    def cost(self, balance: Balance, device: DeviceInfo) -> float:
        """Return operations at peak rate: tiles, copied and written elements, launches, and packing."""
        p, nv = self.p, self.nv
        step = max(self.mr * nv, 2 * nv + self.mr, 8) + 1
        tiles = p.images * p.groups * self.bands * self.blocks * cdiv(self.vectors, nv)
        products = 2 * self.lanes * step * tiles * (self.wblock // self.mr)
        copies = min(self.blocks, max(1.0, self.items / (p.images * p.groups * self.bands)))
        copied_elements = p.images * p.groups * p.c * self.bands * self.slot_rows * self.wp * copies
        stored_elements = p.images * p.groups * p.n * math.prod(p.target)
        cost = OPERATION_OPS * products + STAGED_OPS * copied_elements + STORED_OPS * stored_elements
        launch = LAUNCH_OPS * balance.launch
        cost = cost * (SINGLE_PHASE_FACTOR if len(self.passes) == 1 else 1.0) + launch
        if not self.problem.constant_weights:
            packed = FAR_PACKED_OPS * balance.memory if self.packed_size > CACHED_BYTES else PACKED_OPS
            cost += packed * self.packed_size / self.size + launch
        return cost


class Phases(KernelSolver):
    """Solves NCHW data gradients on a CPU: vectors along the pixels of a row, all phases of a stride in one launch."""

    kernel = PhasesKernel

    def rejects(self, problem: ConvProblem, device: DeviceInfo) -> str | None:
        """Reject everything but NCHW data gradients in one or two dimensions whose rows fit a slot."""
        if problem.direction != "bwd_data":
            return f"bwd_data only, got {problem.direction}"
        if problem.layout != "nchw":
            return f"nchw only, got {problem.layout}"
        if problem.ndim > 2:
            return f"1 or 2 dimensions only, got {problem.ndim}"
        if problem.depthwise:
            return "more than one channel a group only"
        if problem.sh * problem.sw > 16:
            return f"strides of 16 phases at most, got {problem.sh * problem.sw}"
        if problem.mb < 1:
            return f"1 image or more, got {problem.mb}"
        if all(each.empty for each in passes(problem)):
            return "some tap that reaches the image only"
        size = PhasesKernel(problem, {**_base(problem, device), "items": 1}).slots_size
        if size > MAX_SLOT_BYTES:
            return f"rows of {MAX_SLOT_BYTES} bytes for all channels of a group at most, got {size}"
        return None

    def configs(self, problem: ConvProblem, device: DeviceInfo) -> Iterator[Mapping[str, Any]]:
        """Tiles and bands by predicted cost, the best first, then the best of other tiles."""
        yield from cheapest(self._rated(problem, device), _base(problem, device))

    def _rated(self, problem: ConvProblem, device: DeviceInfo) -> Iterator[tuple[Any, float, dict[str, Any]]]:
        """Yield (tile, cost, configuration) for tiles that fit the registers, with bands that fit a slot."""
        register_count, balance, base = registers(device), Balance.of(rates(device)), _base(problem, device)
        heights = band_heights(PhasesKernel(problem, base).height)
        for nv in range(1, 5):
            for mr in range(1, min(problem.ic // problem.g, 16) + 1):
                # Sums, source vectors and one weight share the registers: with 16 of them, tiles of 3 channels by 4
                # vectors took 1.7 to 2.1 times as long as 6 by 2.
                fits = mr * nv + nv + 1 <= register_count
                if mr * nv > register_count * 3 // 4 or mr + 2 * nv > 14 or not fits:
                    continue
                for rows in heights[:12]:
                    config = {**base, "mr": mr, "nv": nv, "rows": rows}
                    kernel = PhasesKernel(problem, config)
                    if rows == 1 or kernel.slot * kernel.size <= SLOT_BYTES:
                        yield (mr, nv), kernel.cost(balance, device), config


def _base(problem: ConvProblem, device: DeviceInfo) -> dict[str, Any]:
    """Return the configuration with the smallest tile and band."""
    lanes = lanes_of(device, problem.dtype)
    return {"lanes": lanes, "items": 4 * device.compute_units, "mr": 1, "nv": 1, "rows": 1}
