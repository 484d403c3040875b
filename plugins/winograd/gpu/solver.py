"""The solvers ``winograd.tiled_f<m>x<r>`` for GPUs: launches that transform, multiply and transform back."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from convdispatch.api import ConvProblem, DeviceInfo, Plan, Solver

from ..geometry import TileGeometry
from .choice import choices, refusal, seconds
from .plan import passes, work_of


class Tiles(Solver):
    """F(m, r) along every axis with r taps, in several launches: transforms, batched products, inverse transform.

    Stride 1, 1-D and 2-D, groups, any padding, every dtype.
    """

    min_channels = 16
    """Least channels per group: with fewer the transforms cost more than the products that they save."""

    def __init__(self, m: int, r: int) -> None:
        self.m, self.r = m, r

    def rejects(self, problem: ConvProblem, device: DeviceInfo) -> str | None:
        """Reject CPUs, problems beyond ``limits``, and groups of few channels."""
        if device.type == "cpu":
            return "GPUs and accelerators only, got a CPU"
        reason = self.limits(problem, device)
        if reason:
            return reason
        channels = min(problem.ic, problem.oc) // problem.g
        if channels < self.min_channels:
            return f"{self.min_channels} or more channels a group, got {channels}"
        return None

    def limits(self, problem: ConvProblem, device: DeviceInfo) -> str | None:
        """Why the kernels cannot compute the problem."""
        if problem.mb < 1:
            return f"1 image or more, got {problem.mb}"
        if problem.ndim > 2:
            return f"1-D and 2-D only, got {problem.ndim}-D"
        pixels = max(problem.ih * problem.iw, problem.oh * problem.ow)
        if pixels >= 1 << 31:
            return f"images of less than 2**31 places, got {pixels}"
        kernel = (problem.kh, problem.kw)
        if self.r not in kernel or set(kernel) - {1, self.r}:
            return f"{self.r} taps along one axis or both, 1 along the other, got {kernel[0]}x{kernel[1]}"
        if (problem.sh, problem.sw) != (1, 1):
            return f"stride 1 only, got {problem.sh}x{problem.sw}"
        if any(d != 1 for d, k in zip((problem.dh, problem.dw), kernel, strict=True) if k > 1):
            return f"dilation 1 only, got {problem.dh}x{problem.dw}"
        reason = refusal(TileGeometry(problem, self.m))
        if reason is None and next(choices(TileGeometry(problem, self.m), device), None) is None:
            reason = f"the product's smallest tile needs more than {device.local_mem_size} bytes of local memory"
        return reason

    def configs(self, problem: ConvProblem, device: DeviceInfo) -> Iterator[Mapping[str, Any]]:
        """Tiles of the product, then ever smaller pieces, which need less workspace."""
        return choices(TileGeometry(problem, self.m), device)

    def workspace(self, problem: ConvProblem, device: DeviceInfo, config: Mapping[str, Any]) -> int:
        """Transformed tiles and products of a piece, and transformed weights that are not constant."""
        return work_of(TileGeometry(problem, self.m), config).areas[3]

    def cost(self, problem: ConvProblem, device: DeviceInfo, config: Mapping[str, Any]) -> float:
        """Return the predicted seconds: products at the share of the peak that they reach, and transforms."""
        return seconds(TileGeometry(problem, self.m), config, device)

    def plan(self, context: Any, problem: ConvProblem, config: Mapping[str, Any]) -> Plan:
        """Transforms, products and inverse transforms of each piece."""
        return passes(context, TileGeometry(problem, self.m), config)
