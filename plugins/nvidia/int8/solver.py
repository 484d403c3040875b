"""nvidia.int8: quantized NHWC convolutions on tensor cores."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from convdispatch.api import OPERANDS, Areas, ConvProblem, DeviceInfo, Launch, StepPlan, build, define, kernel_text

from ..instructions import PLAIN_C, build_for_hopper
from ..probe import refusal, require
from ..solving import TileSolver
from ..tma.maps import encoded, missing
from .choice import choices, seconds
from .tiling import MAX_GROUPS, HaloTiling, Int8Tile, Int8Tiling, StreamTiling, tiling_of


class Int8(TileSolver):
    """Implicit GEMM of 8-bit integers or floats by ``mma.sync`` and, if the device has it, ``wgmma``."""

    seconds = staticmethod(seconds)

    def engine_of(self, problem: ConvProblem) -> str:
        return "float8" if problem.dtype.startswith("float8") else "int8"

    def limits(self, problem: ConvProblem, device: DeviceInfo) -> str | None:
        if problem.mb < 1:
            return f"1 image or more, got {problem.mb}"
        if (problem.out_dtype, problem.math, self.engine_of(problem)) == ("float32", "float32", "float8"):
            return "math tf32 or fast for float32 results, since Hopper sums float8 in 14 bits, got float32"
        return Int8Tiling(problem, Int8Tile(32, 64, 2, 2)).misfit

    def tiles(self, problem: ConvProblem, device: DeviceInfo) -> Iterable[Int8Tile]:
        hopper_engines = ("wgmma", "tma", "halo") if missing(device) is None else ("wgmma",)
        engines = [each for each in hopper_engines if refusal(device, f"{self.engine_of(problem)}_{each}") is None]
        return choices(problem, device.compute_units, ("mma", *engines))

    def tiling(self, problem: ConvProblem, config: Mapping[str, Any]) -> Int8Tiling:
        return tiling_of(problem, Int8Tile.of(config))

    def workspace(self, problem: ConvProblem, device: DeviceInfo, config: Mapping[str, Any]) -> int:
        """Bytes of workspace: tensor maps of work groups, and packed weights unless they are constant."""
        return areas_of(self.tiling(problem, config))[0]

    def plan(self, context: Any, problem: ConvProblem, config: Mapping[str, Any]) -> Int8Plan:
        engine, kind = Int8Tile.of(config).engine, self.engine_of(problem)
        require(context, kind if engine == "mma" else f"{kind}_{engine}")
        return Int8Plan(context, problem, config)


def areas_of(tiling: Int8Tiling) -> tuple[int, int]:
    """(bytes of workspace, offset of packed weights that are not constant); the work groups' tensor maps come first."""
    areas = Areas()
    if isinstance(tiling, StreamTiling):
        areas.add(MAX_GROUPS * tiling.maps_each)
    offset = 0 if tiling.problem.constant_weights else areas.add(tiling.packed_size)
    return areas.size, offset


class Int8Plan(StepPlan):
    """The plan of nvidia.int8; ``product.cl.mako`` explains the kernel. With ``emulate`` tests build plain C."""

    def __init__(self, context: Any, problem: ConvProblem, config: Mapping[str, Any], *, emulate: bool = False) -> None:
        tiling = self.tiling = tiling_of(problem, Int8Tile.of(config))
        constant, self._emulate, is_stream = problem.constant_weights, emulate, isinstance(tiling, StreamTiling)
        size, offset = areas_of(tiling)
        arguments = ["x", "w" if constant else "workspace", np.int64(offset), "y"]
        arguments += [*(["workspace"] if is_stream else []), "bias", *(["residual"] if problem.residual else [])]
        hopper = tiling.tile.engine != "mma" and not emulate
        program = (build_for_hopper if hopper else build)(context, self.product_text())
        items, groups = tiling.tile.items, tiling.work_groups
        if is_stream:
            items += 0 if emulate else tiling.copying_items
            groups = tiling.staying(context.devices[0].max_compute_units)
        product = Launch(program, "product", (groups * items,), (items,), arguments, names=OPERANDS)
        pack = Launch(build(context, self.pack_text()), "pack", (tiling.packed_rows * 128,), (128,),
                      ["w", "workspace", np.int64(offset)], names=OPERANDS)  # fmt: skip
        if constant:
            key = ("nvidia.int8", problem.w_shape, problem.g, tiling.rows, tiling.row_bytes, tiling.parts, tiling.run,
                   tiling.corners)  # fmt: skip
            super().__init__(size, [product], tiling.packed_size, [pack], repr(key))
        else:
            super().__init__(size, [pack, product])

    def product_text(self) -> str:
        tiling = self.tiling
        text = tiling.problem.macros() + tiling.instructions.text(self._emulate)
        if not isinstance(tiling, StreamTiling):
            return text + kernel_text(__package__, "product.cl.mako", tiling=tiling)
        file = "halo.cl.mako" if isinstance(tiling, HaloTiling) else "stream.cl.mako"
        maps = encoded(tiling.maps, self._emulate)
        text += kernel_text(PLAIN_C, "int8_copies.cl.mako", tiling=tiling) if self._emulate else ""
        return text + kernel_text(__package__, file, tiling=tiling, emulate=self._emulate, encoded=maps)

    def pack_text(self) -> str:
        tiling = self.tiling
        text = define(OCG=tiling.n, ROWS=tiling.rows, PARTS=tiling.parts, K=tiling.part_k, ROW_BYTES=tiling.row_bytes,
                      RUN=tiling.run, SETS=tiling.sets,
                      CORNERS=str(list(itertools.chain(*tiling.corners)))[1:-1],
                      COLUMNS=tiling.problem.kw if tiling.parts > 1 else 1, ALL=tiling.packed_rows,
                      SUMS_AT=f"{tiling.packed_rows * tiling.row_bytes}L")  # fmt: skip
        return text + kernel_text(__package__, "pack.cl")
