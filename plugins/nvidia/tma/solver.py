"""nvidia.tma: 16-bit tensors, channels last, read where they lie by Hopper's copy engine; nothing is packed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from convdispatch.api import OPERANDS, ConvProblem, DeviceInfo, Launch, build, kernel_text

from .. import SHARED
from ..formats import formats
from ..hopper import build_for_hopper
from ..pace import memory
from ..packed.job import Job
from ..packed.launch import written
from ..packed.plan import Layout, NvidiaPlan
from ..packed.solver import TensorCores
from ..packed.source import Source
from ..parts import parts_text
from ..probe import refusal, require
from .choice import choices, seconds
from .fold import fold_launch
from .job import MAPS, TmaJob, TmaTile
from .maps import WORDS, missing

__all__ = ["Tma", "TmaPlan"]


class TmaPlan(NvidiaPlan):
    """A Plan; see ``product.cl.mako``."""

    job: TmaJob

    def _job_of(self, problem: ConvProblem, config: Mapping[str, Any]) -> Job:
        self._unfolded = problem
        return TmaJob.of(problem, TmaTile.of(config))

    def _key(self) -> str:
        return repr((self.job.tile.pixels, super()._key()))

    def _pack(self, context: Any, tensors: Sequence[tuple[str, Source | None]]) -> list[Launch]:
        """Nothing, but for weights of folded pixels."""
        where, pixels = self._where.at, self.job.tile.pixels
        return [fold_launch(context, self._unfolded, pixels, where["w"] // 2)] if tensors else []

    def product_text(self) -> str:
        """The product's program."""
        job, where = self.job, self._where
        text = self._common + f"#define PARTIAL {int(job.partial)}\n#define PARTIAL_AT {where.partial // 4}L\n"
        text += f"#define PAIRS 0\n#define OCTETS 1\n#define B_AT {where.at.get('w', 0) // 2}L\n"
        encoded = [(0,) * WORDS] * 2 if self._emulate else [each.encode() for each in job.maps]
        text += job.instructions.text(self._emulate)
        for file in ("narrow.cl.mako", "finish.cl"):
            text += kernel_text(SHARED, file, job=job)
        text += parts_text(job, job.tile.split, job.tile.bn // 32) if job.tile.fixup else ""
        text += kernel_text(__package__, "copies_emulated.cl.mako", job=job) if self._emulate else ""
        text += kernel_text(__package__, "exchange.cl.mako", emulate=self._emulate)
        return text + kernel_text(__package__, "product.cl.mako", job=job, emulate=self._emulate, encoded=encoded,
                                  maps_at=where.maps, maps_each=MAPS, partial_at=where.partial)  # fmt: skip

    def _product(self, context: Any) -> Launch:
        job, text = self.job, self.product_text()
        t = job.tile
        a, b = ("y", "x") if not job.data else (job.source.name, "w")
        if job.data and not job.direct_weights and not self._where.constant:
            b = "workspace"
        given = [a, b, "workspace"]
        given += ["workspace"] if job.partial else written(job.problem)
        program = build(context, text) if self._emulate else build_for_hopper(context, text)
        items = t.items if self._emulate else t.items + 32
        groups = job.groups(context.devices[0].max_compute_units)
        return Launch(program, "product", (groups * items,), (items,), given, names=OPERANDS)


class Tma(TensorCores):
    """``wgmma`` fed by a warp that does nothing else; see ``product.cl.mako``."""

    def __init__(self) -> None:
        super().__init__("wgmma")
        self.name = "nvidia.tma"

    def rejects(self, problem: ConvProblem, device: DeviceInfo) -> str | None:
        """What the copy engine cannot gather, and devices without one."""
        return self.limits(problem, device) or missing() or refusal(device, "tma")

    def limits(self, problem: ConvProblem, device: DeviceInfo) -> str | None:
        """What ``rejects`` says before it asks the device."""
        if device.vendor != "nvidia" or device.type != "gpu":
            return f"nvidia gpus only, got {device.vendor} {device.type}"
        if problem.dtype not in ("float16", "bfloat16") or not formats(problem):
            return f"float16 and bfloat16 only, got {problem.dtype}"
        if problem.mb < 1:
            return f"1 image or more, got {problem.mb}"
        small = TmaTile(
            64, 64, 1, 1, problem.dtype, "wgmma", 64 if problem.direction == "bwd_weights" else 32, block=32
        )
        job = TmaJob(problem, small)
        reason = job.misfit
        return f"{reason} only" if reason else None

    def configs(self, problem: ConvProblem, device: DeviceInfo) -> Iterator[Mapping[str, Any]]:
        """Tiles, the one that is expected to be fastest first."""
        for tile in choices(problem, device.compute_units):
            config = tile.config()
            config.pop("engine", None)
            yield config

    def _job(self, problem: ConvProblem, config: Mapping[str, Any]) -> TmaJob:
        return TmaJob.of(problem, TmaTile.of({**config, "engine": "wgmma"}))

    def workspace(self, problem: ConvProblem, device: DeviceInfo, config: Mapping[str, Any]) -> int:
        """Partial sums and the work groups' maps."""
        return Layout(self._job(problem, config)).size

    def seconds(self, problem: ConvProblem, device: DeviceInfo, config: Mapping[str, Any]) -> float:
        """Predicted."""
        return seconds(self._job(problem, config), device.compute_units, memory(device))

    def plan(self, context: Any, problem: ConvProblem, config: Mapping[str, Any]) -> TmaPlan:
        """Compile a configuration."""
        require(context, "tma")
        return TmaPlan(context, problem, config, "wgmma")
