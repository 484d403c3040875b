"""The solvers ``winograd.tiled_f<m>x<r>`` for GPUs: launches that transform, multiply and transform back."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from convdispatch.api import (
    OPERANDS,
    ConvProblem,
    DeviceInfo,
    GemmPlan,
    Launch,
    Product,
    Solver,
    StepPlan,
    build,
    kernel_text,
)

from ..geometry import TileGeometry, unsuited
from .choice import choices, refusal, seconds
from .work import Data, Filter, Printer, Work

MIN_CHANNELS = 16
"""Least channels per group: with fewer the transforms cost more than the products that they save."""
_GEMM = ("bm", "bn", "bk", "tm", "tn", "ln", "stages", "swap")


class Tiles(Solver):
    """F(m, r) along every axis with r taps, in several launches: transforms, batched products, inverse transform.

    Forward and data gradient, stride 1, 1-D and 2-D, groups, any padding, every dtype.
    """

    def __init__(self, m: int, r: int) -> None:
        self.m, self.r = m, r

    def rejects(self, problem: ConvProblem, device: DeviceInfo) -> str | None:
        """Reject CPUs, the weights' gradient, what tiles and their error do not admit, and groups of few channels."""
        if device.type == "cpu":
            return "GPUs and accelerators only, got a CPU"
        if problem.direction == "bwd_weights":
            return "forward and bwd_data only, got bwd_weights"
        reason = unsuited(problem, self.r)
        if reason:
            return reason
        pixels = max(problem.ih * problem.iw, problem.oh * problem.ow)
        if pixels >= 1 << 31:
            return f"images of less than 2**31 places, got {pixels}"
        channels = min(problem.ic, problem.oc) // problem.g
        if channels < MIN_CHANNELS:
            return f"{MIN_CHANNELS} or more channels a group, got {channels}"
        reason = refusal(TileGeometry(problem, self.m))
        if reason is None and next(choices(TileGeometry(problem, self.m), device), None) is None:
            reason = f"the product's smallest tile needs more than {device.local_mem_size} bytes of local memory"
        return reason

    def configs(self, problem: ConvProblem, device: DeviceInfo) -> Iterator[Mapping[str, Any]]:
        """Tiles of the product, then ever smaller pieces, which need less workspace."""
        return choices(TileGeometry(problem, self.m), device)

    def workspace(self, problem: ConvProblem, device: DeviceInfo, config: Mapping[str, Any]) -> int:
        """Transformed tiles and products of a piece, and transformed weights that are not constant."""
        return Work(TileGeometry(problem, self.m), config["pieces"]).areas[3]

    def cost(self, problem: ConvProblem, device: DeviceInfo, config: Mapping[str, Any]) -> float:
        """Return the predicted seconds: products at the share of the peak that they reach, and transforms."""
        return seconds(TileGeometry(problem, self.m), config, device)

    def plan(self, context: Any, problem: ConvProblem, config: Mapping[str, Any]) -> StepPlan:
        """Transforms, products and inverse transforms of each piece."""
        return passes(context, TileGeometry(problem, self.m), config)


def passes(context: Any, geometry: TileGeometry, config: Mapping[str, Any]) -> StepPlan:
    """Compile a configuration into the plan of its passes."""
    work = Work(geometry, config["pieces"])
    launches, spec, steps = Passes(context, work), work.product(), []
    source, weights_offset, product, size = work.areas
    packers, weights = [launches.filter(work.filter)], "w" if work.constant else "workspace"
    steps += [] if work.constant else packers
    tile = {name: config[name] for name in _GEMM}
    gemm_plan = GemmPlan(context, spec, {"kind": "gpu", **tile, "split": 1, "ks": spec.k})
    for first_tile in range(0, work.pieces * work.piece, work.piece):
        steps.append(launches.data(work.source, "y" if geometry.problem.direction == "bwd_data" else "x", first_tile))
        steps.append(Product(gemm_plan, weights, "workspace", "workspace", weights_offset, source, product))
        steps.append(launches.inverse(first_tile))
    if work.constant:
        return StepPlan(size, steps, work.packed_size, packers, pack_key(geometry))
    return StepPlan(size, steps)


def pack_key(geometry: TileGeometry) -> str:
    """Return the cache key of transformed weights; the number 2 in it is the version of the transforms."""
    problem = geometry.problem
    return repr(
        ("winograd.gpu 2", geometry.m, problem.direction, problem.layout, problem.dtype, problem.w_shape, problem.g)
    )


class Passes:
    """Builds the launches of one ``Work``."""

    def __init__(self, context: Any, work: Work) -> None:
        self.context, self.work = context, work
        self._head = work.geometry.problem.macros()
        self._limit = context.devices[0].max_work_group_size

    def _program(self, *files: str, **values: Any) -> Any:
        text, geometry = self._head, self.work.geometry
        values |= {"geometry": geometry, "problem": geometry.problem, "program": Printer(self.work.acc)}
        for file in files:
            text += kernel_text(__package__, file, **values)
        return build(self.context, text)

    def _launch(self, program: Any, kernel: str, sizes: tuple[int, ...], arguments: list[Any]) -> Launch:
        """A launch with work groups of up to 128 items, which extend along the first axis as far as possible."""
        width = 1
        while width < min(128, self._limit, sizes[0]):
            width *= 2
        local = (width, max(1, min(128, self._limit) // width), 1)[: len(sizes)]
        size = tuple(-(-n // extent) * extent for n, extent in zip(sizes, local, strict=True))
        return Launch(program, kernel, size, local, arguments, names=OPERANDS)

    def data(self, data: Data, operand: str, first: int) -> Launch:
        """Return the launch that transforms the tiles of ``operand`` from tile ``first`` on."""
        program = self._program("data.cl.mako", d=data)
        channels = data.groups * data.padded
        sizes = (-(-channels // data.width), data.rows) if data.tensor.nhwc else (data.rows, channels)
        return self._launch(program, "transform_tiles", sizes, [operand, "workspace", np.int32(first)])

    def filter(self, weights: Filter) -> Launch:
        """Return the launch that transforms the weights into the workspace, or into the packed buffer instead of it."""
        work = self.work
        program = self._program("filter.cl.mako", f=weights)
        sizes = (work.mp, work.kp, work.geometry.groups)
        return self._launch(program, "transform_weights", sizes, ["w", "workspace"])

    def parts(self) -> Launch:
        """Return the launch that adds all partial sums to the first one, with more work items than the inverse has."""
        inverse, size = self.work.inverse, self.work.product_size // self.work.parts
        sizes = f"#define AT {inverse.at}L\n#define SIZE {size}\n#define PARTS {self.work.parts}\n"
        program = build(self.context, self._head + sizes + kernel_text(__package__, "parts.cl"))
        return self._launch(program, "add_parts", (size // 4,), ["workspace"])

    def inverse(self, first: int) -> Launch:
        """Return the launch of the inverse transform, which writes the output from tile ``first`` on."""
        work, inverse = self.work, self.work.inverse
        geometry, problem = work.geometry, work.geometry.problem
        program = self._program("put.cl.mako", "inverse.cl.mako", o=inverse)
        if geometry.weights:
            sizes = (-(-inverse.n // inverse.width), inverse.m, geometry.groups)
        elif geometry.nhwc:
            sizes = (-(-geometry.target.channels // inverse.width), inverse.piece)
        else:
            sizes = (inverse.piece, geometry.target.channels)
        arguments = ["workspace", problem.written, *self._epilogue_operands(), np.int32(first)]
        return self._launch(program, "inverse", sizes, arguments)

    def _epilogue_operands(self) -> list[str]:
        return [name for name in ("bias", "residual") if getattr(self.work.geometry.problem, name)]
