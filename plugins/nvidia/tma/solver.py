"""nvidia.tma: channels-last tensors of 16 bits, or of float32 for TF32, read where they lie by Hopper's copy engine."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from convdispatch.api import OPERANDS, ConvProblem, DeviceInfo, Launch, build, kernel_text

from .. import SHARED
from ..hopper import build_for_hopper
from ..pace import memory
from ..packed.launch import written
from ..packed.plan import Layout, NvidiaPlan
from ..packed.solver import TensorCores
from ..packed.source import Source
from ..packed.tiling import Tiling
from ..parts import parts_text
from ..probe import refusal, require
from .choice import choices, seconds
from .fold import fold_launch
from .gather import gathers, w_launch, x_launch
from .maps import WORDS, missing
from .tiling import MAPS, TmaTile, TmaTiling
from .turn import turn_launch

__all__ = ["Tma", "TmaPlan"]


class TmaPlan(NvidiaPlan):
    """A Plan; see ``product.cl.mako``."""

    tiling: TmaTiling

    def _tiling_of(self, problem: ConvProblem, config: Mapping[str, Any]) -> Tiling:
        self._unfolded = problem
        return TmaTiling.of(problem, TmaTile.of(config))

    def _key(self) -> str:
        return repr((self.tiling.tile.pixels, self.tiling.tile.taps, super()._key()))

    def _pack(self, context: Any, tensors: Sequence[tuple[str, Source | None]]) -> list[Launch]:
        """Nothing, but for weights of folded pixels and turned ones, and the operands of first layers."""
        at, problem, tiling = self._where.at, self._unfolded, self.tiling
        if tiling.tile.taps:
            launches = {"x": x_launch, "w": w_launch}
            return [launches[name](context, problem, tiling.tile.taps, at[name]) for name, _ in tensors]
        if not tensors:
            return []
        if tiling.turned_weights:
            return [turn_launch(context, problem, at["w"] // 4)]
        return [fold_launch(context, problem, tiling.tile.pixels, at["w"] // 2)]

    def product_text(self) -> str:
        """The product's program."""
        tiling, where = self.tiling, self._where
        text = self._common + f"#define PARTIAL {int(tiling.partial)}\n#define PARTIAL_AT {where.partial // 4}L\n"
        text += f"#define PAIRS 0\n#define OCTETS 1\n#define B_AT {where.at.get('w', 0) // 2}L\n"
        text += f"#define A_AT {where.at.get('x', 0) // 2}L\n"
        encoded = [(0,) * WORDS] * 2 if self._emulate else [each.encode() for each in tiling.maps]
        text += tiling.instructions.text(self._emulate)
        for file in ("finish.cl",) if tiling.format.tf32 else ("narrow.cl.mako", "finish.cl"):
            text += kernel_text(SHARED, file, tiling=tiling)
        text += parts_text(tiling, tiling.tile.split, tiling.tile.bn // 32) if tiling.tile.fixup else ""
        text += kernel_text(__package__, "copies_emulated.cl.mako", tiling=tiling) if self._emulate else ""
        text += kernel_text(__package__, "exchange.cl.mako", emulate=self._emulate)
        return text + kernel_text(__package__, "product.cl.mako", tiling=tiling, emulate=self._emulate, encoded=encoded,
                                  maps_at=where.maps, maps_each=MAPS, partial_at=where.partial)  # fmt: skip

    def _product(self, context: Any) -> Launch:
        tiling, text = self.tiling, self.product_text()
        t = tiling.tile
        a, b = ("y", "x") if not tiling.data else ("workspace" if tiling.sources else tiling.source.name, "w")
        if tiling.data and not tiling.direct_weights and not self._where.constant:
            b = "workspace"
        given = [a, b, "workspace"]
        given += ["workspace"] if tiling.partial else written(tiling.problem)
        program = build(context, text) if self._emulate else build_for_hopper(context, text)
        items = t.items if self._emulate else t.items + 32
        groups = tiling.groups(context.devices[0].max_compute_units)
        return Launch(program, "product", (groups * items,), (items,), given, names=OPERANDS)


def _engine(problem: ConvProblem) -> str:
    """What the device must prove (``probe``)."""
    return "tma" if problem.itemsize == 2 else "tma_tf32"


class Tma(TensorCores):
    """``wgmma`` fed by a warp that does nothing else; see ``product.cl.mako``."""

    def __init__(self) -> None:
        super().__init__("wgmma")
        self.name = "nvidia.tma"

    def rejects(self, problem: ConvProblem, device: DeviceInfo) -> str | None:
        """What the copy engine cannot gather, and devices without one."""
        return self.limits(problem, device) or missing() or refusal(device, _engine(problem))

    def limits(self, problem: ConvProblem, device: DeviceInfo) -> str | None:
        """What ``rejects`` says before it asks the device."""
        if device.vendor != "nvidia" or device.type != "gpu":
            return f"nvidia gpus only, got {device.vendor} {device.type}"
        if problem.dtype == "float32":
            if problem.math not in ("tf32", "fast"):
                return f"float32 for math tf32 and fast only, got {problem.math}"
        elif problem.dtype not in ("float16", "bfloat16"):
            return f"float16, bfloat16 and float32 only, got {problem.dtype}"
        if problem.mb < 1:
            return f"1 image or more, got {problem.mb}"
        number, depth = (problem.dtype, 32) if problem.itemsize == 2 else ("tf32", 16)
        depth = 64 if problem.direction == "bwd_weights" else depth
        tiling = TmaTiling.of(problem, TmaTile(64, 64, 1, 1, number, "wgmma", depth, block=32, taps=gathers(problem)))
        reason = tiling.misfit
        return f"{reason} only" if reason else None

    def configs(self, problem: ConvProblem, device: DeviceInfo) -> Iterator[Mapping[str, Any]]:
        """Tiles, the one that is expected to be fastest first."""
        for tile in choices(problem, device.compute_units):
            config = tile.config()
            config.pop("engine", None)
            yield config

    def _tiling(self, problem: ConvProblem, config: Mapping[str, Any]) -> TmaTiling:
        return TmaTiling.of(problem, TmaTile.of({**config, "engine": "wgmma"}))

    def workspace(self, problem: ConvProblem, device: DeviceInfo, config: Mapping[str, Any]) -> int:
        """Partial sums and the work groups' maps."""
        return Layout(self._tiling(problem, config)).size

    def seconds(self, problem: ConvProblem, device: DeviceInfo, config: Mapping[str, Any]) -> float:
        """Predicted."""
        return seconds(self._tiling(problem, config), device.compute_units, memory(device))

    def plan(self, context: Any, problem: ConvProblem, config: Mapping[str, Any]) -> TmaPlan:
        """Compile a configuration."""
        require(context, _engine(problem))
        return TmaPlan(context, problem, config, "wgmma")
