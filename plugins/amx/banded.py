"""Shared by the kernels of ``convolve`` and ``weights``: bands of rows, and solvers that rate configurations."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from convdispatch.api import ConvProblem, DeviceInfo, Solver, StepPlan, geometry_of, rates
from convdispatch.api.cpu import Balance, cdiv

from .geometry import flat_of, merged
from .instructions import planes_of

MIN_CHANNELS = 8
"""Fewest channels per group that the kernels accept: with fewer, most of a tile would be empty."""
MAX_SLOT_BYTES = 4 << 20
"""Largest workspace slot of a work item, in bytes; a slot holds the bfloat16 planes of one band of rows."""


class BandedKernel:
    """One configuration of a kernel: its sizes and its predicted cost, computed without compiling."""

    name: str
    vectors = False
    """Whether the kernel uses AVX512-BF16 vectors instead of AMX matrix registers."""
    timed: tuple[float, float]
    """Measured over predicted time of kernels with one bfloat16 plane, and of kernels with several."""

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
        """Compile the kernels and return the plan that launches them."""
        raise NotImplementedError

    def operations(self, device: DeviceInfo) -> float:
        """Predicted time of the configuration, counted in operations at the device's peak rate."""
        raise NotImplementedError

    def launch_cost(self, device: DeviceInfo) -> float:
        """Time of one kernel launch, counted in operations at the device's peak rate."""
        return self.costs.launch * Balance.of(rates(device)).launch


def tiles_of(channels: int, narrow: float) -> float:
    """Number of tiles of 32 channels; a last tile of 16 channels or fewer counts as the fraction ``narrow``."""
    return channels // 32 + (0 if channels % 32 == 0 else narrow if channels % 32 <= 16 else 1)


class BandedSolver(Solver):
    """Base of the solvers for CPUs with AMX matrix registers or AVX512-BF16 vectors."""

    kernel: type[BandedKernel]
    planes_of: Callable[[ConvProblem], int] = staticmethod(planes_of)

    def common_refusal(self, problem: ConvProblem) -> str | None:
        """The reason to refuse ``math="ieee"``, an empty batch or too few channels per group; otherwise None."""
        if not self.planes_of(problem):
            return f"math float32, tf32 and fast only, got {problem.math}"
        if problem.mb < 1:
            return f"1 image or more, got {problem.mb}"
        geometry = geometry_of(problem)
        channels = min(geometry.c, geometry.m)
        return f"{MIN_CHANNELS} channels a group or more, got {channels}" if channels < MIN_CHANNELS else None

    def base(self, problem: ConvProblem, units: int) -> dict[str, Any]:
        """The values that every configuration starts from: all panels of 32 output channels in one share."""
        panels, items = cdiv(geometry_of(problem).m, 32), min(4 * units, max(units, 16))
        return {"planes": self.planes_of(problem), "panels": panels, "items": items}

    def candidates(self, problem: ConvProblem, device: DeviceInfo) -> Iterable[dict[str, Any]]:
        """Configurations that are worth rating."""
        raise NotImplementedError

    def configs(self, problem: ConvProblem, device: DeviceInfo) -> Iterator[Mapping[str, Any]]:
        """The three candidates of least predicted cost, the cheapest first."""
        rated = {str(config): (self._operations(problem, device, config), config)
                 for config in self.candidates(problem, device)}  # fmt: skip
        for _, config in sorted(rated.values(), key=lambda each: each[0])[:3]:
            yield config

    def _operations(self, problem: ConvProblem, device: DeviceInfo, config: Mapping[str, Any]) -> float:
        return self.kernel(problem, config).operations(device)

    def cost(self, problem: ConvProblem, device: DeviceInfo, config: Mapping[str, Any]) -> float:
        kernel = self.kernel(problem, config)
        return kernel.operations(device) * kernel.timed[kernel.planes > 1] / rates(device).flops
