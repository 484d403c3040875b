"""The plan over packed planes: scales, packing, the product and the sum of its parts, as launches.

Layout assigns their offsets in the workspace; ``product_text`` renders the product; ProductLaunch launches it, for
nvidia.winograd too.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ....api.dtypes import storage_macros
from ....api.problem import ConvProblem, epilogue_macros, norm_macros
from ...plans.norms_and_sums import merging, summing
from ...plans.steps import Areas, StepPlan
from ...programs.geometry_arguments import divided_by, numbers_as_arguments, numbers_as_literals
from ...programs.kernels import OPERANDS, Launch, build, define, kernel_text
from .. import MATRIX_TILES
from ..geometry import along
from ..scales import Scales
from .form import AXES, LETTERS, PackForm, ProductForm, numbers, pack_numbers, work_groups
from .tiling import ProductTiling, Source


class Layout:
    """Byte offsets of packed tensors, scales and parts in the workspace, or in the packed weights' own buffer."""

    def __init__(self, tiling: ProductTiling) -> None:
        self.constant = tiling.data and tiling.problem.constant_weights
        areas = Areas()
        areas.add(tiling.result_bytes)
        self.at: dict[str, int] = {}
        for source in tiling.sources:
            self.at[source.name] = areas.add(source.bytes)
        weights = Areas() if self.constant else areas
        if tiling.data and not tiling.direct_weights:
            self.at["w"] = weights.add(tiling.weights_bytes)
        self.scales = Scales(tiling.problem, areas, weights) if tiling.format.scaled else None
        self.packed_size = weights.size if self.constant else 0
        self.partial = areas.add(tiling.partial_bytes)
        self.maps = areas.add(tiling.maps_bytes)
        self.sums = areas.add(tiling.sums_bytes)
        self.size = areas.size

    def marks_at(self, letter: str) -> int:
        """Offset in ints of the exponents of the product's A or B, in its buffer."""
        return self.scales.marks_at(self.scales.named(letter))


def common_macros(problem: ConvProblem, normed: bool) -> str:
    """Macros of the storage, of the epilogue, and of a norm that the program applies; nothing of the geometry."""
    text = storage_macros(problem.dtype) + epilogue_macros(problem)
    return text + (norm_macros(problem) if normed else "")


# Functions that render text are module functions, not closures, so that rendered texts can be cached: the template's
# values contain everything that a text depends on.


def _swizzled(row_bytes: int, row: str) -> str:
    """OpenCL expression: the swizzle of a row of local memory, for its 16-byte chunks."""
    return f"({row}) % 8" if row_bytes == 128 else f"({row}) / 2 % 4"


def _part(form: ProductForm, file: str, **extra_values: Any) -> str:
    """A part of the product's text, rendered with the values of the whole."""
    return kernel_text(__package__, file, **_values(form), **{"number": None, "normalise": False, **extra_values})


def _values(form: ProductForm) -> dict[str, Any]:
    """The values that the kernel templates use, by name."""
    t, f = form.tile, form.format
    wgmma, items, planes, rowb, cr = t.engine == "wgmma", t.items, f.planes, form.row_bytes, t.bk // 8
    core, steps = t.instruction, t.bk // t.instruction.k
    values: dict[str, Any] = {
        "form": form, "t": t, "f": f, "letters": LETTERS, "capitals": AXES, "wgmma": wgmma, "many": bool(form.phases),
        "counted": form.counted and form.whole, "chunks_counted": form.counted and not form.whole,
        "items": items, "planes": planes, "rowb": rowb, "cr": cr, "distance": form.under_way,
        "local_bytes": form.local_bytes, "staging": form.staging, "staged": form.staged,
        "weight_slice": t.bn * t.bk * planes, "separate": wgmma and f.float32_accurate,
        "frag_m": t.frag_m, "frag_n": t.frag_n, "sums": t.frag_m * t.frag_n * core.sums,
        "core": core, "steps": steps, "a_bytes": form.a_bytes, "b_bytes": form.b_bytes, "stage_bytes": form.stage_bytes,
        "swizzled": functools.partial(_swizzled, rowb), "wplane": 0, "wbytes": 0, "rows_w": 0, "step_w": 0,
        "rows_a": t.bm * cr // items, "step_a": items // cr, "rows_k": t.bk * 8 // items, "step_k": items // 8,
        "compensated": f.float32_accurate and t.compensated, "drained": form.drained,
        "batches": [[k] for k in range(steps)] if form.drained and t.flush_every == 0 else [list(range(steps))],
        "a_base": "stage_at", "a_plane": form.a_bytes, "b_const": planes * form.a_bytes,
    }  # fmt: skip
    if t.window:
        wbytes = form.window_bytes * planes
        values |= {"wplane": form.window_bytes, "wbytes": wbytes, "rows_w": -(-form.window_rows * cr // items),
                   "step_w": items // cr, "a_base": "window_at", "a_plane": form.window_bytes,
                   "b_const": 2 * wbytes}  # fmt: skip
    return values


@functools.lru_cache(maxsize=256)
def pack_text(form: PackForm) -> str:
    """The kernel ``pack`` of a form."""
    return kernel_text(__package__, "pack.cl.mako", form=form)


@functools.lru_cache(maxsize=256)
def product_text(form: ProductForm) -> str:
    """The kernel ``product`` of a form; the functions that it calls precede it in the program."""
    return kernel_text(__package__, "product.cl.mako", **_values(form), part=functools.partial(_part, form))


class ProductLaunch:
    """The launch of ``product.cl.mako`` for a tiling; ``operands`` names A and B."""

    def __init__(
        self, tiling: ProductTiling, layout: Layout, operands: Sequence[str], *, emulate: bool = False
    ) -> None:
        self.tiling, self._layout, self._operands, self._emulate = tiling, layout, list(operands), emulate

    def text(self) -> str:
        """The text of the program."""
        return self._program[0]

    @functools.cached_property
    def _program(self) -> tuple[str, list[Any]]:
        """The text of the program, and the launch's arguments beyond the operands."""
        tiling, problem, form = self.tiling, self.tiling.problem, ProductForm.of(self.tiling)
        nhwc = form.nhwc and not form.stacked
        # x is read as it was normalised before, unless the product does it.
        text = common_macros(problem, normed=problem.masked or tiling.tile.norm_in_place)
        text += define(OUT_INDEX=tiling.out_index, PARTIAL=int(tiling.partial), PARTIAL_AT="0L")
        text += define(PAIRS=int(nhwc and tiling.geometry.m % 2 == 0), OCTETS=int(nhwc and tiling.geometry.m % 8 == 0))
        text += tiling.instructions.text(self._emulate)
        for file in ("narrow.cl.mako", "finish.cl", "sums.cl", "shifted.cl"):
            text += kernel_text(MATRIX_TILES, file, tiling=form)
        text += kernel_text(MATRIX_TILES, "stored.cl.mako", form=form)
        if tiling.tile.norm_in_place:
            relu_pair = tiling.narrow_relu_pair if problem.norm_activation == "relu" else ""
            text += kernel_text(MATRIX_TILES, "normed_chunk.cl.mako", tiling=form, relu_pair=relu_pair)
        product, named = product_text(form), numbers(tiling, self._layout)
        if form.specialised:
            return text + numbers_as_literals(product, named), []
        product, arguments = numbers_as_arguments(product, named)
        return text + product, arguments

    def launch(self, context: Any) -> Launch:
        """Compile the product and return its launch."""
        tiling, operands = self.tiling, list(self._operands)
        if tiling.format.scaled:
            operands += operands
        operands += ["workspace"] if tiling.partial else written(tiling.problem)
        operands += (["workspace"] if tiling.summed else []) + (["norm"] if tiling.tile.norm_in_place else [])
        text, arguments = self._program
        program = tiling.instructions.build(context, text, self._emulate)
        items = tiling.tile.items
        size = (tiling.work_groups * items,)
        return Launch(program, "product", size, (items,), [*operands, *arguments], names=OPERANDS)


class ProductPlan(StepPlan):
    """A Plan whose launches ``product.cl.mako`` describes. Tests build plain C with ``emulate``."""

    vendor: str
    """The plugin's name, which is part of the key of packed weights."""

    def _tiling_of(self, problem: ConvProblem, config: Mapping[str, Any]) -> ProductTiling:
        raise NotImplementedError

    def __init__(
        self, context: Any, problem: ConvProblem, config: Mapping[str, Any], engine: str, *, emulate: bool = False
    ) -> None:
        tiling = self.tiling = self._tiling_of(problem, {**config, "engine": engine})
        layout = self._layout = Layout(tiling)
        self._emulate = emulate
        sources = [(source.name, source) for source in tiling.sources]
        weights = [("w", None)] if tiling.data and not tiling.direct_weights else []
        packers = self._pack(context, weights) if layout.constant else []
        steps = self._pack(context, sources if layout.constant else sources + weights)
        steps.append(self._product(context))
        if tiling.partial:
            steps.append(self._reduce(context))
        if problem.sums:
            steps += self._sums(context)
        if tiling.result_bytes:
            steps.append(self._result(context))
        super().__init__(layout.size, steps, layout.packed_size, packers, self._key() if layout.packed_size else None)

    def _key(self) -> str:
        problem, tile = self.tiling.problem, self.tiling.tile
        geometry, stacked = self.tiling.geometry, ()
        phases = tuple((phase.taps, phase.tap0) for phase in geometry.phases)
        if geometry.stacked:  # stacked weights depend on the whole geometry
            stacked = (geometry.stacked, geometry.phases[0].origin, *(along(problem, letter) for letter in "psd"))
        return repr((self.vendor, problem.direction, problem.layout, problem.dtype, problem.w_shape, problem.g, phases,
                     geometry.fold, geometry.tap_step, tile.bn, tile.bk, tile.format, tile.window,
                     stacked))  # fmt: skip

    def _pack(self, context: Any, tensors: Sequence[tuple[str, Source | None]]) -> list[Launch]:
        if not tensors:
            return []
        tiling, layout, problem = self.tiling, self._layout, self.tiling.problem
        operands, names = [], [name for name, _ in tensors]
        for name in names:
            operands += [name, "workspace"]
        normalises = problem.normalised and "x" in names
        text = common_macros(problem, normalises)
        text += tiling.conversions.text(self._emulate)
        form, named = PackForm.of(tiling, tensors, layout.scales), pack_numbers(tiling, tensors, layout.at)
        text += kernel_text(MATRIX_TILES, "narrow.cl.mako", tiling=form)
        text += kernel_text("convdispatch.api", "norm.cl") if normalises else ""
        text += kernel_text(MATRIX_TILES, "shifted.cl") if layout.scales else ""
        named |= layout.scales.numbers(names) if layout.scales else {}
        pack, arguments = pack_text(form), []
        if form.specialised:
            pack = numbers_as_literals(pack, named)
        else:
            pack, arguments = numbers_as_arguments(pack, named)
        program = build(context, text + pack)
        launches = []
        if layout.scales:
            launches += layout.scales.launches(context, names)
            operands.append("w" if layout.constant and "w" not in names else "workspace")
        operands += ["norm"] if normalises else []
        size = (sum(work_groups(tiling, source) for _, source in tensors) * 256,)
        launches.append(Launch(program, "pack", size, (256,), [*operands, *arguments], names=OPERANDS))
        return launches

    def product_text(self) -> str:
        return self._launch().text()

    def _launch(self) -> ProductLaunch:
        tiling = self.tiling
        packed = {source.name for source in tiling.sources}
        names = (tiling.source.name,) if tiling.data else ("y", "x")
        operands = ["workspace" if name in packed else name for name in names]
        if tiling.data:
            operands.append("w" if tiling.direct_weights or self._layout.constant else "workspace")
        return ProductLaunch(tiling, self._layout, operands, emulate=self._emulate)

    def _product(self, context: Any) -> Launch:
        return self._launch().launch(context)

    def _result(self, context: Any) -> Launch:
        """The launch that writes the caller's result from that at the beginning of the workspace."""
        raise NotImplementedError

    def _sums(self, context: Any) -> list[Launch]:
        tiling, start = self.tiling, self._layout.sums
        if tiling.summed:
            return merging(context, tiling.problem, tiling.sums_parts, start)
        return summing(context, tiling.problem, start)

    def _reduce(self, context: Any) -> Launch:
        tiling, problem, geo = self.tiling, self.tiling.problem, self.tiling.geometry
        size, at = math.prod(problem.out_shape), self._layout.partial // 4
        parts = Parts(tiling.tile.split, size, tiling.out_index, at, lanes=1)
        if not tiling.data:
            nhwc, axes = problem.layout == "nhwc", (problem.kd * problem.kh * problem.kw, problem.ic // problem.g)
            rows = (tiling.n, geo.c8 * 8, problem.kw if geo.fold else 1)
            parts = dataclasses.replace(parts, stride=tiling.partial_elements, order=2 + nhwc, rows=rows,
                                        axes=axes[::-1] if nhwc else axes)  # fmt: skip
        return reduction_launch(context, problem, parts, written(problem))


MAX_PARTS = 255
"""The most parts that a tile's state can count."""
STATE_BYTES = 8
"""Bytes of a tile's state, by which its work groups count finished parts."""


def written(problem: ConvProblem) -> list[str]:
    """The operands of a kernel that ends with the epilogue: the output, and what the epilogue reads."""
    return [problem.written, *problem.epilogue_operands]


@dataclass(frozen=True)
class Parts:
    """Parts of an output in the workspace; ``reduce.cl`` adds them, and says what the fields are."""

    count: int
    elements: int
    """Elements of the output."""
    index: str
    """OpenCL type of offsets in the parts."""
    at: int = 0
    stride: int = 0
    """Elements from part to part; 0: those of the output."""
    order: int = 0
    axes: tuple[int, int] | None = None
    """``inner`` and ``channels``; None: of parts in the output's order."""
    rows: tuple[int, ...] = ()
    """Of rows of taps: ``columns``, ``step`` and ``window``."""
    lanes: int = 0
    """Work items that share the sum of an element's parts; 0: several where there are many parts."""
    items: int = 256


def reduction_launch(context: Any, problem: ConvProblem, parts: Parts, operands: Sequence[str]) -> Launch:
    """A launch that adds the parts, applies the epilogue and writes the result to ``operands``."""
    lanes, offset = parts.lanes or (8 if parts.count >= 16 else 1), {"int": np.int32, "long": np.int64}[parts.index]
    pixels = 1 if problem.layout == "nhwc" else math.prod(problem.out_shape[2:])
    text = common_macros(problem, problem.masked)
    text += define(OUT_INDEX=parts.index, PARTIAL=0, WIDE=int(parts.index == "long"), LANES=lanes)
    text += define(ITEMS=parts.items, ORDER=parts.order, AHEAD=3 if parts.count <= 4 * lanes else 15)
    text += kernel_text("convdispatch.api", "divide.cl") + kernel_text(MATRIX_TILES, "reduce.cl")
    sizes = [np.int32(parts.count), np.int64(parts.at), offset(parts.elements), offset(parts.stride or parts.elements)]
    sizes += divided_by(*(parts.axes or (pixels, problem.channels_out)))
    if parts.rows:
        sizes += [*map(np.int32, parts.rows[:2]), *divided_by(parts.rows[2])]
    size = -(-parts.elements * lanes // parts.items) * parts.items
    return Launch(build(context, text), "reduce", (size,), (parts.items,), ["workspace", *operands, *sizes],
                  names=OPERANDS)  # fmt: skip


def parts_magic(tiling: Any) -> np.uint64:
    """The hash of ``tiling`` that marks its launches' states in the workspace; see ``parts.cl.mako``."""
    return np.uint64(int.from_bytes(hashlib.blake2b(repr(tiling).encode(), digest_size=6).digest(), "big"))
