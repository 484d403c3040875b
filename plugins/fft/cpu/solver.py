"""Compiles a geometry into the launches of its pieces."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from convdispatch.api import OPERANDS, ConvProblem, DeviceInfo, Launch, Solver, StepPlan, build, rates
from convdispatch.api.cpu import Balance

from ..tiling import unsuited
from .choice import choices, has_configs, predicted
from .geometry import Geometry, Piece
from .source import program_text


class _Launches:
    """Builds the launches of one geometry's program."""

    def __init__(self, context: Any, g: Geometry) -> None:
        self.g, self.areas = g, g.areas
        self.program = build(context, program_text(g))

    def _launch(self, kernel: str, size: tuple[int, ...], arguments: list[Any]) -> Launch:
        typed = [np.int32(a) if isinstance(a, int) else a for a in arguments]
        return Launch(self.program, kernel, size, (1, 1, 1), typed, names=OPERANDS)

    def _divided_launch(self, kernel: str, jobs: int, operands: list[str], offset: int, *rest: int) -> Launch:
        items = min(jobs, self.g.config["items"])
        return self._launch(kernel, (items, 1, 1), [*operands, np.int64(offset // 4), items, *rest])

    def kernels(self, group: int, groups: int, block: int, blocks: int, offset: int) -> Launch:
        if self.g.along_c:
            block, blocks = 0, self.g.kernel_blocks
        jobs = groups * blocks * self.g.kernel_rows
        return self._divided_launch("kernels", jobs, ["w", "workspace"], offset, group, groups, block, blocks)

    def forward(self, name: str, operand: str, area: str, piece: Piece, block: int, blocks: int) -> Launch:
        return self._divided_launch(
            name, piece.groups * blocks * piece.rows, [operand, "workspace"], self.areas[area],
            piece.group, piece.groups, block, blocks, piece.row, piece.rows,
        )  # fmt: skip

    def product(self, piece: Piece) -> Launch:
        g, areas = self.g, self.areas
        size = (g.frequencies, piece.groups, 1)
        if g.weights_gradient:
            rows, blocks = -(-min(piece.blocks * g.lanes, g.d - piece.block * g.lanes) // 4) * 4, g.result_blocks
            offsets = [areas["second"], areas["source"], areas["result"]]
            if g.along_oc:
                rows, blocks = g.result_rows, piece.blocks
                offsets[:2] = reversed(offsets[:2])
            operands, numbers = ["workspace"] * 3, [rows, piece.rows, blocks, int(piece.row == 0)]
        else:
            kernel_offset = 4 * 2 * g.lanes * g.kernel_rows * (piece.group * g.kernel_blocks + piece.block)
            offsets = [areas["source"], kernel_offset if g.constant_kernel else areas["kernel"], areas["result"]]
            operands = ["workspace", "w" if g.constant_kernel else "workspace", "workspace"]
            numbers = [piece.rows, g.c, piece.blocks, 1]
        return self._launch("product", size, [*operands, *(np.int64(o // 4) for o in offsets), *numbers])

    def inverse(self, piece: Piece) -> Launch:
        p = self.g.problem
        operands = [p.written, *["residual"][: p.residual], "workspace", *["bias"][: p.bias]]
        return self._divided_launch(
            "inverse", piece.groups * piece.blocks * piece.rows, operands, self.areas["result"],
            piece.group, piece.groups, piece.block, piece.blocks, piece.row, piece.rows,
        )  # fmt: skip

    def gradient(self, piece: Piece) -> Launch:
        g = self.g
        first_channel = piece.block * g.lanes
        result_part = 0, g.result_blocks, first_channel, min(piece.blocks * g.lanes, g.d - first_channel)
        if g.along_oc:
            result_part = piece.block, piece.blocks, 0, g.c
        jobs = piece.groups * result_part[1] * result_part[3]
        return self._divided_launch(
            "gradient", jobs, ["w", "workspace"], self.areas["result"], piece.group, piece.groups, *result_part
        )


def make_plan(context: Any, g: Geometry, name: str) -> StepPlan:
    """The plan of a geometry; ``name`` is part of the packed weights' cache key."""
    launches = _Launches(context, g)
    source = "y" if g.problem.direction == "bwd_data" else "x"
    steps = []
    for piece in g.pieces():
        if g.weights_gradient:
            if piece.source:
                steps.append(launches.forward("source", "x", "source", piece, 0, g.source_blocks))
            steps.append(launches.forward("second", "y", "second", piece, piece.block, piece.blocks))
            steps.append(launches.product(piece))
            if piece.last:
                steps.append(launches.gradient(piece))
            continue
        if piece.kernel and not g.constant_kernel:
            steps.append(launches.kernels(piece.group, piece.groups, piece.block, piece.blocks, g.areas["kernel"]))
        if piece.source:
            steps.append(launches.forward("source", source, "source", piece, 0, g.source_blocks))
        steps += [launches.product(piece), launches.inverse(piece)]
    if not g.constant_kernel:
        return StepPlan(g.areas["size"], steps)
    p = g.problem
    key = json.dumps([name, p.direction, p.layout, p.w_shape, p.g, [axis.dilation for axis in g.tiling.axes],
                      g.tiling.sizes, g.lanes])  # fmt: skip
    packer = launches.kernels(0, p.g, 0, g.kernel_blocks, 0)
    return StepPlan(g.areas["size"], steps, g.packed_size, [packer], key)


class Tiled(Solver):
    """Stride 1, sums of float32, all directions, 1-D to 3-D, on a CPU."""

    def rejects(self, problem: ConvProblem, device: DeviceInfo) -> str | None:
        """Reject strides, kernels of one tap, one channel per group, tiles that exceed a transform of 64 points."""
        reason = unsuited(problem)
        if reason:
            return reason
        if problem.mb < 1:
            return f"1 image or more, got {problem.mb}"
        if problem.ic == problem.oc == problem.g:
            return "more than one channel in or out a group only, got 1 and 1"
        if not has_configs(problem, device):
            return f"kernels that a transform of 64 points holds only, got {problem.kd}x{problem.kh}x{problem.kw}"
        return None

    def configs(self, problem: ConvProblem, device: DeviceInfo) -> Iterator[Mapping[str, Any]]:
        """Transforms and how much of the work a piece takes: the fastest by prediction, then falling workspaces."""
        return choices(problem, device)

    def workspace(self, problem: ConvProblem, device: DeviceInfo, config: Mapping[str, Any]) -> int:
        """Return the bytes of the spectra of one piece."""
        return Geometry(problem, config).areas["size"]

    def cost(self, problem: ConvProblem, device: DeviceInfo, config: Mapping[str, Any]) -> float:
        """Return the predicted time of products, transforms and memory traffic."""
        peaks = rates(device)
        return predicted(Geometry(problem, config), Balance.of(peaks)) / peaks.flops

    def plan(self, context: Any, problem: ConvProblem, config: Mapping[str, Any]) -> StepPlan:
        return make_plan(context, Geometry(problem, config), self.name)
