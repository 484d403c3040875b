"""Base classes of this folder's CPU kernels and solvers: macros, launches, packed weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from convdispatch.api import (
    DTYPES,
    OPERANDS,
    Areas,
    ConvProblem,
    DeviceInfo,
    Launch,
    Solver,
    StepPlan,
    build,
    define,
    epilogue_macros,
    kernel_text,
    rates,
    storage_macros,
)
from convdispatch.api.cpu import PAGE, Balance, transposed

from .passes import Pass


class Kernel:
    """Base of the kernels: one configuration of one pass; every size is computed, nothing is compiled."""

    workspace_size = 0

    def __init__(self, problem: ConvProblem, config: Mapping[str, Any], p: Pass) -> None:
        self.problem, self.config, self.p = problem, config, p
        self.lanes = config["lanes"]
        self.size = p.accumulator_size
        """Bytes of one accumulator."""
        self.source, self.target = ("y", "x") if problem.direction == "bwd_data" else ("x", "y")
        self._program: Any = None

    def macros(self, names: str = "XYTSD", **values: object) -> str:
        """Element types, vector types and sizes of the pass as OpenCL text; ``names`` as for ``Pass.macros``."""
        p, problem = self.p, self.problem
        text = storage_macros(p.dtype) + ("" if problem.direction == "bwd_weights" else epilogue_macros(problem))
        return text + self.vector_macros() + p.macros(names) + define(IMAGES=p.images, **values)

    def vector_macros(self) -> str:
        """Return the macros LANES (elements of a vector), V (its type) and KEPT (an integer vector of equal size)."""
        integer = {4: "int", 8: "long"}[self.size]
        kind = DTYPES[self.p.dtype].accumulator
        return define(LANES=self.lanes, V=f"{kind}{self.lanes}", KEPT=f"{integer}{self.lanes}")

    def rendered(self, files: Sequence[str], **values: Any) -> str:
        """Return the text of kernel files, all rendered with the same values."""
        return "".join(kernel_text(__package__, file, transposed=transposed, **values) for file in files)

    def text(self) -> str:
        """Return the OpenCL text of the program."""
        raise NotImplementedError

    def cost(self, balance: Balance, device: DeviceInfo) -> float:
        """Return the predicted time, in operations at the device's peak rate."""
        raise NotImplementedError

    def seconds(self, device: DeviceInfo) -> float:
        """Return the predicted time in seconds."""
        peaks = rates(device)
        return self.cost(Balance.of(peaks), device) / peaks.flops

    def launch(self, context: Any, name: str, items: Sequence[int], arguments: Sequence[Any]) -> Launch:
        """A launch of kernel ``name`` of this program over ``items`` work groups of one work item."""
        if self._program is None:
            self._program = build(context, self.text())
        return Launch(self._program, name, (*items, 1, 1)[:3], (1, 1, 1), arguments, names=OPERANDS)


class PackedKernel(Kernel):
    """A kernel that reads packed weights, which ``packer`` writes first."""

    packed_size: int
    """Bytes of the packed weights."""
    slots_size: int
    """Bytes of the workspace that the convolution itself needs."""

    def packer(self, context: Any, offset: int) -> Launch:
        """Return the launch that packs w into the workspace, or the packed buffer, from byte ``offset`` on."""
        raise NotImplementedError

    def convolution(self, context: Any, weights: str, offset: int) -> Launch:
        """Return the launch of the convolution; packed weights begin at byte ``offset`` of operand ``weights``."""
        raise NotImplementedError


class PackedSolver(Solver):
    """A solver with one packed kernel per pass; the workspace has slots, then packed weights that are not constant."""

    def kernels(self, problem: ConvProblem, config: Mapping[str, Any], device: Any) -> list[Any]:
        """The passes' kernels; ``device`` has ``simd_width`` and ``compute_units``."""
        raise NotImplementedError

    def pack_key(self, problem: ConvProblem, config: Mapping[str, Any], kernels: list[Any]) -> Any:
        """Return a JSON value that is equal for plans whose packed weights are equal."""
        return [self.name, str(problem), dict(config)]

    def workspace(self, problem: ConvProblem, device: DeviceInfo, config: Mapping[str, Any]) -> int:
        _, weights, slots = _areas(self.kernels(problem, config, device))
        return slots if problem.constant_weights else slots + weights

    def plan(self, context: Any, problem: ConvProblem, config: Mapping[str, Any]) -> StepPlan:
        device = _Device(config["lanes"] * problem.accumulator_size // 4, context.devices[0].max_compute_units)
        kernels = self.kernels(problem, config, device)
        offsets, weights, slots = _areas(kernels)
        operand, base = ("w", 0) if problem.constant_weights else ("workspace", slots)
        starts = [(kernel, offset + base) for kernel, offset in zip(kernels, offsets, strict=True)]
        packers = [kernel.packer(context, start) for kernel, start in starts]
        steps = [kernel.convolution(context, operand, start) for kernel, start in starts]
        once, key = problem.constant_weights, self.pack_key(problem, config, kernels)
        return StepPlan.packing(once, slots if once else slots + weights, packers, steps, weights, key)


def _areas(kernels: list[Any]) -> tuple[list[int], int, int]:
    """(byte offset of each pass's packed weights, bytes of all packed weights, bytes of slots, which passes share)."""
    weights = Areas(PAGE)
    offsets = [weights.add(kernel.packed_size) for kernel in kernels]
    return offsets, weights.size, max(kernel.slots_size for kernel in kernels)


class _Device:
    """The two fields of a DeviceInfo that the choice of tiles depends on, from a configuration and a context."""

    def __init__(self, simd_width: int, compute_units: int) -> None:
        self.simd_width, self.compute_units = simd_width, compute_units
