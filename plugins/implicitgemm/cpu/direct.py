"""``implicitgemm.direct``: forward and data gradient by register tiles over bands of rows, for every geometry."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from convdispatch.api import MOST_PHASES, ConvProblem, DeviceInfo, Launch, phase_count, rates
from convdispatch.api.cpu import Balance, cdiv
from convdispatch.api.cpu import lanes as lanes_of

from .kernel import PackedKernel, PackedSolver
from .passes import Pass, passes
from .tiles import configs_of, default, odd_lines, predicted, source_width, straight

# The constants of the cost model are in operations at the device's peak multiply-add rate, fitted together with those
# of ``tiles``.

# Operations at peak rate per weight that is packed alone (False), or in squares that registers transpose (True)
PACKED_OPS = {False: 145.0, True: 60.0}
FAR_PACKED_OPS = 240.0  # operations at peak rate per packed weight, if the packed weights exceed CACHED_BYTES
CACHED_BYTES = 6 << 20  # bytes of packed weights that the caches hold
LAUNCH_OPS = 3.7e6  # operations at peak rate in the time of one kernel launch


class PassKernel(PackedKernel):
    """The kernel of one dense pass under one configuration."""

    def __init__(self, p: Pass, problem: ConvProblem, config: Mapping[str, Any]) -> None:
        super().__init__(problem, config, p)
        self.nvl = config["nv"] * self.lanes
        self.cb = config["cb"]
        self.ncb = cdiv(p.c, self.cb)
        self.blocks = cdiv(p.n, self.nvl)
        rows = (config["rows"] - 1) * p.step[1] + (p.taps[1] - 1) * p.spread[1] + 1
        self.width = source_width(p)
        self.cp, self.wp = odd_lines(self.cb), odd_lines(self.width)
        line = self.width * self.cp if p.nhwc else self.wp * self.cb
        self.slot_block = p.taps[0] * rows * line
        self.slot_x = cdiv(self.ncb * self.slot_block, 16) * 16
        self.straight = straight(p, self.cb)
        sums = 0 if self.straight else config["rows"] * p.places[2] * self.nvl
        self.slot = cdiv(self.slot_x + sums, 1024) * 1024 + 80
        self.wblock = p.c * p.volume * self.nvl
        self.pack_c = max(1, min(p.c, 16384 // (p.volume * self.nvl)))
        """Source channels whose weights one work item packs."""
        pads = (getattr(problem, f"p{axis}{side}") for axis in problem.axes for side in ("", "_r"))
        padded = problem.direction == "fwd" and any(pad > 0 for pad in pads)
        self.nonfinite = p.groups * self.blocks * self.wblock if padded else 0
        """Offset in the packed weights, in elements, of the flags that mark infinities and NaNs; 0 without flags, which
        only forward convolutions with padding need."""
        flags = p.groups * self.blocks * cdiv(p.c, self.pack_c) if padded else 0
        self.packed_size = (p.groups * self.blocks * self.wblock + flags) * self.size
        self.slots_size = config["items"] * config["parts"] * self.slot * self.size

    def text(self) -> str:
        p, config, problem = self.p, self.config, self.problem
        text = self.macros(
            "XYZTSDU", NVL=self.nvl, NV=config["nv"], G=p.groups, C=p.c, N=p.n, CB=self.cb, NCB=self.ncb,
            NB=self.blocks, R=config["rows"], PR=config["pr"], PC=config["pc"], ITEMS=config["items"],
            PARTS=config["parts"], CP=self.cp, WP=self.wp, SLOT=f"{self.slot}L", SLOT_X=self.slot_x,
            SLOT_BLOCK=self.slot_block, WBLOCK=f"{self.wblock}L", INTER=int(p.nhwc), PACK_C=self.pack_c,
            NONFINITE=f"{self.nonfinite}L" if self.nonfinite else 0, FOLD=p.fold, YW_ALL=p.width or p.places[2],
            WN=p.w_strides[0], WC=p.w_strides[1], WT=p.w_strides[2],
            W_GROUP=problem.w_shape[0] // p.groups * (problem.ic // problem.g * problem.kd * problem.kh * problem.kw),
        ) + p.kernel_macros()  # fmt: skip
        width, rest = config["pc"], p.places[2] % config["pc"]
        values = {
            "lanes": self.lanes, "nv": config["nv"], "pr": config["pr"], "widths": [width, rest] if rest else [width],
            "inter": p.nhwc, "c": p.c, "cp": self.cp, "groups": p.groups, "straight": self.straight,
            "runs": p.spread[2] == 1 and self.cp == p.c, "dense": p.dense, "fold": p.fold, "bias": problem.bias,
        }  # fmt: skip
        text += self.rendered(["pack.cl.mako"], lanes=self.lanes, turned=self.turned)
        finish_files = [] if self.straight else ["finish.cl.mako"]
        return text + self.rendered(("stage.cl.mako", *finish_files, "direct.cl.mako"), **values)

    @property
    def turned(self) -> bool:
        """Whether a target channel's weights are contiguous in the order of the tile's loops."""
        p = self.p
        if p.fold > 1 or p.empty or p.volume != math.prod(p.kernel) or any(p.w_first) or set(p.w_step) != {1}:
            return False
        order = (1, p.c) if p.nhwc else (p.volume, 1)
        return p.w_strides[1:] == order and (not p.nhwc or self.ncb == 1)

    def packer(self, context: Any, offset: int) -> Launch:
        arguments = ["w", "workspace", np.int64(offset // self.size), *map(np.int32, self.p.w_first)]
        return self.launch(context, "pack", [cdiv(self.p.c, self.pack_c), self.p.groups * self.blocks], arguments)

    def convolution(self, context: Any, weights: str, offset: int) -> Launch:
        arguments = [self.source, weights, np.int64(offset // self.size), "workspace", np.int64(0), self.target]
        arguments += [*self.problem.epilogue_operands, *(np.int32(v) for v in (*self.p.pad, *self.p.start))]
        return self.launch(context, "conv", [self.config["items"], self.config["parts"]], arguments)


class Direct(PackedSolver):
    """Register tiles over bands of rows: any rank, group, stride, dilation, padding, layout and dtype."""

    def rejects(self, problem: ConvProblem, device: DeviceInfo) -> str | None:
        if problem.direction == "bwd_weights":
            return "forward and bwd_data only, got bwd_weights"
        if phase_count(problem) > MOST_PHASES:
            return f"strides of {MOST_PHASES} phases at most, got {phase_count(problem)}"
        return f"1 image or more, got {problem.mb}" if problem.mb < 1 else None

    def configs(self, problem: ConvProblem, device: DeviceInfo) -> Iterator[Mapping[str, Any]]:
        """Tiles and blocks for the largest pass; the other passes use their own best configurations."""
        lanes = lanes_of(device, problem.dtype)
        largest = max(_passes(problem, lanes), key=lambda p: p.flops)
        for config in configs_of(largest, device):
            yield {"lanes": lanes, **config}

    def kernels(self, problem: ConvProblem, config: Mapping[str, Any], device: Any) -> list[PassKernel]:
        all_passes = _passes(problem, config["lanes"])
        largest = max(all_passes, key=lambda p: p.flops)
        kernels = []
        for p in all_passes:
            same = (p.places, p.taps, p.c) == (largest.places, largest.taps, largest.c)
            kernels.append(PassKernel(p, problem, config if same else {**config, **default(p, device)}))
        return kernels

    def cost(self, problem: ConvProblem, device: DeviceInfo, config: Mapping[str, Any]) -> float:
        kernels, peaks = self.kernels(problem, config, device), rates(device)
        balance = Balance.of(peaks)
        launch, far_ops = LAUNCH_OPS * balance.launch, FAR_PACKED_OPS * balance.memory
        cost = sum(predicted(kernel.p, kernel.config, device) for kernel in kernels) + launch * len(kernels)
        if not problem.constant_weights:
            cost += sum(
                (far_ops if kernel.packed_size > CACHED_BYTES else PACKED_OPS[kernel.turned])
                * kernel.packed_size
                / kernel.size
                + launch
                for kernel in kernels
            )
        return cost / peaks.flops


def _passes(problem: ConvProblem, lanes: int) -> list[Pass]:
    return [p.folded(lanes) for p in passes(problem)]
