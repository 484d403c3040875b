"""``int8.depthwise``: one channel per group, NHWC, on CPUs, by vectors of channels in float32 (the sums are exact)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from convdispatch.api import ConvProblem, DeviceInfo, StepPlan, build, define, kernel_text, rates
from convdispatch.api.cpu import registers, uneven

from .packed_kernel import LAUNCH_COST, ONCE, DepthwiseSolver, depthwise_refusal

MAX_TAPS = (1 << 24) // (255 * 128)
"""Most taps whose sum of 8-bit products is exact in float32."""
MAX_ROW_TAPS = 16
WORK_COST = 3.0
"""Cost of one operation of the convolution, in operations at the device's peak rate."""
STORE_COST = 500.0
"""Cost of storing sixteen elements of y, in operations at the device's peak rate."""
EPILOGUE_PRODUCTS = 10
"""Cost of the epilogue of a vector of sums, in products of vectors."""


class Depthwise(DepthwiseSolver):
    """Depthwise quantized convolutions in NHWC."""

    channels = 16

    def rejects(self, problem: ConvProblem, device: DeviceInfo) -> str | None:
        reason = depthwise_refusal(problem)
        if reason:
            return reason
        if problem.oc < 16:
            return f"16 channels or more, got {problem.oc}"
        taps = problem.kd * problem.kh * problem.kw
        if taps > MAX_TAPS or problem.kw > MAX_ROW_TAPS:
            return f"{MAX_TAPS} taps, {MAX_ROW_TAPS} of a row at most, got {taps} and {problem.kw}"
        return None

    def configs(self, problem: ConvProblem, device: DeviceInfo) -> Iterator[dict[str, Any]]:
        """Columns of y per block, as many as registers hold, and rows per task so that each unit has four tasks."""
        p, max_columns = problem, max(1, (registers(device) - 4 - problem.kw) // (2 if problem.kw < 7 else 3))
        rows = max(1, p.od * p.oh * p.mb // (4 * device.compute_units))

        def row_cost(columns: int) -> float:
            """Relative cost of a row of y in whole blocks of ``columns``: products, reads, and the epilogue."""
            reads = (columns - 1) * p.sw + (p.kw - 1) * p.dw + 1
            return -(-p.ow // columns) * (p.kd * p.kh * (columns * p.kw + 2 * reads) + EPILOGUE_PRODUCTS * columns)

        best = min(range(1, min(max_columns, p.ow) + 1), key=lambda columns: (row_cost(columns), columns))
        for columns in dict.fromkeys((best, min(max_columns, p.ow), max(1, best // 2))):
            yield {"columns": columns, "rows": min(rows, p.od * p.oh)}

    def cost(self, problem: ConvProblem, device: DeviceInfo, config: Mapping[str, Any]) -> float | None:
        peaks, elements = rates(device), math.prod(problem.y_shape)
        jobs = problem.mb * -(-problem.od * problem.oh // config["rows"])
        operations = (WORK_COST * problem.flops + STORE_COST * elements / 16) * uneven(jobs, device)
        return peaks.launch + (LAUNCH_COST + operations) / peaks.flops

    def plan(self, context: Any, problem: ConvProblem, config: Mapping[str, Any]) -> StepPlan:
        blocks = -(-problem.oc // 16)
        text = problem.macros() + ONCE
        text += define(COLUMNS=config["columns"], ROWS=config["rows"], BLOCKS=blocks, CHANNEL=1)
        text += kernel_text(__package__, "put.cl") + kernel_text(__package__, "depthwise.cl")
        items = (-(-problem.od * problem.oh // config["rows"]), problem.mb, 1)
        pack_items = (blocks, problem.kd * problem.kh * problem.kw, 16)
        run, pack = (items, (1, 1, 1)), (pack_items, (1, 1, 16))
        return self.launches(problem, build(context, text), run, pack)
