"""The passes of a problem as launches: transforms, batched matrix products, inverse transform."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from convdispatch.api import OPERANDS, GemmPlan, Launch, Product, StepPlan, build, kernel_text

from ..geometry import TileGeometry
from .work import Data, Filter, Printer, Work

_GEMM = ("bm", "bn", "bk", "tm", "tn", "ln", "stages", "swap")


def work_of(geometry: TileGeometry, config: Mapping[str, Any]) -> Work:
    """Return the ``Work`` that a configuration describes."""
    return Work(geometry, config["pieces"], config["parts"])


def gemm_config(work: Work, config: Mapping[str, Any]) -> dict[str, Any]:
    spec = work.product()
    return {"kind": "gpu", **{name: config[name] for name in _GEMM}, "split": 1, "ks": spec.k}


def passes(context: Any, geometry: TileGeometry, config: Mapping[str, Any]) -> StepPlan:
    """Compile a configuration into the plan of its passes."""
    work = work_of(geometry, config)
    launches = Passes(context, work)
    gemm, steps, packers = gemm_config(work, config), [], []
    source, second_offset, product, size = work.areas
    if not geometry.weights:
        packers = [launches.filter(work.filter)]
        steps += [] if work.constant else packers
    gemm_plan = GemmPlan(context, work.product(), gemm)
    for piece in range(work.pieces):
        first_tile = piece * work.piece
        steps.append(launches.data(work.source, "y" if geometry.problem.direction == "bwd_data" else "x", first_tile))
        if geometry.weights:
            steps.append(launches.data(work.gradient, "y", first_tile))
            plan = gemm_plan if piece == 0 else GemmPlan(context, work.product(accumulate=True), gemm)
            steps.append(Product(plan, "workspace", "workspace", "workspace", second_offset, source, product))
        else:
            weights = "w" if work.constant else "workspace"
            steps.append(Product(gemm_plan, weights, "workspace", "workspace", second_offset, source, product))
            steps.append(launches.inverse(first_tile))
    if geometry.weights:
        steps += [launches.parts()] if work.parts > 1 else []
        steps.append(launches.inverse(0))
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
