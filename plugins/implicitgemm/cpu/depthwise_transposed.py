"""``implicitgemm.depthwise_transposed``: transposed depthwise layers, which are data gradients of a stride, in NCHW."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from convdispatch.api import (
    DTYPES,
    OPERANDS,
    ConvProblem,
    DeviceInfo,
    Launch,
    Solver,
    StepPlan,
    build,
    define,
    kernel_text,
    rates,
)
from convdispatch.api.cpu import Balance, cdiv, uneven
from convdispatch.api.cpu import lanes as lanes_of

_MOST_SOURCES = 4
"""Channels of y a group: a kernel for more would be a matrix product."""
_BLOCK = 4
"""Vectors of sums that are computed at a time: as many as hide a multiply-add's latency."""
_MOST_SLOT = 1 << 26
"""Bytes of a work item's memory, which holds a plane of y spread along its rows."""


class TransposedKernel:
    """One configuration, worked out without compiling."""

    def __init__(self, problem: ConvProblem, config: Mapping[str, Any]) -> None:
        self.problem, self.config, self.lanes = problem, config, config["lanes"]
        p, lanes = problem, self.lanes
        self.sources, rows = p.oc // p.g, p.id * p.ih
        self.planes = p.mb * p.ic
        self.rows = cdiv(rows, min(rows, max(1, cdiv(config["items"], self.planes))))
        self.bands = cdiv(rows, self.rows)
        self.items = min(self.planes * self.bands, config["items"])
        self.pitch = p.ow * p.sw
        turn = p.sw + _BLOCK * lanes
        self.table = _up(self.sources * p.od * p.oh * self.pitch + lanes, lanes)
        self.mask = self.table + _up(self.sources * p.kd * p.kh * cdiv(p.kw, p.sw) * turn, lanes)
        self.sums = self.mask + _up(turn, lanes)
        self.length = _up(max(p.pw + p.iw, (p.ow + cdiv(p.kw, p.sw)) * p.sw), lanes)
        self.lead = _up(p.kw, lanes)
        self.slot = self.lead + self.sums + self.length + lanes

    @property
    def workspace_size(self) -> int:
        """Bytes of the work items' slots."""
        return self.items * self.slot * (8 if self.problem.dtype == "float64" else 4)

    def text(self) -> str:
        """The program."""
        p, accumulator = self.problem, DTYPES[self.problem.dtype].accumulator
        kept = "long" if p.dtype == "float64" else "int"
        text = p.macros().replace("#define OD ", "#define YD ").replace("#define OH ", "#define YH ")
        text = text.replace("#define OW ", "#define YW ")
        text += define(LANES=self.lanes, V=f"{accumulator}{self.lanes}", KEPT=f"{kept}{self.lanes}", KEPT_1=kept)
        text += define(XD=p.id, XH=p.ih, XW=p.iw, IMAGES=p.mb, ITEMS=self.items, BANDS=self.bands, ROWS=self.rows)
        text += define(SLOT=self.slot, PITCH=self.pitch, TABLE=self.table, MASK=self.mask, SUMS=self.sums)
        text += define(LENGTH=self.length, LEAD=self.lead)
        return text + kernel_text(__package__, "depthwise_transposed.cl.mako", bias=p.bias, rest=p.kw % p.sw,
                                  block=_BLOCK, lanes=self.lanes)  # fmt: skip

    def plan(self, context: Any) -> StepPlan:
        """Compile."""
        extras = [part for part in ("bias", "residual") if getattr(self.problem, part)]
        operands = ["y", "w", "x", *extras, "workspace"]
        program = build(context, self.text())
        launch = Launch(program, "transposed", (self.items, 1, 1), (1, 1, 1), operands, names=OPERANDS)
        return StepPlan(self.workspace_size, [launch])


class DepthwiseTransposed(Solver):
    """Data gradients of a stride and few channels a group, on a CPU: every kernel that is dense along w."""

    def rejects(self, problem: ConvProblem, device: DeviceInfo) -> str | None:
        """Anything but an NCHW data gradient of a stride."""
        if problem.direction != "bwd_data":
            return f"bwd_data only, got {problem.direction}"
        if problem.layout != "nchw":
            return f"nchw only, got {problem.layout}"
        if problem.oc // problem.g > _MOST_SOURCES:
            return f"{_MOST_SOURCES} output channels a group at most, got {problem.oc // problem.g}"
        if max(problem.sd, problem.sh, problem.sw) == 1:
            return "a stride only, got none"
        if problem.dw > 1 and problem.kw > 1:
            return f"dilation 1 along w only, got {problem.dw}"
        if problem.mb < 1:
            return f"1 image or more, got {problem.mb}"
        slot = TransposedKernel(problem, {"lanes": 16, "items": 1}).slot * 8
        if slot > _MOST_SLOT:
            return f"planes of {_MOST_SLOT} bytes at most, got {slot}"
        return device.supports(problem.dtype)

    def configs(self, problem: ConvProblem, device: DeviceInfo) -> Iterator[Mapping[str, Any]]:
        """Work items for a compute unit."""
        for each in (4, 16):
            yield {"lanes": lanes_of(device, problem.dtype), "items": each * device.compute_units}

    def workspace(self, problem: ConvProblem, device: DeviceInfo, config: Mapping[str, Any]) -> int:
        """The work items' slots."""
        return TransposedKernel(problem, config).workspace_size

    def cost(self, problem: ConvProblem, device: DeviceInfo, config: Mapping[str, Any]) -> float:
        """The launch, rows that are spread, taps, and rows that are written."""
        known = rates(device)
        kernel = TransposedKernel(problem, config)
        spread = problem.ic // problem.g * math.prod(problem.y_shape) * problem.sw
        rows = problem.mb * problem.ic * problem.id * problem.ih
        runs = problem.flops / (2 * problem.ow * problem.kw) * cdiv(problem.kw, problem.sw)
        work = _SPREAD * spread + _TAP * runs * (_RUN + kernel.pitch) + _WRITTEN * rows * (_RUN + kernel.length)
        return (_LAUNCH * Balance.of(known).launch + work * uneven(kernel.items, device)) / known.flops

    def plan(self, context: Any, problem: ConvProblem, config: Mapping[str, Any]) -> StepPlan:
        """Compile."""
        return TransposedKernel(problem, config).plan(context)


_LAUNCH = 4.8e6
"""Operations of the peak in the time of a launch."""
_SPREAD = 20.0
"""The same of an element of a spread row."""
_TAP = 5.0
"""The same of an element of a row of sums, for one run of taps."""
_WRITTEN = 12.0
"""The same of an element that is set to zero and written."""
_RUN = 64
"""Elements in the time of a row's ends. All five: over nine layers of one to three axes, within a factor of two."""


def _up(size: int, unit: int) -> int:
    return cdiv(size, unit) * unit
