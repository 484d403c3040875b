"""nvidia.winograd: 3x3 kernels of float32, F(4, 3) with its products on Hopper's tensor cores."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from convdispatch_winograd.geometry import TileGeometry
from convdispatch_winograd.gpu.choice import refusal
from convdispatch_winograd.gpu.solver import Passes
from convdispatch_winograd.gpu.work import Data, Printer

from convdispatch.api import (
    OPERANDS,
    ConvProblem,
    DeviceInfo,
    Launch,
    StepPlan,
    build,
    kernel_text,
    numbers_as_literals,
)
from convdispatch.api.matrix import MATRIX_TILES, MAX_BYTES, ProductLaunch

from ..instructions import Instructions
from ..probe import require
from ..solving import TileSolver, kernel_words
from .choice import choices, seconds
from .tiling import Points, PointsTile, margin

MIN_CHANNELS = 8
"""Fewest input and output channels that the solver accepts: fewer leave tensor cores idle."""
TILE_POINTS = 4
"""Output pixels of a Winograd tile along an axis: the m of F(m, 3)."""


class Winograd(TileSolver):
    """Minimal filtering (Winograd 1980; Lavin and Gray 2016) with tiles in planes of 16-bit numbers.

    Planes are scaled, so nothing overflows in them. Products before the inverse transform are up to 11 times as large
    as results (root mean square), 74 times in weights' gradients: they are infinite if products of operands exceed 3e38
    / (74 sqrt(tiles)), which is far above 1e32.
    """

    seconds, engine = staticmethod(seconds), "wgmma"

    def limits(self, problem: ConvProblem, device: DeviceInfo) -> str | None:
        if problem.math != "float32":
            return f"math float32 only, got {problem.math}"
        if problem.mb < 1 or problem.g > 1:
            return f"1 image or more and 1 group only, got {problem.mb} and {problem.g}"
        if problem.bytes > MAX_BYTES:
            return f"at most {MAX_BYTES} bytes, got {problem.bytes}"
        if problem.ndim != 2 or (problem.kh, problem.kw) != (3, 3):
            return f"3x3 kernels only, got {kernel_words(problem)}"
        if (problem.sh, problem.sw, problem.dh, problem.dw) != (1, 1, 1, 1):
            return f"stride and dilation 1 only, got {problem.sh}x{problem.sw} and {problem.dh}x{problem.dw}"
        channels = min(problem.ic, problem.oc)
        if channels < MIN_CHANNELS or problem.ic % 8 or problem.oc % 8:
            return f"{MIN_CHANNELS} channels or more, in multiples of 8, got {problem.ic} and {problem.oc}"
        reason = refusal(TileGeometry(problem, TILE_POINTS))
        return reason or (None if self.tiles(problem, device) else "no tile fits")

    def tiles(self, problem: ConvProblem, device: DeviceInfo) -> Iterable[PointsTile]:
        return choices(problem, device.compute_units, device.max_alloc_size or 1 << 62)

    def tiling(self, problem: ConvProblem, config: Mapping[str, Any]) -> Points:
        return Points(problem, PointsTile.of(config))

    def workspace(self, problem: ConvProblem, device: DeviceInfo, config: Mapping[str, Any]) -> int:
        """Bytes of workspace: planes, weights and products of one piece of the tiles."""
        return self.tiling(problem, config).layout.size

    def plan(self, context: Any, problem: ConvProblem, config: Mapping[str, Any]) -> WinogradPlan:
        require(context, "wgmma")
        return WinogradPlan(context, problem, config)


GROUP_TILES, GROUP_CHANNELS = 8, 32
"""Tiles and channels that a work group of the input transform transforms: one per work item, 256 in total."""


class WinogradPlan(StepPlan):
    """The plan of nvidia.winograd; with ``emulate`` tests build plain C."""

    def __init__(self, context: Any, problem: ConvProblem, config: Mapping[str, Any], *, emulate: bool = False) -> None:
        points = self._points = Points(problem, PointsTile.of(config))
        self.tiling, self._layout, self._emulate = points.tiling, points.layout, emulate
        self._context, self._passes, self._products = context, Passes(context, points.work), self._product(context)
        steps, packers = self._data() if self.tiling.data else (self._gradient(), [])
        packed_size = self._layout.packed_size
        super().__init__(self._layout.size, steps, packed_size, packers, self._key() if packed_size else None)

    def _data(self) -> tuple[list[Launch], list[Launch]]:
        """(launches of forward and data gradient, launches that pack constant weights): weights to planes; then for
        each piece of the tiles the transform, the products and the inverse transform."""
        points, work = self._points, self._points.work
        operand = "y" if points.problem.direction == "bwd_data" else "x"
        weights, packers = [self._weights()], []
        if self._layout.constant:
            packers, steps = [*self._scales("w"), *weights], self._scales(operand)
        else:
            steps = [*self._scales(operand + "w"), *weights]
        for first_tile in range(0, points.tile.pieces * work.piece, work.piece):
            steps += [self._tiles(work.source, operand, "x", first_tile), self._products]
            steps.append(self._passes.inverse(first_tile))
        return steps, packers

    def _gradient(self) -> list[Launch]:
        """Launches of the weights' gradient: transforms of x and dy, products, sum of parts, inverse transform."""
        work = self._points.work
        steps = [*self._scales("yx"), self._tiles(work.source, "x", "x", 0)]
        steps += [self._tiles(work.gradient, "y", "y", 0), self._products]
        steps += [self._passes.parts()] if self._points.tile.split > 1 else []
        return [*steps, self._passes.inverse(0)]

    def _key(self) -> str:
        problem, tile = self._points.problem, self._points.tile
        return repr(("nvidia.winograd", tile.points, problem.direction, problem.w_shape, tile.bn, tile.bk, tile.format))

    def _product(self, context: Any) -> Launch:
        operands = ["workspace", "w" if self._layout.constant else "workspace"]
        return ProductLaunch(self.tiling, self._layout, operands, emulate=self._emulate).launch(context)

    def _text(self, file: str, operand: str, margin: int, **values: Any) -> str:
        tiling, scales = self.tiling, self._layout.scales
        text = self._points.problem.macros() + Instructions(tiling.format.type).text(self._emulate)
        text += kernel_text(MATRIX_TILES, "narrow.cl.mako", tiling=tiling)
        text += kernel_text(MATRIX_TILES, "shifted.cl") + kernel_text(__package__, "split.cl.mako")
        values |= {"exponent": scales.exponent(operand, 0, margin), "program": Printer("float")}
        kernel = kernel_text(__package__, file, tiling=tiling, geometry=self._points.geometry, **values)
        return text + numbers_as_literals(kernel, scales.numbers([operand]))

    def _scales(self, names: str) -> list[Launch]:
        """Launches that search for the scales of the operands ``names``."""
        return self._layout.scales.launches(self._context, names)

    def _tiles(self, data: Data, operand: str, inner: str, first_tile: int) -> Launch:
        """The launch that transforms tiles of ``operand`` from ``first`` on to planes of the product's ``inner``."""
        tiling, layout = self.tiling, self._layout
        source = tiling.source if inner == "x" else tiling.places
        runs = [(j, 1) for j in range(data.inputs[1])] if data.tensor.nhwc else data.runs
        text = self._text("tiles.cl.mako", operand, margin(data.matrices), d=data, src=source, runs=runs,
                          source_at=layout.at[inner] // 2, tile_marks=layout.tile_marks,
                          tiles=GROUP_TILES, channels=GROUP_CHANNELS,
                          channel_blocks=-(-data.channels // GROUP_CHANNELS))  # fmt: skip
        items = GROUP_TILES * GROUP_CHANNELS
        size = (-(-data.channels // GROUP_CHANNELS) * -(-data.rows // GROUP_TILES) * items,)
        arguments = [operand, "workspace", "w" if layout.constant else "workspace", np.int32(first_tile)]
        return Launch(build(self._context, text), "tiles", size, (items,), arguments, names=OPERANDS)

    def _weights(self) -> Launch:
        tiling, layout, geometry = self.tiling, self._layout, self._points.geometry
        text = self._text("weights.cl.mako", "w", margin(geometry.matrices("g")), f=self._points.work.filter,
                          weights_at=layout.at["w"] // 2)  # fmt: skip
        size = (-(-tiling.slices[0] * tiling.tile.bk // 64) * 64, -(-tiling.n_tiles * tiling.tile.bn // 4) * 4)
        return Launch(build(self._context, text), "weights", size, (64, 4), ["w", "workspace"], names=OPERANDS)
