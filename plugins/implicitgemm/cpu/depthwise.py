"""``implicitgemm.depthwise``: depthwise layers, forward and data gradient; vectors along channels or along pixels."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from convdispatch.api import MOST_PHASES, ConvProblem, DeviceInfo, Launch, StepPlan, define, phase_count, rates
from convdispatch.api.cpu import Balance, cdiv, registers
from convdispatch.api.cpu import lanes as lanes_of

from .depthwise_vectors import VectorKernel
from .kernel import PackedKernel, PackedSolver
from .passes import Pass, passes
from .places import MISFIT, fits

CACHED_TILE_BYTES = 32 * 1024
"""Most bytes of source rows and weights that a tile reads again at the next row: a first-level cache."""
MIN_BAND_ROWS = 4
"""Least rows of a band: neighbouring bands read some of the same source rows."""

# The constants of the cost model are in operations at the device's peak multiply-add rate, fitted by least squares of
# logarithms over 37 layers in NHWC.
LAUNCH_OPS = 5.8e6  # operations at peak rate in the time of the launch of one pass
PACK_LAUNCH_OPS = 2.5e6  # operations at peak rate in the time of the launch that packs the weights of one pass
PACKED_OPS = 160.0  # operations at peak rate per packed weight
OPERATION_OPS = 0.95  # operations at peak rate per operation of the direct sum
ELEMENT_OPS = 15.0  # operations at peak rate per element of x or y that is read or written


class RowKernel(PackedKernel):
    """The kernel of one pass in NHWC: rows are read from the tensor, and a vector holds consecutive channels."""

    slots_size = 0

    def __init__(self, p: Pass, problem: ConvProblem, config: Mapping[str, Any]) -> None:
        super().__init__(problem, config, p)
        self.ct = cdiv(p.groups, self.lanes) * self.lanes
        self.packed_size = self.ct * p.volume * self.size
        width = p.places[2]
        pixels = cdiv(width, cdiv(width, config["p"]))
        self.widths = [pixels, width % pixels] if width % pixels else [pixels]
        # A tile moves down the rows of a band. With few channels, the elements that the next row reads again are still
        # in the cache.
        columns = (pixels - 1) * p.step[2] + (p.taps[2] - 1) * p.spread[2] + 1
        cached_channels = CACHED_TILE_BYTES // (self.size * (columns * p.taps[0] * p.taps[1] + p.volume))
        max_channels = config["cb"] or max(self.lanes, cached_channels // self.lanes * self.lanes)
        self.cb = cdiv(cdiv(p.groups, cdiv(p.groups, max_channels)), self.lanes) * self.lanes
        self.chunks = cdiv(p.groups, self.cb)
        bands = cdiv(config["items"], p.images * p.places[0] * self.chunks)
        self.rows = min(p.places[1], max(MIN_BAND_ROWS, cdiv(p.places[1], bands)))
        self.bands = cdiv(p.places[1], self.rows)
        self.items = min(p.images * p.places[0] * self.bands * self.chunks, config["items"])

    def text(self) -> str:
        p = self.p
        tiles = [(self.widths[0], False), *((width, True) for width in self.widths)]
        text = self.macros("XYZTSDU", G=p.groups, ITEMS=self.items, CT=self.ct, WG=math.prod(p.kernel))
        text += p.kernel_macros() + define(R=self.rows, CB=self.cb, BANDS=self.bands, CHUNKS=self.chunks)
        values = {"tiles": tiles, "widths": self.widths, "taps_w": p.taps[2], "step_w": p.step[2]}
        values |= {"spread_w": p.spread[2], "bias": self.problem.bias}
        return text + self.rendered(("depthwise_nhwc.cl.mako", "depthwise_pack.cl"), **values)

    def packer(self, context: Any, offset: int) -> Launch:
        """Return the launch that packs w as [tap][channel]."""
        arguments = ["w", "workspace", np.int64(offset // self.size), *map(np.int32, self.p.w_first)]
        return self.launch(context, "pack", [self.ct // self.lanes], arguments)

    def convolution(self, context: Any, weights: str, offset: int) -> Launch:
        arguments = [self.source, weights, np.int64(offset // self.size), self.target, *self.problem.epilogue_operands]
        arguments += [np.int32(v) for v in (*self.p.pad, *self.p.start)]
        return self.launch(context, "depthwise", [self.items], arguments)


class Depthwise(PackedSolver):
    """Solves layers of one input and one output channel per group on a CPU: forward and data gradient."""

    def rejects(self, problem: ConvProblem, device: DeviceInfo) -> str | None:
        if problem.direction == "bwd_weights":
            return "forward and bwd_data only, got bwd_weights"
        if not problem.ic == problem.oc == problem.g:
            return f"one channel in and out a group only, got {problem.ic} and {problem.oc} in {problem.g} groups"
        if problem.kh * problem.kw > 49:
            return f"49 taps a plane at most, got {problem.kh}x{problem.kw}"
        if problem.layout == "nhwc" and problem.g < 4:
            return f"vectors of 4 channels at least where channels are last, got {problem.g}"
        if phase_count(problem) > MOST_PHASES:
            return f"strides of {MOST_PHASES} phases at most, got {phase_count(problem)}"
        if problem.layout == "nchw" and not fits(problem, lanes_of(device, problem.dtype)):
            return MISFIT
        return f"1 image or more, got {problem.mb}" if problem.mb < 1 else None

    def configs(self, problem: ConvProblem, device: DeviceInfo) -> Iterator[Mapping[str, Any]]:
        """For NHWC: output pixels ``p`` of a tile and channels ``cb`` of a pass over a band (0: as many as the cache
        holds). For NCHW: vectors ``rows`` of a tile."""
        lanes = lanes_of(device, problem.dtype)
        base: dict[str, Any] = {"lanes": lanes, "items": 16 * device.compute_units}
        if problem.layout == "nchw":
            vectors = 6 if registers(device) > 16 else 3
            yield from ({**base, "rows": rows} for rows in (vectors, vectors - 2, vectors + 2))
            return
        while lanes > problem.g:
            lanes //= 2
        # A tile of 8 output pixels reads twice as many columns under a stride: with tiles of 4, 5x5 layers of stride 2
        # take a tenth less time.
        pixels = 8 if problem.sw == 1 else 4
        base |= {"lanes": lanes, "p": pixels, "cb": 0}
        yield base
        yield {**base, "p": 12 - pixels}
        yield {**base, "cb": 4 * lanes}
        yield {**base, "cb": problem.g}

    def kernels(self, problem: ConvProblem, config: Mapping[str, Any], device: Any) -> list[RowKernel]:
        return [RowKernel(p, problem, config) for p in passes(problem)]

    def pack_key(self, problem: ConvProblem, config: Mapping[str, Any], kernels: list[Any]) -> Any:
        taps = [(kernel.p.taps, kernel.p.w_first, kernel.p.w_step) for kernel in kernels]
        return [self.name, problem.dtype, problem.layout, problem.direction, problem.w_shape, taps, config["lanes"]]

    def workspace(self, problem: ConvProblem, device: DeviceInfo, config: Mapping[str, Any]) -> int:
        """Return the bytes of packed weights in NHWC unless they are constant."""
        return 0 if "rows" in config else super().workspace(problem, device, config)

    def cost(self, problem: ConvProblem, device: DeviceInfo, config: Mapping[str, Any]) -> float:
        if "rows" in config:
            return VectorKernel(problem, config).seconds(device)
        peaks = rates(device)
        launch = LAUNCH_OPS if problem.constant_weights else LAUNCH_OPS + PACK_LAUNCH_OPS
        packed = 0.0 if problem.constant_weights else PACKED_OPS * math.prod(problem.w_shape)
        launches = len(passes(problem)) * launch * Balance.of(peaks).launch
        elements = ELEMENT_OPS * (math.prod(problem.x_shape) + math.prod(problem.y_shape))
        return (launches + OPERATION_OPS * problem.flops + elements + packed) / peaks.flops

    def plan(self, context: Any, problem: ConvProblem, config: Mapping[str, Any]) -> StepPlan:
        """Compile the kernel that computes from registers if ``config`` has ``rows``, otherwise the packed kernels."""
        if "rows" in config:
            return VectorKernel(problem, config).plan(context)
        return super().plan(context, problem, config)
