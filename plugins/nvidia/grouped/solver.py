"""nvidia.grouped: 16-bit convolutions of small groups and of strided gradients on tensor cores, channels last."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import SimpleNamespace
from typing import Any

from convdispatch.api import EPILOGUE, OPERANDS, ConvProblem, DeviceInfo, Launch, Solver, StepPlan, build, kernel_text

from .. import SHARED
from ..instructions import Instructions
from ..pace import memory, pace
from ..probe import refusal, require
from .choice import choices, seconds
from .sums import GroupedSums, SumsTile
from .sums import choices as sums_choices
from .sums import seconds as sums_seconds
from .tiling import GroupedTile, GroupedTiling, reads_of

__all__ = ["Grouped", "GroupedPlan", "GroupedSumsPlan"]

_PHASES = 16  # a program has a body for each


class GroupedPlan(StepPlan):
    """A Plan; see ``product.cl.mako`` for what the launch computes. ``emulate`` builds plain C (tests)."""

    def __init__(self, context: Any, problem: ConvProblem, config: Mapping[str, Any], *, emulate: bool = False) -> None:
        self.tiling, self._emulate = GroupedTiling(problem, GroupedTile.of(config)), emulate
        source, written = ("x", "y") if problem.direction == "fwd" else ("y", "x")
        given = ["w", source, written, *(name for name in ("bias", "residual") if getattr(problem, name))]
        size, items = (self.tiling.work_groups * self.tiling.tile.items,), (self.tiling.tile.items,)
        step = Launch(build(context, self.product_text()), "grouped", size, items, given, names=OPERANDS)
        super().__init__(0, [step])

    def product_text(self) -> str:
        """The program."""
        tiling = self.tiling
        text = tiling.problem.macros() + f"#define OUT_INDEX {tiling.out_index}\n"
        text += "#define PARTIAL 0\n#define PARTIAL_AT 0L\n#define OCTETS 0\n"
        text += Instructions("bf16" if tiling.bfloat else "f16", ("copies", "mma")).text(self._emulate)
        text += kernel_text(
            SHARED, "narrow.cl.mako", tiling=SimpleNamespace(format=SimpleNamespace(bfloat=tiling.bfloat))
        )
        text += kernel_text(SHARED, "finish.cl")
        return text + kernel_text(
            __package__, "product.cl.mako", tiling=tiling, emulate=self._emulate, reads_of=reads_of
        )


class GroupedSumsPlan(StepPlan):
    """A Plan of the weights' gradient; see ``sums.cl.mako``. ``emulate`` builds plain C (tests)."""

    def __init__(self, context: Any, problem: ConvProblem, config: Mapping[str, Any], *, emulate: bool = False) -> None:
        tiling = self.tiling = GroupedSums(problem, SumsTile.of(config))
        fold = problem.macros() + "#define PARTIAL 0\n" + kernel_text(SHARED, "finish.cl")
        lanes = 8 if tiling.tile.parts >= 16 else 1
        fold += kernel_text(f"{SHARED}.direct", "reduce.cl.mako", elements=tiling.size, split=tiling.tile.parts,
                            lanes=lanes, inner=1, channels=problem.oc)  # fmt: skip
        size, items = (tiling.work_groups * tiling.items,), (tiling.items,)
        steps = [
            Launch(build(context, self.sums_text(tiling, emulate)), "sums", size, items, "y x workspace",
                   names=OPERANDS),
            Launch(build(context, fold), "reduce", (-(-tiling.size * lanes // 256) * 256,), (256,), "workspace w",
                   names=OPERANDS),
        ]  # fmt: skip
        super().__init__(tiling.workspace_size, steps)

    @staticmethod
    def sums_text(tiling: GroupedSums, emulate: bool) -> str:
        """The program of the parts' sums."""
        text = Instructions("bf16" if tiling.bfloat else "f16", ("copies", "mma")).text(emulate)
        return text + kernel_text(__package__, "sums.cl.mako", tiling=tiling, emulate=emulate)


class Grouped(Solver):
    """All directions, 16-bit, channels last, where a slab of channels reads few others."""

    name = "nvidia.grouped"
    deterministic = True
    exact = True
    fuses = EPILOGUE

    def rejects(self, problem: ConvProblem, device: DeviceInfo) -> str | None:
        """Devices without the instructions, other dtypes and layouts."""
        return self.limits(problem, device) or refusal(device, "grouped")

    def limits(self, problem: ConvProblem, device: DeviceInfo) -> str | None:
        """What ``rejects`` says before it asks the device."""
        if device.vendor != "nvidia" or device.type != "gpu":
            return f"nvidia gpus only, got {device.vendor} {device.type}"
        if problem.dtype not in ("float16", "bfloat16"):
            return f"float16 and bfloat16 only, got {problem.dtype}"
        if problem.layout != "nhwc":
            return f"channels last only, got {problem.layout}"
        if problem.mb < 1:
            return f"1 image or more, got {problem.mb}"
        if problem.ic % 8 or problem.oc % 8:
            return f"channels in multiples of eight, got {problem.ic} and {problem.oc}"
        if problem.direction == "bwd_weights":
            return GroupedSums(problem, SumsTile(places=64)).misfit
        if problem.ndim > 2:
            return f"1 or 2 axes, got {problem.ndim}"
        tiling = GroupedTiling(problem, GroupedTile(frag_m=1))
        if len(tiling.geometry.phases) > _PHASES:
            return f"strides of up to {_PHASES} phases, got {len(tiling.geometry.phases)}"
        return tiling.misfit

    def configs(self, problem: ConvProblem, device: DeviceInfo) -> Iterator[Mapping[str, Any]]:
        """Tiles, the one that is expected to be fastest first."""
        tiles = sums_choices if problem.direction == "bwd_weights" else choices
        for tile in tiles(problem, device.compute_units):
            yield tile.config()

    def workspace(self, problem: ConvProblem, device: DeviceInfo, config: Mapping[str, Any]) -> int:
        """Parts of the weights' gradient."""
        return GroupedSums(problem, SumsTile.of(config)).workspace_size if problem.direction == "bwd_weights" else 0

    def cost(self, problem: ConvProblem, device: DeviceInfo, config: Mapping[str, Any]) -> float:
        """Predicted, as fitted on an H200."""
        if problem.direction == "bwd_weights":
            sums = GroupedSums(problem, SumsTile.of(config))
            return sums_seconds(sums, device.compute_units, memory(device)) * pace(device)
        tiling = GroupedTiling(problem, GroupedTile.of(config))
        return seconds(tiling, device.compute_units, memory(device)) * pace(device)

    def plan(self, context: Any, problem: ConvProblem, config: Mapping[str, Any]) -> GroupedPlan | GroupedSumsPlan:
        """Compile a configuration."""
        require(context, "grouped")
        return (GroupedSumsPlan if problem.direction == "bwd_weights" else GroupedPlan)(context, problem, config)
