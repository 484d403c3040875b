"""nvidia.direct: convolutions with 1x1 kernels on tensor cores without a packing pass."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from convdispatch.api import ConvProblem, DeviceInfo
from convdispatch.api.matrix import group_limits, size_limits

from ..probe import require
from ..solving import TileSolver, kernel_words
from .choice import choices, seconds
from .plan import DirectPlan
from .tiling import DirectTile, DirectTiling

MAX_PIXELS = 2**31 - 2**16
"""Most output pixels of all images: int32 indices leave room for the rows of a last, partial tile."""


class Direct(TileSolver):
    """Products of float32 matrices in their own layout, all directions of convolutions with 1x1 kernels."""

    seconds = staticmethod(seconds)

    def engine_of(self, problem: ConvProblem) -> str:
        return "direct"

    def limits(self, problem: ConvProblem, device: DeviceInfo) -> str | None:
        reason = size_limits(problem)
        if reason:
            return reason
        if problem.kd * problem.kh * problem.kw > 1:
            return f"1x1 kernels only, got {kernel_words(problem)}"
        pads = [getattr(problem, "p" + axis + side) for axis in problem.axes for side in ("", "_r")]
        if any(pads):
            return f"no padding, got {max(pads)}"
        pixels = problem.mb * problem.od * problem.oh * problem.ow
        group_reason = group_limits(problem)
        return group_reason or (f"at most {MAX_PIXELS} output pixels, got {pixels}" if pixels > MAX_PIXELS else None)

    def tiles(self, problem: ConvProblem, device: DeviceInfo) -> Iterable[DirectTile]:
        return choices(problem, device.compute_units)

    def tiling(self, problem: ConvProblem, config: Mapping[str, Any]) -> DirectTiling:
        return DirectTiling(problem, DirectTile.of(config))

    def workspace(self, problem: ConvProblem, device: DeviceInfo, config: Mapping[str, Any]) -> int:
        """Bytes of workspace: partial sums."""
        return self.tiling(problem, config).partial_bytes

    def plan(self, context: Any, problem: ConvProblem, config: Mapping[str, Any]) -> DirectPlan:
        require(context, "direct")
        return DirectPlan(context, problem, config)
