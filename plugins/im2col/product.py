"""``target = weights x lowered(source)``: the forward convolution, and for stride 1 its data gradient.

A chunk of the source is lowered and multiplied while it is in the cache, then the next one.
"""

from __future__ import annotations

import functools
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
    Product,
    StepPlan,
    gemm_configs,
    gemm_cost,
    gemm_workspace,
    packed_layout,
    rates,
)
from convdispatch.api import GEMM_LAUNCH as LAUNCH
from convdispatch.api import GEMM_PACKED as PACKED
from convdispatch.api.cpu import Balance

from .lower import (
    CACHED_WEIGHT_BYTES,
    UNCACHED_PACKING_OPS,
    WIDE_PACKING_OPS,
    Lowering,
)
from .window import PatchWindow


def configs(problem: ConvProblem, device: DeviceInfo, caps: list[int]) -> Iterator[dict[str, Any]]:
    """Configurations: the product's choices under the first cap, then its first choice under the smaller ones."""
    flipped = problem.direction == "bwd_data"
    window = PatchWindow.of(problem, flipped)
    method, balance = "flipped" if flipped else "lower", Balance.of(rates(device))
    found_configs = []
    for form in _forms(window, device):
        # Configurations by product specification: the chunks of a small image are equal under many workspace caps.
        choices_by_spec: dict[GemmSpec, list[dict[str, Any]]] = {}
        for cap in caps:
            kind = {"kind": "cpu" if device.type == "cpu" else "gpu"}
            draft = WindowProduct(problem, {"method": method, "form": form, "cap": cap, "gemm": kind})
            spec = draft.spec(draft.largest)
            if spec not in choices_by_spec:
                choices_by_spec[spec] = choices = list(filter(draft.suits, gemm_configs(spec, device)))
                if draft.cpu and not problem.constant_weights:
                    choices.sort(key=functools.partial(draft.packing_cost, balance=balance))
            for gemm in choices_by_spec[spec][: 1 if cap != caps[0] else None]:
                config = {"method": method, "form": form, "cap": cap, "gemm": gemm}
                found_configs.append((caps.index(cap) > 0, config))
    yield from (config for _, config in sorted(found_configs, key=lambda pair: pair[0]))


def _forms(window: PatchWindow, device: DeviceInfo) -> list[str]:
    """Return the forms of the lowered matrix that suit the window, the best first."""
    if device.type != "cpu":
        return ["rows" if window.nhwc else "columns"]
    if not window.nhwc or DTYPES[window.dtype].widened:
        return ["panel"]
    # The form ``rows`` suits products whose vectors run along the target's channels; few channels do not fill a vector.
    return ["rows", "panel"] if window.group_targets >= 12 else ["panel", "rows"]


class WindowProduct:
    """The convolution as products over lowered chunks, under one configuration; nothing is compiled."""

    def __init__(self, problem: ConvProblem, config: Mapping[str, Any]) -> None:
        self.problem, self.config = problem, config
        self.flipped = config["method"] == "flipped"
        self.window = window = PatchWindow.of(problem, self.flipped)
        self.gemm = config["gemm"]  # Until the product's configuration is chosen, ``gemm`` has only the key ``kind``.
        self.cpu = self.gemm["kind"] == "cpu"
        form, position_bytes = config["form"], window.k * window.groups * window.accumulator_size
        self.chunks = window.chunks(max(1, config["cap"] // position_bytes))
        self.largest = self.chunks.largest
        width = 1
        if form == "panel" and "split" in self.gemm:
            width = packed_layout(self.spec(self.largest), self.gemm, "b").width
        self.lowering = Lowering(window, form, width, self.largest, narrow_stored=not self.cpu)

    @property
    def packs_weights(self) -> bool:
        """Whether the product reads packed weights: by configuration, and always if they are constant."""
        pack_key = "pack_b" if self.gemm.get("swap") else "pack_a"
        return self.cpu and (self.problem.constant_weights or bool(self.gemm.get(pack_key)))

    def packing_cost(self, gemm: Mapping[str, Any], balance: Balance) -> float:
        """Operations at peak rate that packing weights, which change at every call, takes under a product's choice.

        A swapped product packs them in wide panels, from as many rows, which compete for few sets of a cache.
        """
        window = self.window
        count = window.targets * window.k
        uncached = count * window.accumulator_size > CACHED_WEIGHT_BYTES
        narrow_ops = UNCACHED_PACKING_OPS if uncached else PACKED
        ops_per_weight = WIDE_PACKING_OPS[uncached] if gemm["swap"] else narrow_ops[self.flipped]
        return ops_per_weight * (balance.memory if uncached else 1.0) * count + LAUNCH * balance.launch

    def suits(self, gemm: Mapping[str, Any]) -> bool:
        """Whether a choice of the product fits the form of the lowered matrix: ``rows`` must not be packed."""
        if self.config["form"] != "rows" or gemm["kind"] != "cpu":
            return True
        return bool(gemm["swap"]) and not gemm["pack_a"]

    def spec(self, count: int) -> GemmSpec:
        """Return the specification of the product over a chunk of ``count`` window positions."""
        window, problem = self.window, self.problem
        # Before the product's configuration is chosen, a lowering with panels of width 1 stands in for the real one.
        lowering = getattr(self, "lowering", None) or Lowering(window, self.config["form"], 1, count)
        a, b, c = window.weights(self.flipped), lowering.matrix, window.tensor(window.targets)
        epilogue, panels = Epilogue.of(problem, Axis(window.group_targets)), self.config["form"] == "panel"
        sizes = (window.group_targets, count, window.k, window.groups)
        return GemmSpec(*sizes, window.dtype, a, b, c, epilogue, self.packs_weights, panels, self._alignment)

    @property
    def _alignment(self) -> int:
        if self.cpu:
            return 1
        return 4 if self.window.aligned(self.window.targets, self.chunks) else 1

    def areas(self) -> tuple[int, int, int]:
        """Byte offsets of the products' scratch memory and of the packed weights, and the workspace's size."""
        areas = Areas()
        areas.add(max(self.lowering.size(count) for count in self.chunks.sizes))
        scratch = areas.add(max(gemm_workspace(self.spec(count), self.gemm) for count in self.chunks.sizes))
        packed = areas.size
        if self.packs_weights and not self.problem.constant_weights:
            packed = areas.add(packed_layout(self.spec(self.largest), self.gemm, "a").size)
        return scratch, packed, areas.size

    @property
    def workspace_size(self) -> int:
        return self.areas()[-1]

    def cost(self, balance: Balance) -> float:
        """Return the predicted time on a CPU, in operations at the device's peak rate."""
        sizes = self.chunks.sizes.items()
        total = sum(times * gemm_cost(self.spec(count), self.gemm, balance) for count, times in sizes)
        total += self.lowering.cost(self.chunks, balance)
        if self.packs_weights and not self.problem.constant_weights:
            total += self.packing_cost(self.gemm, balance)
        return total

    def plan(self, context: Any) -> StepPlan:
        window, (scratch, packed, workspace_size) = self.window, self.areas()
        source, target = ("y", "x") if self.flipped else ("x", "y")
        products = {count: GemmPlan(context, self.spec(count), self.gemm) for count in self.chunks.sizes}
        largest_plan = products[self.largest]
        steps: list[Any] = []
        weights, weights_offset = "w", 0
        if self.packs_weights and not self.problem.constant_weights:
            weights, weights_offset = "workspace", packed // window.accumulator_size
            steps.append(largest_plan.packing(weights_offset))
        lowerings = self.lowering.launches(context, self.cpu, source, self.chunks)
        for (start, count), lowering in zip(self.chunks, lowerings, strict=True):
            offsets = (weights_offset, 0, window.offset(window.targets, start))
            steps += [lowering, Product(products[count], weights, "workspace", target, *offsets, scratch)]
        if not (self.packs_weights and self.problem.constant_weights):
            return StepPlan(workspace_size, steps)
        layout = packed_layout(largest_plan.spec, self.gemm, "a")
        key = f"im2col {self.problem.layout} {self.problem.dtype} {self.problem.w_shape} g{window.groups} "
        key += f"{self.config['method']} width {layout.width}"
        return StepPlan(workspace_size, steps, layout.size, [largest_plan.packing()], key)
