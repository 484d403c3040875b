"""nvidia.direct: convolutions with 1x1 kernels on tensor cores without a packing pass."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from convdispatch.api import MOST_PHASES, ConvProblem, DeviceInfo, Solver, phase_count

from ..configured import MOST_BYTES
from ..pace import memory, pace
from ..probe import refusal, require
from .choice import choices, seconds
from .plan import DirectPlan
from .tiling import DirectTile, DirectTiling

_LEAST = 4  # channels of a group
_PLACES = 2**31 - 2**16  # places along an axis, with room for a tile's overhang


class Direct(Solver):
    """Products of float32 matrices where they lie, all directions of convolutions with 1x1 kernels."""

    def rejects(self, problem: ConvProblem, device: DeviceInfo) -> str | None:
        """Devices without the instructions, kernels that are not 1x1."""
        return self.limits(problem, device) or refusal(device, "direct")

    def limits(self, problem: ConvProblem, device: DeviceInfo) -> str | None:
        """What ``rejects`` says before it asks the device."""
        if problem.dtype != "float32":
            return f"float32 only, got {problem.dtype}"
        if phase_count(problem) > MOST_PHASES:
            return f"strides of {MOST_PHASES} phases at most, got {phase_count(problem)}"
        if problem.mb < 1:
            return f"1 image or more, got {problem.mb}"
        if problem.bytes > MOST_BYTES:
            return f"at most {MOST_BYTES} bytes, got {problem.bytes}"
        if problem.kd * problem.kh * problem.kw > 1:
            return f"1x1 kernels only, got {'x'.join(str(getattr(problem, 'k' + axis)) for axis in problem.axes)}"
        pads = [getattr(problem, "p" + axis + side) for axis in problem.axes for side in ("", "_r")]
        if any(pads):
            return f"no padding, got {max(pads)}"
        least = min(problem.ic, problem.oc) // problem.g
        if problem.g > 1 and least < _LEAST:
            return f"{_LEAST} channels a group or more, got {least}"
        places = problem.mb * problem.od * problem.oh * problem.ow
        if places > _PLACES:
            return f"at most {_PLACES} output pixels, got {places}"
        return None

    def configs(self, problem: ConvProblem, device: DeviceInfo) -> Iterator[Mapping[str, Any]]:
        """Tiles, the one that is expected to be fastest first."""
        for tile in choices(problem, device.compute_units):
            yield tile.config()

    def workspace(self, problem: ConvProblem, device: DeviceInfo, config: Mapping[str, Any]) -> int:
        """Partial sums."""
        return DirectTiling(problem, DirectTile.of(config)).partial_bytes

    def cost(self, problem: ConvProblem, device: DeviceInfo, config: Mapping[str, Any]) -> float:
        """Predicted, as fitted on an H200."""
        return seconds(problem, DirectTile.of(config), device.compute_units, memory(device)) * pace(device)

    def plan(self, context: Any, problem: ConvProblem, config: Mapping[str, Any]) -> DirectPlan:
        """Compile a configuration."""
        require(context, "direct")
        return DirectPlan(context, problem, config)
