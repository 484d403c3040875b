"""What the kernels of both files share: bands of rows over a flat geometry, in configurations that a solver rates."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from convdispatch.api import ConvProblem, DeviceInfo, Solver, StepPlan, geometry_of, rates
from convdispatch.api.cpu import Balance, cdiv

from .geometry import flat_of, merged
from .splits import planes_of

MIN_CHANNELS = 8
"""Channels of a group: with fewer most of a tile would be empty."""
MAX_SLOT_BYTES = 4 << 20
"""Bytes of a band's planes, at most."""


class BandedKernel:
    """One configuration, worked out without compiling."""

    name: str
    vectors = False
    """Whether AVX512-BF16 takes the place of matrix registers."""
    timed: tuple[float, float]
    """Measured over counted time, of one plane and of several."""

    def __init__(self, problem: ConvProblem, config: Mapping[str, Any]) -> None:
        self.problem = problem = merged(problem)
        self.config = config
        self.geometry = geometry = geometry_of(problem)
        self.flat = flat = flat_of(geometry)
        self.planes, self.nhwc = config["planes"], problem.layout == "nhwc"
        self.scaled = problem.dtype == "float32"
        self.blocks, self.panels = cdiv(geometry.c, 32), cdiv(geometry.m, 32)
        self.all_rows = geometry.images * flat.rows
        self.rows = min(config["rows"], self.all_rows)
        self.bands = cdiv(self.all_rows, self.rows)
        self.band_rows = self.rows + flat.beyond
        self.shares = cdiv(self.panels, config["panels"])

    def plan(self, context: Any) -> StepPlan:
        """Compile."""
        raise NotImplementedError

    def operations(self, device: DeviceInfo) -> float:
        """Operations of the peak that the configuration takes the time of."""
        raise NotImplementedError

    def launch_cost(self, device: DeviceInfo) -> float:
        """Operations of the peak in the time of a launch."""
        return self.costs.launch * Balance.of(rates(device)).launch


def tiles_of(channels: int, narrow: float) -> float:
    """Tiles of 32 channels, of which the last may be a narrow one."""
    return channels // 32 + (0 if channels % 32 == 0 else narrow if channels % 32 <= 16 else 1)


class BandedSolver(Solver):
    """On a CPU with matrix registers, or the same in vectors."""

    kernel: type[BandedKernel]
    takes = "float32 but for ieee, float16 and bfloat16"
    planes_of: Callable[[ConvProblem], int] = staticmethod(planes_of)

    def common_refusal(self, problem: ConvProblem) -> str | None:
        """Refusals of other dtypes, no image and few channels."""
        if not self.planes_of(problem):
            return f"{self.takes} only, got {problem.dtype} and {problem.math}"
        if problem.mb < 1:
            return f"1 image or more, got {problem.mb}"
        geometry = geometry_of(problem)
        least = min(geometry.c, geometry.m)
        return f"{MIN_CHANNELS} channels a group or more, got {least}" if least < MIN_CHANNELS else None

    def base(self, problem: ConvProblem, units: int) -> dict[str, Any]:
        """What configurations begin with: every panel in one share."""
        panels, items = cdiv(geometry_of(problem).m, 32), min(4 * units, max(units, 16))
        return {"planes": self.planes_of(problem), "panels": panels, "items": items}

    def candidates(self, problem: ConvProblem, device: DeviceInfo) -> Iterable[dict[str, Any]]:
        """Configurations that are worth rating."""
        raise NotImplementedError

    def configs(self, problem: ConvProblem, device: DeviceInfo) -> Iterator[Mapping[str, Any]]:
        """The three of least predicted cost."""
        rated = {str(config): (self._operations(problem, device, config), config)
                 for config in self.candidates(problem, device)}  # fmt: skip
        for _, config in sorted(rated.values(), key=lambda each: each[0])[:3]:
            yield config

    def _operations(self, problem: ConvProblem, device: DeviceInfo, config: Mapping[str, Any]) -> float:
        return self.kernel(problem, config).operations(device)

    def cost(self, problem: ConvProblem, device: DeviceInfo, config: Mapping[str, Any]) -> float:
        """What tiles take, what is split, turned, stored and added, and launches."""
        kernel = self.kernel(problem, config)
        return kernel.operations(device) * kernel.timed[kernel.planes > 1] / rates(device).flops
