"""nvidia.winograd: 3x3 kernels of float32, F(4, 3) with its products on Hopper's tensor cores."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from convdispatch_winograd.gpu.error import refusal
from convdispatch_winograd.gpu.geometry import TileGeometry

from convdispatch.api import ConvProblem, DeviceInfo

from ..configured import MOST_BYTES
from ..pace import memory
from ..packed.solver import TensorCores
from ..probe import require
from .choice import choices, seconds
from .plan import WinogradPlan
from .tiling import Points

_LEAST, _POINTS = 8, 4


class Winograd(TensorCores):
    """Minimal filtering (Winograd 1980; Lavin and Gray 2016), tiles in planes of 16-bit numbers.

    Planes are scaled, so nothing overflows in them. Products before the way out are larger than results by up to 11
    (root mean square), in weights' gradients 74: infinite from operands' products of 3e38 / (74 sqrt(tiles)) on, far
    above 1e32.
    """

    def __init__(self) -> None:
        super().__init__("wgmma")

    def limits(self, problem: ConvProblem, device: DeviceInfo) -> str | None:
        """What ``rejects`` says before it asks the device."""
        if problem.dtype != "float32":
            return f"float32 only, got {problem.dtype}"
        if problem.math != "float32":
            return f"math float32 only, got {problem.math}"
        if problem.mb < 1 or problem.g > 1:
            return f"1 image or more and 1 group only, got {problem.mb} and {problem.g}"
        if problem.bytes > MOST_BYTES:
            return f"at most {MOST_BYTES} bytes, got {problem.bytes}"
        if problem.ndim != 2 or (problem.kh, problem.kw) != (3, 3):
            return f"3x3 kernels only, got {'x'.join(str(getattr(problem, 'k' + axis)) for axis in problem.axes)}"
        if (problem.sh, problem.sw, problem.dh, problem.dw) != (1, 1, 1, 1):
            return f"stride and dilation 1 only, got {problem.sh}x{problem.sw} and {problem.dh}x{problem.dw}"
        narrow = min(problem.ic, problem.oc)
        if narrow < _LEAST or problem.ic % 8 or problem.oc % 8:
            return f"{_LEAST} channels or more, in multiples of 8, got {problem.ic} and {problem.oc}"
        return refusal(TileGeometry(problem, _POINTS)) or (None if self._choices(problem, device) else "no tile fits")

    def _choices(self, problem: ConvProblem, device: DeviceInfo) -> tuple[Any, ...]:
        return choices(problem, device.compute_units, device.max_alloc_size or 1 << 62)

    def configs(self, problem: ConvProblem, device: DeviceInfo) -> Iterator[Mapping[str, Any]]:
        """Tiles, the one that is expected to be fastest first."""
        for tile in self._choices(problem, device):
            yield tile.config()

    def workspace(self, problem: ConvProblem, device: DeviceInfo, config: Mapping[str, Any]) -> int:
        """Planes, weights and products of a piece."""
        return Points.of(problem, config).layout.size

    def seconds(self, problem: ConvProblem, device: DeviceInfo, config: Mapping[str, Any]) -> float:
        """Predicted."""
        return seconds(Points.of(problem, config), device.compute_units, memory(device))

    def plan(self, context: Any, problem: ConvProblem, config: Mapping[str, Any]) -> WinogradPlan:
        """Compile a configuration."""
        require(context, self.engine)
        return WinogradPlan(context, problem, config)
