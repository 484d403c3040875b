"""``implicitgemm.depthwise_transposed``: transposed depthwise layers, which are strided data gradients, in NCHW."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from convdispatch.api import ConvProblem, DeviceInfo, StepPlan, define
from convdispatch.api.cpu import Balance, cdiv, round_up, uneven
from convdispatch.api.cpu import lanes as lanes_of

from ..solving import KernelSolver
from .kernel import Kernel
from .passes import forward_pass

MAX_SOURCES = 4
"""Most channels of y per group: a kernel for more would be a matrix product."""
BLOCK_VECTORS = 4
"""Vectors of sums that are in registers at the same time: enough to hide the latency of a multiply-add."""
MAX_SLOT_BYTES = 1 << 26
"""Most bytes of a work item's slot, which holds a plane of y whose rows are spread by the stride."""

# The constants of the cost model are in operations at the device's peak multiply-add rate; they predict nine layers of
# one to three axes within a factor of two.
LAUNCH_OPS = 4.8e6  # operations at peak rate in the time of the one kernel launch
SPREAD_OPS = 20.0  # operations at peak rate per element of a row of y that is spread by the stride
TAP_OPS = 5.0  # operations at peak rate per element of a row of sums and run of taps
WRITTEN_OPS = 12.0  # operations at peak rate per element of x that is set to zero and written
ROW_END_ELEMENTS = 64  # elements of a row in the time that both ends of the row take


class TransposedKernel(Kernel):
    """The strided depthwise data gradient under one configuration: sizes, text and launch."""

    def __init__(self, problem: ConvProblem, config: Mapping[str, Any]) -> None:
        super().__init__(problem, config, forward_pass(problem))
        p, lanes = problem, self.lanes
        sources, rows = p.oc // p.g, p.id * p.ih
        planes = p.mb * p.ic
        self.rows = cdiv(rows, min(rows, max(1, cdiv(config["items"], planes))))
        self.bands = cdiv(rows, self.rows)
        self.items = min(planes * self.bands, config["items"])
        self.pitch = p.ow * p.sw
        tap_row = p.sw + BLOCK_VECTORS * lanes
        self.table = round_up(sources * p.od * p.oh * self.pitch + lanes, lanes)
        self.mask = self.table + round_up(sources * p.kd * p.kh * cdiv(p.kw, p.sw) * tap_row, lanes)
        self.sums = self.mask + round_up(tap_row, lanes)
        self.length = round_up(max(p.pw + p.iw, (p.ow + cdiv(p.kw, p.sw)) * p.sw), lanes)
        self.front = round_up(p.kw, lanes)
        self.slot = self.front + self.sums + self.length + lanes
        self.workspace_size = self.items * self.slot * self.size

    def text(self) -> str:
        p = self.problem
        text = p.macros().replace("#define OD ", "#define YD ").replace("#define OH ", "#define YH ")
        text = text.replace("#define OW ", "#define YW ")
        text += self.vector_macros() + define(
            KEPT_1={4: "int", 8: "long"}[p.accumulator_size], XD=p.id, XH=p.ih, XW=p.iw, IMAGES=p.mb, ITEMS=self.items,
            BANDS=self.bands, ROWS=self.rows, SLOT=self.slot, PITCH=self.pitch, TABLE=self.table, MASK=self.mask,
            SUMS=self.sums, LENGTH=self.length, LEAD=self.front,
        )  # fmt: skip
        values = {"bias": p.bias, "rest": p.kw % p.sw, "block": BLOCK_VECTORS, "lanes": self.lanes}
        return text + self.rendered(["depthwise_transposed.cl.mako"], **values)

    def plan(self, context: Any) -> StepPlan:
        operands = ["y", "w", "x", *self.problem.epilogue_operands, "workspace"]
        return StepPlan(self.workspace_size, [self.launch(context, "transposed", [self.items], operands)])

    def cost(self, balance: Balance, device: DeviceInfo) -> float:
        p = self.problem
        spread_elements = p.ic // p.g * math.prod(p.y_shape) * p.sw
        rows = p.mb * p.ic * p.id * p.ih
        runs = p.flops / (2 * p.ow * p.kw) * cdiv(p.kw, p.sw)
        work_ops = SPREAD_OPS * spread_elements + TAP_OPS * runs * (ROW_END_ELEMENTS + self.pitch)
        work_ops += WRITTEN_OPS * rows * (ROW_END_ELEMENTS + self.length)
        return LAUNCH_OPS * balance.launch + work_ops * uneven(self.items, device)


class DepthwiseTransposed(KernelSolver):
    """Solves strided data gradients of few channels per group on a CPU, for kernels without dilation along w."""

    kernel = TransposedKernel

    def rejects(self, problem: ConvProblem, device: DeviceInfo) -> str | None:
        if problem.direction != "bwd_data":
            return f"bwd_data only, got {problem.direction}"
        if problem.layout != "nchw":
            return f"nchw only, got {problem.layout}"
        if problem.oc // problem.g > MAX_SOURCES:
            return f"{MAX_SOURCES} output channels a group at most, got {problem.oc // problem.g}"
        if max(problem.sd, problem.sh, problem.sw) == 1:
            return "a stride only, got none"
        if problem.dw > 1 and problem.kw > 1:
            return f"dilation 1 along w only, got {problem.dw}"
        if problem.mb < 1:
            return f"1 image or more, got {problem.mb}"
        slot = TransposedKernel(problem, {"lanes": 16, "items": 1}).slot * 8
        if slot > MAX_SLOT_BYTES:
            return f"planes of {MAX_SLOT_BYTES} bytes at most, got {slot}"
        return None

    def configs(self, problem: ConvProblem, device: DeviceInfo) -> Iterator[Mapping[str, Any]]:
        """Yield configurations with 4 and with 16 work items per compute unit."""
        for items_per_unit in (4, 16):
            yield {"lanes": lanes_of(device, problem.dtype), "items": items_per_unit * device.compute_units}
