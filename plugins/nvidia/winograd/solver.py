"""nvidia.winograd: 3x3 kernels of float32, F(4, 3) with its products on Hopper's tensor cores."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from convdispatch_winograd.geometry import TileGeometry
from convdispatch_winograd.gpu.choice import refusal

from convdispatch.api import ConvProblem, DeviceInfo
from convdispatch.api.matrix import MAX_BYTES

from ..probe import require
from ..solving import TileSolver, kernel_words
from .choice import choices, seconds
from .plan import WinogradPlan
from .tiling import Points, PointsTile

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

    seconds = staticmethod(seconds)

    def engine_of(self, problem: ConvProblem) -> str:
        return "wgmma"

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
