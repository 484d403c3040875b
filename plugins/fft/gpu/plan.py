"""Transforms, products and inverse transforms of a problem's parts, as launches over one workspace."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from convdispatch.api import OPERANDS, Areas, ConvProblem, DeviceInfo, Launch, StepPlan, build, kernel_text

from .geometry import Planes, Transform, planes
from .spectra import Forward, Inverse, group_items, slot_pitch, slots_of

_PAIR = 8  # bytes of a complex number: two floats


class Tile(NamedTuple):
    """The tile of a complex matrix product that one work group computes."""

    bm: int
    bn: int
    bk: int
    """Length in k of one slice of the operands in local memory."""
    tm: int
    tn: int
    unroll: int
    """Steps of k by which the loop over a slice is unrolled."""

    @property
    def items(self) -> int:
        """Work items of a work group."""
        return (self.bm // self.tm) * (self.bn // self.tn)

    @property
    def local_size(self) -> int:
        """Bytes of local memory: two slices of both operands."""
        return 2 * self.bk * (self.bm + self.bn) * 8


@dataclass(frozen=True)
class Layout:
    """One configuration of one problem: the spectra's shapes, parts and offsets in the workspace; nothing is compiled.

    For each frequency and group there is a product of m x n x k: m slots of the left operand, n slots of the right
    operand, k rows of both. Each of the three is divided into ``parts``.
    """

    problem: ConvProblem
    transform: Transform
    parts: tuple[int, int, int]
    tile: Tile
    local: int
    """Most bytes of local memory that a transform's work group may use."""
    wide: int
    """Most work items that a transform's work group may have."""

    @classmethod
    def of(cls, problem: ConvProblem, config: Mapping[str, Any]) -> Layout:
        """Return the layout that a configuration describes."""
        transform = Transform.of(problem, (config["th"], config["tw"]))
        if transform is None:
            raise ValueError(f"transforms of {config['th']}x{config['tw']} points do not fit {problem}")
        parts = (config["m_parts"], config["n_parts"], config["k_parts"])
        tile = Tile(*(config[name] for name in Tile._fields))
        return cls(problem, transform, parts, tile, config["local"], config["wide"])

    def config(self) -> dict[str, Any]:
        """The configuration that describes this layout: JSON values."""
        sizes = self.transform.columns.size, self.transform.rows.size
        th, tw = sizes[::-1] if self.problem.ndim == 1 else sizes
        config = {"th": th, "tw": tw, "local": self.local, "wide": self.wide} | self.tile._asdict()
        return config | dict(zip(("m_parts", "n_parts", "k_parts"), self.parts, strict=True))

    def changed(self, tile: Tile | None = None, parts: tuple[int, int, int] | None = None) -> Layout:
        """The layout with another tile or other parts; cached properties that do not depend on them are copied."""
        layout = Layout(self.problem, self.transform, parts or self.parts, tile or self.tile, self.local, self.wide)
        unaffected = ("planes", "totals", "slots", "_widths", "_groups")
        unaffected += () if parts else ("chunks", "starts", "sizes", "areas")
        cached = self.__dict__
        layout.__dict__.update({name: cached[name] for name in unaffected if name in cached})
        return layout

    def fits(self, device: DeviceInfo) -> bool:
        """Whether a device's limits allow the layout's work groups."""
        stage, items = self._groups
        return stage <= self.local and max(items, self.tile.items) <= device.max_work_group_size and (
            self.tile.local_size <= device.local_mem_size)  # fmt: skip

    @functools.cached_property
    def _groups(self) -> tuple[int, int]:
        """(most bytes of local memory, most work items) of the work groups of the three transforms."""
        height = self.transform.height
        transforms = list(zip(self.slots, self._widths, strict=True))
        stages = [slots * slot_pitch(slots, width, height) * _PAIR for slots, width in transforms]
        return max(stages), max(group_items(slots, width, height, self.wide) for slots, width in transforms)

    @functools.cached_property
    def planes(self) -> tuple[Planes, Planes, Planes]:
        """The tensors of the left operand, the right operand and the result, each as a matrix of tiles."""
        return planes(self.problem, self.transform.tiles)

    @functools.cached_property
    def totals(self) -> tuple[int, int, int]:
        """m, n and k of the whole product."""
        left, right, _ = self.planes
        return left.slot.total, right.slot.total, left.row.total

    @functools.cached_property
    def slots(self) -> tuple[int, int, int]:
        """Slots per work group in the transforms of the left operand, the right operand and the result."""
        totals = (self.totals[0], self.totals[1], self.totals[1])
        height = self.transform.height
        sides = zip(self._widths, totals, strict=True)
        return tuple(slots_of(width, height, total, self.local) for width, total in sides)

    @functools.cached_property
    def _widths(self) -> tuple[int, int, int]:
        rows = self.transform.rows
        return -(-rows.other.given // rows.other.spread), -(-rows.data.given // rows.data.spread), len(rows.wanted)

    @functools.cached_property
    def chunks(self) -> tuple[int, int, int]:
        """m, n and k of a part; m and n are multiples of a work group's slots."""
        quanta = (max(4, self.slots[0]), max(4, *self.slots[1:]), 1)
        chunks = []
        for total, parts, quantum in zip(self.totals, self.parts, quanta, strict=True):
            chunk = -(-total // parts)
            chunks.append(-(-chunk // quantum) * quantum)
        return tuple(chunks)

    @property
    def result_rows(self) -> int:
        """The number of rows m of a part's product, without the padding slots if there is only one part."""
        return min(self.chunks[0], self.totals[0])

    @functools.cached_property
    def starts(self) -> tuple[range, range, range]:
        """The first indices of the parts of m, n and k."""
        return tuple(range(0, total, chunk) for total, chunk in zip(self.totals, self.chunks, strict=True))

    @functools.cached_property
    def sizes(self) -> tuple[int, int, int]:
        """Bytes of a part's left, right and resulting spectra."""
        m, n, k = self.chunks
        numbers = self.transform.frequencies * self.problem.g * _PAIR
        return numbers * m * k, numbers * k * n, numbers * self.result_rows * n

    @property
    def packs(self) -> bool:
        """Whether the weights' spectra are computed once."""
        return self.problem.constant_weights and self.problem.direction != "bwd_weights"

    @property
    def packed_size(self) -> int:
        """Bytes of the weights' spectra: every part of m and k."""
        return self.sizes[0] * len(self.starts[0]) * len(self.starts[2]) if self.packs else 0

    @functools.cached_property
    def areas(self) -> tuple[tuple[int, int, int], int]:
        """(byte offsets of the left, right and resulting spectra in the workspace, the workspace's size)."""
        areas = Areas(1024)
        left, right, result = self.sizes
        offsets = (0 if self.packs else areas.add(left), areas.add(right), areas.add(result))
        return offsets, areas.size

    @property
    def workspace_size(self) -> int:
        """Bytes of workspace that the layout needs."""
        return self.areas[1]

    def forward(self, other: bool) -> Forward:
        """The transform of the left operand (``other``) or the right one."""
        index = 0 if other else 1
        return Forward(self.transform, self.planes[index], self.problem.g, self.chunks[2], self.chunks[index],
                       self.slots[index], self.wide, other)  # fmt: skip

    def inverse(self) -> Inverse:
        """The inverse transform, from the result's spectra to the written tensor."""
        return Inverse(self.transform, self.planes[2], self.problem.g, self.result_rows, self.chunks[1], self.slots[2],
                       self.wide)  # fmt: skip


def make_plan(context: Any, problem: ConvProblem, config: Mapping[str, Any]) -> StepPlan:
    """Compile a configuration; the steps run part by part, and consecutive parts share an operand's spectra."""
    layout = Layout.of(problem, config)
    kernels = _Kernels(context, layout)
    steps, packers = [], []
    left_area, right_area, result_area = layout.areas[0]
    current_left = current_right = None
    m_starts, n_starts, k_starts = layout.starts
    for (m_index, m), n, (k_index, k) in itertools.product(enumerate(m_starts), n_starts, enumerate(k_starts)):
        left, operand = left_area, "workspace"
        if layout.packs:
            left, operand = (m_index * len(k_starts) + k_index) * layout.sizes[0], "w"
        if current_left != (m, k):
            current_left = (m, k)
            step = kernels.analyse(0, left, k, m)
            if not layout.packs:
                steps.append(step)
            elif n == 0:
                packers.append(step)
        if current_right != (n, k):
            current_right = (n, k)
            steps.append(kernels.analyse(1, right_area, k, n))
        steps.append(kernels.product(operand, left, right_area, result_area, k > 0))
        if k == k_starts[-1]:
            steps.append(kernels.synthesise(result_area, m, n))
    weights_key = (problem.direction, problem.layout, problem.dtype, problem.w_shape, problem.g, problem.dh, problem.dw)
    key = repr(("fft.gpu", *weights_key, config["th"], config["tw"], layout.chunks[0], layout.chunks[2]))
    return StepPlan(layout.workspace_size, steps, layout.packed_size, packers, key if layout.packs else None)


class _Kernels:
    """Builds the launches of a layout; each program is compiled once."""

    def __init__(self, context: Any, layout: Layout) -> None:
        self._context, self._layout = context, layout
        self._passes = layout.forward(True), layout.forward(False), layout.inverse()

    @functools.cache  # noqa: B019  (the cache lives only while the plan is built)
    def _program(self, file: str, of: int) -> Any:
        """The program of one of the passes, or of the product, which adds to its result or not."""
        layout = self._layout
        values: dict[str, Any] = {"p": self._passes[of]}
        if file == "product.cl.mako":
            (m_pitch, n, k), conjugate = layout.chunks, layout.problem.direction != "bwd_data"
            values = layout.tile._asdict() | {"m": layout.result_rows, "n": n, "k": k, "accumulate": bool(of)}
            values |= {"m_pitch": m_pitch, "n_pitch": n, "conjugate": conjugate}
        return build(self._context, layout.problem.macros() + kernel_text(__package__, file, **values))

    def analyse(self, side: int, place: int, row: int, slot: int) -> Launch:
        """Return the launch that transforms a part of the left (0) or right (1) operand to byte ``place``."""
        transform = self._passes[side]
        arguments = [transform.planes.tensor, "workspace", np.int64(place // _PAIR), np.int32(row), np.int32(slot)]
        return self._pass("analyse", "forward.cl.mako", side, arguments)

    def _pass(self, name: str, file: str, of: int, arguments: list[Any]) -> Launch:
        items, size = self._passes[of].items, self._passes[of].work_groups * self._passes[of].items
        return Launch(self._program(file, of), name, (size,), (items,), arguments, names=OPERANDS)

    def product(self, left_operand: str, left: int, right: int, result: int, accumulate: bool) -> Launch:
        """Return the launch that multiplies parts at ``left`` (of operand ``home``) and ``right`` into ``result``."""
        layout = self._layout
        items = layout.tile.items
        groups = -(-layout.result_rows // layout.tile.bm) * -(-layout.chunks[1] // layout.tile.bn)
        groups *= layout.transform.frequencies * layout.problem.g
        arguments = [left_operand, np.int64(left // 16), "workspace", np.int64(right // 16)]
        arguments += ["workspace", np.int64(result // 16)]
        program = self._program("product.cl.mako", int(accumulate))
        return Launch(program, "product", (groups * items,), (items,), arguments, names=OPERANDS)

    def synthesise(self, result: int, row: int, slot: int) -> Launch:
        """Return the launch that transforms the part at byte ``result`` back into the output."""
        problem = self._layout.problem
        outputs = [problem.written, *(name for name in ("bias", "residual") if getattr(problem, name))]
        arguments = ["workspace", np.int64(result // _PAIR), *outputs, np.int32(row), np.int32(slot)]
        return self._pass("synthesise", "inverse.cl.mako", 2, arguments)
