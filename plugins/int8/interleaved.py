"""``int8.interleaved``: depthwise in NHWC by AVX512-VNNI; one instruction sums the bytes of four lines of x."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from typing import Any

from convdispatch.api import Areas, ConvProblem, DeviceInfo, StepPlan, define, kernel_text, rates
from convdispatch.api.cpu import PAGE, uneven

from .interleaved_code import Product, depthwise_columns, interleave
from .packed_kernel import LAUNCH_COST, MAX_SLOT_BYTES, ONCE, PackedKernel, PackedSolver, depthwise_refusal
from .probe import require
from .vector_code import NUMBERS, number_macros
from .vectors import PROBED, VectorsKernel

COLUMNS_AT_ONCE = 4
"""Output columns that are computed together: the sums of two rows of them, and the weights, fit in registers."""
SHORT_ELEMENTS = 1 << 20
"""Elements of y below which the start-up of work items costs more than an uneven division of the work."""
CYCLE_COST = 64.0
"""Cost of one cycle of a compute unit, in operations at the device's peak rate."""
PACK_COST = 100
"""Cost of packing one byte of weights, in operations at the device's peak rate."""


class InterleavedKernel(PackedKernel):
    def __init__(self, problem: ConvProblem, config: Mapping[str, Any]) -> None:
        p = self.problem = problem
        self.tall, self.size = config["rows"], p.oc // config["shares"]
        taps = list(itertools.product(range(p.kd), range(p.kh)))
        self.lines = sorted(
            {(d * p.dd, row * p.sh + h * p.dh) for d, h in taps for row in range(self.tall)}
        )  # fmt: skip
        self.groups = -(-len(self.lines) // 4)
        self.phase = p.ow + (p.kw - 1) * p.dw // p.sw
        self.pitch = 4 * self.size
        self.products: list[Product] = []
        self.vectors: list[list[int]] = []
        """For each vector of weights, the taps of its four lines; -1 for a line that no tap reads."""
        for group, row in itertools.product(range(self.groups), range(self.tall)):
            taps_of_lines = [-1] * 4
            for tap, (d, h) in enumerate(taps):
                line = self.lines.index((d * p.dd, row * p.sh + h * p.dh))
                if line // 4 == group:
                    taps_of_lines[line % 4] = tap
            for j in range(p.kw if max(taps_of_lines) >= 0 else 0):
                position = (group * p.sw + j * p.dw % p.sw) * self.phase + j * p.dw // p.sw
                self.products.append(Product(position * self.pitch, len(self.vectors), row))
                self.vectors.append([tap if tap < 0 else tap * p.kw + j for tap in taps_of_lines])
        self.high = -(-p.oh // self.tall)
        self.jobs = p.mb * p.od * self.high * config["shares"]
        self.items = min(self.jobs, config["items"])
        self.w_sums = p.oc // 16 * len(self.vectors) * 64
        self.packed_size = self.w_sums + 4 * p.oc
        self.parts = Areas(64)
        self.parts.add(self.groups * p.sw * self.phase * self.pitch + 64)
        sizes = (p.iw * p.ic + 64, p.ow * p.oc, 8 * self.size, 4 * NUMBERS["sums"])
        self.part_offsets = [self.parts.add(size) for size in sizes]
        self.slot = -(-self.parts.size // PAGE) * PAGE

    def columns(self) -> tuple[list[int], list[int]]:
        """For each remainder modulo the stride, the first slot column inside x, and the first one behind x."""
        p = self.problem
        begin = [min(self.phase, max(0, -(-(p.pw - remainder) // p.sw))) for remainder in range(p.sw)]
        stop = [min(self.phase, max(0, -(-(p.iw + p.pw - remainder) // p.sw))) for remainder in range(p.sw)]
        return begin, [max(pair) for pair in zip(begin, stop, strict=True)]

    def text(self) -> str:
        p, (begin, stop) = self.problem, self.columns()
        one_run = p.sw == 1 and self.size == p.ic and begin[0] < stop[0]
        text = p.macros() + ONCE + number_macros()
        zeros, spare, shifts, numbers = self.part_offsets
        text += define(
            FLIP=0x80 if p.dtype == "int8" else 0, LINES=len(self.lines), GROUPS=self.groups, TALL=self.tall,
            HIGH=self.high, SIZE=self.size, SHARES=p.oc // self.size, PHASE=self.phase, ACROSS=COLUMNS_AT_ONCE,
            REST=p.ow % COLUMNS_AT_ONCE, VECTORS=len(self.vectors), W_SUMS=f"{self.w_sums}L", JOBS=f"{self.jobs}L",
            ITEMS=f"{self.items}L", SLOT=f"{self.slot}L", ZEROS=f"{zeros}L", SPARE_AT=f"{spare}L",
            SHIFTS_AT=f"{shifts}L", NUMBERS_AT=f"{numbers}L", CHANNEL=1, ONE_RUN=int(one_run),
        )  # fmt: skip
        tables = {
            "LINE_D": [d for d, _ in self.lines], "LINE_H": [h for _, h in self.lines], "BEGIN": begin, "STOP": stop,
            "TAP": list(itertools.chain(*self.vectors)),
        }  # fmt: skip
        for name, values in tables.items():
            text += f"constant int {name}[{len(values)}] = {{{', '.join(map(str, values))}}};\n"
        run_bytes = (stop[0] - begin[0]) * p.ic if one_run else self.size
        text += interleave("interleave", run_bytes, run_bytes if one_run else p.sw * p.ic, p.dtype == "int8")
        for name, columns in (
            ("whole", COLUMNS_AT_ONCE if p.ow >= COLUMNS_AT_ONCE else 0),
            ("rest", p.ow % COLUMNS_AT_ONCE),
        ):
            if columns:
                fixed = self.products, self.pitch, p.oc, str(p.out_dtype)
                text += depthwise_columns(name, columns, self.tall, *fixed)
        return text + "".join(kernel_text(__package__, name) for name in ("put.cl", "numbers.cl", "interleaved.cl"))

    @property
    def packing(self) -> tuple[int, int, int]:
        """Global size of the launch that packs weights: one work group per vector of 16 channels."""
        return self.problem.oc // 16, 16, 1

    packing_group = 1, 16, 1

    @property
    def pack_key(self) -> list[Any]:
        return ["int8.interleaved", *self.problem.w_shape, self.vectors]


class Interleaved(PackedSolver):
    """Depthwise quantized convolutions in NHWC whose y has 8-bit elements."""

    kernel = InterleavedKernel

    def rejects(self, problem: ConvProblem, device: DeviceInfo) -> str | None:
        p, reason = problem, depthwise_refusal(problem)
        if reason:
            return reason
        if p.oc % 16:
            return f"channels in multiples of 16 only, got {p.oc}"
        if p.out_itemsize != 1 or p.residual:
            return f"y of 8 bits without a residual only, got {p.out_dtype}{' and one' if p.residual else ''}"
        if p.kd * p.kh > 32 or p.kw > 16:
            return f"32 lines of 16 taps at most, got {p.kd * p.kh} of {p.kw}"
        slot = InterleavedKernel(p, {"rows": 2, "shares": 1, "items": 1}).slot
        return f"lines of {MAX_SLOT_BYTES} bytes at most, got {slot}" if slot > MAX_SLOT_BYTES else None

    def configs(self, problem: ConvProblem, device: DeviceInfo) -> Iterator[dict[str, Any]]:
        """One or two rows of y at a time, the cheaper first; channels are divided among jobs if that balances them."""
        items = device.compute_units if math.prod(problem.y_shape) < SHORT_ELEMENTS else 4 * device.compute_units
        rows = sorted((1, 2) if problem.oh > 1 else (1,), key=lambda rows: self._cycles(problem, rows))
        for height in rows:
            shares = 1
            while shares < 4 and problem.oc % (32 * shares) == 0:
                jobs = InterleavedKernel(problem, {"rows": height, "shares": shares, "items": items}).jobs
                if uneven(jobs, device) < 1.05:
                    break
                shares *= 2
            yield {"rows": height, "shares": shares, "items": items}

    @staticmethod
    def _cycles(p: ConvProblem, rows: int) -> float:
        """Cycles that sixteen elements of y take: products, interleaving of columns, and the epilogue."""
        kernel = InterleavedKernel(p, {"rows": rows, "shares": 1, "items": 1})
        return (len(kernel.products) / rows + 4.0 * kernel.groups * p.sw / rows + 7) / 2 * kernel.high * rows / p.oh

    def cost(self, problem: ConvProblem, device: DeviceInfo, config: Mapping[str, Any]) -> float | None:
        peaks, kernel = rates(device), InterleavedKernel(problem, config)
        operations = CYCLE_COST * self._cycles(problem, config["rows"]) * math.prod(problem.y_shape) / 16
        operations += 0 if problem.constant_weights else PACK_COST * kernel.packed_size
        return peaks.launch + (LAUNCH_COST + operations * uneven(kernel.jobs, device)) / peaks.flops

    def plan(self, context: Any, problem: ConvProblem, config: Mapping[str, Any]) -> StepPlan:
        require(context, "int8.vnni", VectorsKernel, PROBED)
        return InterleavedKernel(problem, config).plan(context)
