"""The weights' gradient, ``dw[oc, k] = sum over pixels p of dy[oc, p] L[k, p]``, one chunk of pixels after another.

16-bit tensors are summed in a float32 copy of dw, which is rounded once at the end.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from convdispatch.api import (
    DTYPES,
    Areas,
    Axis,
    ConvProblem,
    DeviceInfo,
    Epilogue,
    GemmPlan,
    GemmSpec,
    Matrix,
    Product,
    StepPlan,
    gemm_configs,
    gemm_cost,
    gemm_workspace,
    rates,
)
from convdispatch.api import GEMM_LAUNCH as LAUNCH
from convdispatch.api.cpu import Balance

from .convert import WideCopies
from .lower import Lowering
from .window import PatchWindow


def configs(problem: ConvProblem, device: DeviceInfo, caps: list[int]) -> Iterator[dict[str, Any]]:
    """Configurations: the product's choices under the first cap, then its first choice under the smaller ones."""
    kind = {"kind": "cpu" if device.type == "cpu" else "gpu"}
    for cap in caps:
        draft = WeightsProduct(problem, {"method": "weights", "cap": cap, "gemm": kind})
        spec = draft.spec(draft.chunks.largest, problem.accumulate)
        choices = [{"method": "weights", "cap": cap, "gemm": gemm} for gemm in gemm_configs(spec, device)]
        if draft.cpu:
            balance = Balance.of(rates(device))
            choices.sort(key=lambda config: WeightsProduct(problem, config).rating(balance))
        else:
            choices.sort(key=lambda config: draft.packs_lowered(config["gemm"]))
        yield from choices[: 1 if cap != caps[0] else None]


class WeightsProduct:
    """The weights' gradient as products over lowered chunks, under one configuration; nothing is compiled."""

    def __init__(self, problem: ConvProblem, config: Mapping[str, Any]) -> None:
        self.problem, self.gemm = problem, config["gemm"]
        self.cpu = self.gemm["kind"] == "cpu"
        self.window = window = PatchWindow.of(problem)
        self.chunks = window.chunks(max(1, config["cap"] // (window.k * window.groups * window.accumulator_size)))
        self.lowering = Lowering(window, "rows" if window.nhwc else "columns", most=self.chunks.largest)
        # A single product rounds its 16-bit result once; the results of several chunks are summed in float32 first.
        self.widened = DTYPES[problem.dtype].widened

    def packs_lowered(self, gemm: Mapping[str, Any]) -> bool:
        """Whether a choice of the product would copy the lowered matrix once more."""
        return bool(gemm.get("pack_a" if gemm.get("swap") else "pack_b"))

    def rating(self, balance: Balance) -> float:
        """The sort key of configurations: predicted cost, 10% more if the product copies the lowered matrix again."""
        spec, times = self.spec(self.chunks.largest, self.problem.accumulate), self.chunks.count
        return times * gemm_cost(spec, self.gemm, balance) * (1.1 if self.packs_lowered(self.gemm) else 1.0)

    def spec(self, count: int, accumulate: bool) -> GemmSpec:
        """Return the product over ``count`` pixels; with ``accumulate`` it is added to the old values of the result."""
        window = self.window
        dtype, c = "float32" if self.widened else window.dtype, Axis(window.group_targets * window.k)
        sizes, a = (window.group_targets, window.k, count, window.groups), window.tensor(window.targets)
        c = Matrix(Axis(window.k), Axis(1), c)
        epilogue = Epilogue(accumulate=accumulate)
        lowered = self.lowering.matrix.transposed
        return GemmSpec(*sizes, dtype, a, lowered, c, epilogue, alignment=self._alignment)

    @property
    def _alignment(self) -> int:
        window = self.window
        return 4 if not self.cpu and window.aligned(window.targets, self.chunks) else 1

    @property
    def _first_accumulates(self) -> bool:
        """Whether the first product is added to the old values of the result, as all other products are."""
        return self.problem.accumulate and not self.widened

    def _specs(self) -> Counter[GemmSpec]:
        """Return the products' specifications and how often each is computed."""
        counts: Counter[GemmSpec] = Counter({self.spec(self.chunks.largest, self._first_accumulates): 1})
        for count, times in self.chunks.sizes.items():
            counts[self.spec(count, True)] += times - (count == self.chunks.largest)
        return +counts

    def areas(self) -> tuple[int, WideCopies, int]:
        """(byte offset of scratch memory, copies of dy and dw, bytes of the workspace)."""
        areas = Areas()
        areas.add(max(self.lowering.size(count) for count in self.chunks.sizes))
        scratch = areas.add(max(gemm_workspace(spec, self.gemm_for(spec)) for spec in self._specs()))
        return scratch, WideCopies(self.problem, self.cpu, areas), areas.size

    def gemm_for(self, spec: GemmSpec) -> dict[str, Any]:
        """The product's configuration for one chunk: a chunk shorter than the first is not split further."""
        gemm = dict(self.gemm)
        if gemm["split"] > 1:
            gemm["split"] = -(-spec.k // gemm["ks"])
        return gemm

    @property
    def workspace_size(self) -> int:
        return self.areas()[-1]

    def cost(self, balance: Balance) -> float:
        """Return the predicted time on a CPU, in operations at the device's peak rate."""
        total = sum(times * gemm_cost(spec, self.gemm_for(spec), balance) for spec, times in self._specs().items())
        total += self.lowering.cost(self.chunks, balance)
        return total + self.areas()[1].cost(LAUNCH * balance.launch)

    def plan(self, context: Any) -> StepPlan:
        window, (scratch, copies, workspace_size) = self.window, self.areas()
        (gradient, gradient_offset), (result, result_offset) = copies.place("y"), copies.place("w")
        steps: list[Any] = copies.read(context, "y")
        lowerings = self.lowering.launches(context, self.cpu, "x", self.chunks)
        plans: dict[GemmSpec, GemmPlan] = {}
        for (start, count), lowering in zip(self.chunks, lowerings, strict=True):
            spec = self.spec(count, self._first_accumulates or start > 0)
            if spec not in plans:
                plans[spec] = GemmPlan(context, spec, self.gemm_for(spec))
            offsets = (gradient_offset + window.offset(window.targets, start), 0, result_offset)
            steps += [lowering, Product(plans[spec], gradient, "workspace", result, *offsets, scratch)]
        return StepPlan(workspace_size, [*steps, *copies.write(context, "w")])
