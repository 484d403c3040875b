"""``int8.words``: one channel per group, NHWC, on any device: a work item computes four channels of some pixels."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from convdispatch.api import ConvProblem, DeviceInfo, StepPlan, build, define, kernel_text, rates

from .packed_kernel import DepthwiseSolver, depthwise_refusal

MAX_TAPS = (1 << 22) // (255 * 128)
"""Most taps whose sum of 8-bit products can be extracted from the bits of a float32."""
GROUP_ITEMS = 128
"""Work items of a work group."""
TILES = ((1, 4), (2, 4), (1, 8), (2, 2), (1, 2), (1, 1))
"""(rows, columns) of output pixels that a work item computes."""
FIXED_INSTRUCTIONS = 150.0
"""Instructions of a work item that do not depend on its tile."""
READ_INSTRUCTIONS = 11.0
"""Instructions for each 32-bit word of x that a work item reads."""
PRODUCT_INSTRUCTIONS = 4.0
"""Instructions for each tap of each output pixel."""
EPILOGUE_INSTRUCTIONS = 36.0
"""Instructions of the epilogue of each output pixel."""
ISSUE_RATE, CPU_ISSUE_RATE = 0.35, 0.065
"""Instructions issued in the time of one operation at the device's peak rate; measured on an H200, and on two cores
with AVX2, where nine layers took 3.5 to 9 times what the GPU's rate predicts."""
FULL_ITEMS = 256
"""Work items that a multiprocessor needs to reach ``ISSUE_RATE``."""


class Words(DepthwiseSolver):
    """Depthwise quantized convolutions in NHWC."""

    channels = 4

    def rejects(self, problem: ConvProblem, device: DeviceInfo) -> str | None:
        reason = depthwise_refusal(problem)
        if reason:
            return reason
        if problem.oc % 4:
            return f"channels in multiples of 4, got {problem.oc}"
        taps = problem.kd * problem.kh * problem.kw
        if taps > MAX_TAPS:
            return f"{MAX_TAPS} taps at most, got {taps}"
        largest = max(math.prod(problem.x_shape), math.prod(problem.y_shape))
        return f"tensors of fewer than 2**31 elements, got {largest}" if largest >= 1 << 31 else None

    def configs(self, problem: ConvProblem, device: DeviceInfo) -> Iterator[dict[str, int]]:
        """Output pixels of a work item, the fastest by prediction first."""
        fits = [
            {"rows": rows, "columns": columns}
            for rows, columns in TILES
            if rows <= problem.oh and (columns <= problem.ow or columns == 1)
        ]
        yield from sorted(fits, key=lambda config: self.cost(problem, device, config))

    def _items(self, p: ConvProblem, config: Mapping[str, Any]) -> tuple[int, int, int]:
        """Work items along a row and a column of y, and all of them."""
        columns, rows = -(-p.ow // config["columns"]), -(-p.oh // config["rows"])
        return columns, rows, p.mb * p.od * rows * columns * (p.oc // 4)

    def cost(self, problem: ConvProblem, device: DeviceInfo, config: Mapping[str, Any]) -> float:
        p, peaks, (rows, columns) = problem, rates(device), (config["rows"], config["columns"])
        items = self._items(p, config)[2]
        x_columns = (columns - 1) * p.sw + (p.kw - 1) * p.dw + 1
        x_rows = (rows - 1) * p.sh + (p.kh - 1) * p.dh + 1
        taps = p.kd * p.kh * p.kw
        instructions = (
            FIXED_INSTRUCTIONS
            + READ_INSTRUCTIONS * p.kd * x_columns * x_rows
            + rows * columns * (PRODUCT_INSTRUCTIONS * taps + EPILOGUE_INSTRUCTIONS)
        )
        idle = max(1.0, FULL_ITEMS * max(1, device.compute_units) / items)
        bytes_moved = math.prod(p.x_shape) + math.prod(p.y_shape) * p.out_itemsize * (2 if p.residual else 1)
        issued = (CPU_ISSUE_RATE if device.type == "cpu" else ISSUE_RATE) * peaks.flops
        compute = items * instructions * idle / issued
        return peaks.launch + max(compute, bytes_moved / peaks.bandwidth)

    def plan(self, context: Any, problem: ConvProblem, config: Mapping[str, Any]) -> StepPlan:
        columns, rows, items = self._items(problem, config)
        sign_shift = 128 if problem.dtype == "int8" else 0
        text = problem.macros() + define(
            ROWS=config["rows"], COLUMNS=config["columns"], WORDS=problem.oc // 4, WIDE=columns, HIGH=rows, ITEMS=items,
            GROUP=GROUP_ITEMS, LOWER=sign_shift, FLIP=f"{sign_shift * 0x01010101}u",
        )  # fmt: skip
        program = build(context, text + kernel_text(__package__, "words.cl"))
        run = ((-(-items // GROUP_ITEMS) * GROUP_ITEMS,), (GROUP_ITEMS,))
        return self.launches(problem, program, run, ((problem.oc, problem.kd * problem.kh * problem.kw), None))
