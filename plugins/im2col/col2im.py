"""The data gradient in general: ``columns[k, position] = w' dy``, then each element of x sums its columns.

Columns are computed for some images, groups and channels at a time. 16-bit tensors are converted to float32 first.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from convdispatch.api import (
    DTYPES,
    OPERANDS,
    Areas,
    Axis,
    ConvProblem,
    DeviceInfo,
    GemmPlan,
    GemmSpec,
    Launch,
    Matrix,
    Product,
    StepPlan,
    build,
    define,
    epilogue_macros,
    gemm_configs,
    gemm_cost,
    gemm_workspace,
    kernel_text,
)
from convdispatch.api import GEMM_LAUNCH as LAUNCH
from convdispatch.api.cpu import Balance

from .convert import WideCopies
from .lower import COLUMN_OPS, COLUMN_RUN_OPS
from .window import PatchWindow, runs

TILE_ELEMENTS = 256
"""Elements of x whose columns one CPU work item sums together."""
MAX_STEP = 64
"""Largest stride along w for which a work item sums the phases of a row of x in vectors."""
FEW_CHANNELS, FEW_FACTOR = 4, 8.0
"""With ``FEW_CHANNELS`` output channels per group or fewer, columns take ``FEW_FACTOR`` times their predicted time: 7
to 50 times on five layers of one or two channels and strides of 3 to 8, where multiplying takes as long as copying."""
FRONT_ELEMENTS = 32
"""Elements of padding before and after the columns: a vector at a row's end reads beyond the row."""


def configs(problem: ConvProblem, device: DeviceInfo, caps: list[int]) -> Iterator[dict[str, Any]]:
    """Configurations: the product's choices under the first cap, then its first choice under the smaller ones."""
    kind = {"kind": "cpu" if device.type == "cpu" else "gpu"}
    for cap in caps:
        draft = Col2im(problem, {"method": "col2im", "cap": cap, "gemm": kind})
        choices = gemm_configs(draft.spec(*draft.largest), device)
        for gemm in choices if cap == caps[0] else itertools.islice(choices, 1):
            yield {"method": "col2im", "cap": cap, "gemm": gemm}


def flipped_pays(problem: ConvProblem) -> bool:
    """Whether the flipped product is expected to be faster than columns, by multiply-adds and elements that are lowered
    or summed."""
    flipped, plain = PatchWindow.of(problem, flipped=True), PatchWindow.of(problem)
    lowered, columns = flipped.k * flipped.pixels, plain.k * plain.pixels
    # Writing a lowered element takes about as long as 8 multiply-adds; writing, reading and adding an element of the
    # columns about as long as 16.
    return lowered * (max(flipped.group_targets, 6) + 8) <= columns * (max(plain.group_targets, 6) + 16)


class Col2im:
    """The data gradient by columns under one configuration: pieces, products and workspace; nothing is compiled."""

    def __init__(self, problem: ConvProblem, config: Mapping[str, Any]) -> None:
        self.problem, self.gemm = problem, config["gemm"]
        self.cpu = self.gemm["kind"] == "cpu"
        self.window = window = PatchWindow.of(problem)
        self.rows = self.cpu and (window.nhwc or window.step[2] <= MAX_STEP)
        self.widened = DTYPES[problem.dtype].widened
        # Source channels whose columns fit the workspace cap, for one image
        affordable = max(1, config["cap"] // (window.volume * window.pixels * window.accumulator_size))
        images = max(1, affordable // window.channels)
        groups = window.groups if images > 1 else max(1, affordable // window.group_channels)
        channels = window.group_channels if groups > 1 else max(1, affordable)
        self.cuts = runs(window.images, images), runs(window.groups, groups), runs(window.group_channels, channels)
        self.largest = tuple(cut.largest for cut in self.cuts)

    def sizes(self) -> dict[tuple[int, ...], int]:
        """(images, groups, channels) of the pieces, and how many there are of each."""
        pieces = itertools.product(*(cut.sizes.items() for cut in self.cuts))
        return {tuple(n for n, _ in axes): math.prod(times for _, times in axes) for axes in pieces}

    def spec(self, images: int, groups: int, channels: int) -> GemmSpec:
        """Return the specification of the product that computes one piece's columns."""
        window = self.window
        k, n, dy = channels * window.volume, images * window.pixels, window.tensor(window.targets)
        if window.nhwc:
            row = Axis(1, inner=channels, outer=window.group_channels)
            c = Matrix(Axis(1), Axis(groups * k), Axis(k))
        else:
            row = Axis(1)
            c = Matrix(Axis(n), Axis(1), Axis(k * n))
        a = Matrix(row, Axis(window.k), Axis(window.group_targets * window.k))
        return GemmSpec(k, n, window.group_targets, groups, "float32" if self.widened else window.dtype, a, dy, c)

    def areas(self) -> tuple[int, WideCopies, int]:
        """(byte offset of scratch memory, copies of dy and w, bytes of the workspace)."""
        areas = Areas()
        specs = [self.spec(*size) for size in self.sizes()]
        areas.add(max((spec.m * spec.n * spec.batch + 2 * FRONT_ELEMENTS) * spec.accumulator_size for spec in specs))
        scratch = areas.add(max(gemm_workspace(spec, self.gemm) for spec in specs))
        return scratch, WideCopies(self.problem, self.cpu, areas), areas.size

    @property
    def workspace_size(self) -> int:
        return self.areas()[-1]

    def cost(self, balance: Balance) -> float:
        """Return the predicted time on a CPU, in operations at the device's peak rate."""
        window, sizes, launch = self.window, self.sizes(), LAUNCH * balance.launch
        total = sum(times * gemm_cost(self.spec(*size), self.gemm, balance) for size, times in sizes.items())
        columns = window.k * window.groups * window.images * window.pixels
        total += self.areas()[1].cost(launch)
        runs = COLUMN_RUN_OPS * columns / window.group_channels if window.nhwc else 0.0
        columns = max(columns, math.prod(self.problem.x_shape))
        copy_ops = max(COLUMN_OPS[window.nhwc] * columns, runs)
        if self.problem.oc // self.problem.g <= FEW_CHANNELS:
            copy_ops *= FEW_FACTOR
        return total + copy_ops + launch * sum(sizes.values())

    def plan(self, context: Any) -> StepPlan:
        window = self.window
        scratch, copies, workspace_size = self.areas()
        (gradient, gradient_offset), (weights, weights_offset) = copies.place("y"), copies.place("w")
        steps: list[Any] = copies.read(context, "y", "w")
        program = build(context, self.text())
        plans: dict[GemmSpec, GemmPlan] = {}
        for (image, images), (group, groups), (channel, channels) in itertools.product(*self.cuts):
            spec = self.spec(images, groups, channels)
            if spec not in plans:
                plans[spec] = GemmPlan(context, spec, self.gemm)
            start = channel * (1 if window.nhwc else window.volume)
            w_offset = weights_offset + group * window.group_targets * window.k + start
            dy_offset = gradient_offset + window.offset(window.targets, image * window.pixels)
            dy_offset += group * window.group_targets * (1 if window.nhwc else window.pixels)
            operands = (weights, gradient, "workspace", w_offset, dy_offset, FRONT_ELEMENTS, scratch)
            product = Product(plans[spec], *operands)
            steps += [product, self._gather(program, (image, images), (group, groups), (channel, channels))]
        return StepPlan(workspace_size, steps)

    def text(self) -> str:
        window, problem = self.window, self.problem
        kind = DTYPES[window.dtype].accumulator
        text = window.macros() + epilogue_macros(problem)
        text += define(
            NHWC=int(window.nhwc), ROWS=int(self.rows), FRONT=FRONT_ELEMENTS, TILE=TILE_ELEMENTS, V16=f"{kind}16"
        )
        text += define(ACCSIZE=window.accumulator_size)
        if self.rows:
            lanes = self.gemm["lanes"]
            integers = f"{'long' if kind == 'double' else 'int'}{lanes}"
            text += define(LANES=lanes, V=f"{kind}{lanes}", KEPT=integers, IDS=", ".join(map(str, range(lanes))))
        return text + kernel_text(__package__, "col2im.cl")

    def _gather(self, program: Any, image: Any, group: Any, channel: Any) -> Launch:
        window = self.window
        depth, height, width = window.source
        piece = group[1] * channel[1]
        if self.rows:
            rows = max(1, min(height, -(-32768 // (width * window.volume * (piece if window.nhwc else 1)))))
            size: tuple[int, ...] = (-(-height // rows), depth * image[1], 1 if window.nhwc else piece)
            local: tuple[int, ...] = (1, 1, 1)
        else:
            rows, local = 1, (128,)
            size = (-(-math.prod((*window.source, image[1], piece)) // 128) * 128,)
        numbers = map(np.int32, (rows, *image, *group, *channel))
        arguments = ["workspace", "x", *self.problem.epilogue_operands, *numbers]
        return Launch(program, "gather", size, local, arguments, names=OPERANDS)
