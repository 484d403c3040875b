"""nvidia.direct: convolutions with 1x1 kernels on tensor cores without a packing pass. The solver and its plan."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from convdispatch.api import EPILOGUE, OPERANDS, ConvProblem, DeviceInfo, Launch, Solver, StepPlan, build, kernel_text

from .. import SHARED
from ..configured import MOST_BYTES
from ..instructions import Instructions
from ..pace import memory, pace
from ..parts import parts_text
from ..probe import refusal, require
from .choice import choices, seconds
from .tiling import DirectTile, DirectTiling

__all__ = ["Direct", "DirectPlan"]

_LEAST = 4  # channels of a group
_PLACES = 2**31 - 2**16  # places along an axis, with room for a tile's overhang


class DirectPlan(StepPlan):
    """A Plan; see ``product.cl.mako`` for what the launches compute. ``emulate`` builds plain C (tests)."""

    def __init__(self, context: Any, problem: ConvProblem, config: Mapping[str, Any], *, emulate: bool = False) -> None:
        self._units = context.devices[0].max_compute_units if context else 1  # work groups that surely run at once
        self.tiling, self._emulate = DirectTiling(problem, DirectTile.of(config)), emulate
        self._partial = self.tiling.tile.split > 1 and not self.tiling.tile.fixup
        steps = [self._product(context)]
        if self._partial:
            steps.append(self._reduce(context))
        super().__init__(self.tiling.partial_bytes, steps)

    def _common(self, partial: bool) -> str:
        text = self.tiling.problem.macros() + f"#define OUT_INDEX {self.tiling.out_index}\n"
        text += f"#define PARTIAL {int(partial)}\n#define PARTIAL_AT 0L\n"
        return text + kernel_text(SHARED, "finish.cl")

    def product_text(self) -> str:
        """The product's program."""
        depth = self.tiling.tile.depth
        fixup = self.tiling.tile.fixup
        groups = ("copies", "mma", "parts") if fixup else ("copies", "mma")
        instructions = Instructions("bf16" if depth == 16 else "tf32", groups)
        text = self._common(self._partial) + instructions.text(self._emulate) + kernel_text(SHARED, "sums.cl")
        text += parts_text(self.tiling, self.tiling.tile.split, self.tiling.tile.frag_m) if fixup else ""
        text += kernel_text(__package__, "split.cl.mako", depth=depth)
        return text + kernel_text(__package__, "product.cl.mako", tiling=self.tiling, emulate=self._emulate,
                                  at_once=self._units)  # fmt: skip

    def _written(self) -> list[str]:
        problem = self.tiling.problem
        return [problem.written, *(name for name in ("bias", "residual") if getattr(problem, name))]

    def _product(self, context: Any) -> Launch:
        tiling = self.tiling
        given = [operand.name for operand in tiling.operands]
        given += ["workspace"] if self._partial or tiling.tile.fixup else []
        given += [] if self._partial else self._written()
        size = (tiling.work_groups * tiling.tile.items,)
        return Launch(build(context, self.product_text()), "direct", size, (tiling.tile.items,), given, names=OPERANDS)

    def _reduce(self, context: Any) -> Launch:
        tiling, problem = self.tiling, self.tiling.problem
        inner = 1 if tiling.nhwc else math.prod(problem.out_shape[2:])
        text = self._common(False) + kernel_text(
            __package__, "reduce.cl.mako", elements=tiling.partial_elements, split=tiling.tile.split,
            lanes=tiling.lanes, inner=inner, channels=problem.channels_out)  # fmt: skip
        size = (-(-tiling.partial_elements * tiling.lanes // 256) * 256,)
        return Launch(build(context, text), "reduce", size, (256,), ["workspace", *self._written()], names=OPERANDS)


class Direct(Solver):
    """Products of float32 matrices where they lie, all directions of convolutions with 1x1 kernels."""

    name = "nvidia.direct"
    exact = True
    fuses = EPILOGUE

    def rejects(self, problem: ConvProblem, device: DeviceInfo) -> str | None:
        """Devices without the instructions, kernels that are not 1x1."""
        return self.limits(problem, device) or refusal(device, "direct")

    def limits(self, problem: ConvProblem, device: DeviceInfo) -> str | None:
        """What ``rejects`` says before it asks the device."""
        if device.vendor != "nvidia" or device.type != "gpu":
            return f"nvidia gpus only, got {device.vendor} {device.type}"
        if problem.dtype != "float32":
            return f"float32 only, got {problem.dtype}"
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
