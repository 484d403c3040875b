"""Base class of the kernels of all directions: macros, values of their templates, launches."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

from convdispatch.api import (
    DTYPES,
    OPERANDS,
    Launch,
    build,
    define,
    epilogue_macros,
    kernel_text,
    storage_macros,
)
from convdispatch.api.cpu import LINE, transposed
from convdispatch.api.cpu import cdiv as ceil

from ..program import program
from ..transforms import Matrix
from .case import Case

ITEM_CHANNELS = 128
"""Channels that one work item of a transform kernel processes."""
STREAMED_BYTES = 8 << 20
"""Bytes of a chunk's transformed tiles from which on stores of them bypass the caches."""


def even(size: int, most: int) -> int:
    """The size of parts of at most ``most`` elements that divide ``size`` elements as evenly as possible."""
    return ceil(size, ceil(size, most))


def pitch(elements: int, size: int) -> int:
    """A stride of at least ``elements`` that is an odd number of cache lines: rows spread over the cache's sets."""
    line = LINE // size
    return (ceil(elements, line) | 1) * line


@functools.lru_cache(maxsize=64)
def printed(matrix: Matrix, dtype: str) -> str:
    """Return OpenCL statements for ``o = M d`` over vectors of type V."""
    inputs, outputs = [f"d{i}" for i in range(len(matrix[0]))], [f"o{i}" for i in range(len(matrix))]
    scalar = DTYPES[dtype].accumulator
    return program(matrix, inputs, outputs, type="V", dtype=scalar, declare=True, indent="      ").text


def along_h(program: str, rows_in: int, rows_out: int, columns: int, pitch: int, read: str) -> str:
    """The pass along h of all columns j into ``mid``; ``read`` is an expression of the vector at offset ``{row}``."""
    text = f"    V mid[{rows_out * columns}];\n    ONCE for (int j = 0; j < {columns}; ++j) {{\n"
    text += "".join(f"      const V d{k} = {read.format(row=k * pitch)};\n" for k in range(rows_in)) + program
    return text + "".join(f"      mid[{k * columns} + j] = o{k};\n" for k in range(rows_out)) + "    }\n"


class Kernel:
    """Base of the kernels of one configuration: every size is computed, nothing is compiled."""

    def __init__(self, case: Case, config: Mapping[str, Any]) -> None:
        self.case, self.config = case, config
        self.nvl = config["nv"] * case.lanes
        self.blocks = ceil(case.n, self.nvl)
        self.s = min(config["strips"], case.strips)
        self.chunks = ceil(case.strips, self.s)
        self._program: Any = None

    def text(self) -> str:
        """Return the OpenCL text of the program."""
        raise NotImplementedError

    def macros(self, **values: object) -> str:
        """Element types, vector types, tiles and channels as OpenCL text, and ``values``."""
        case, p = self.case, self.case.problem
        text = storage_macros(p.dtype) + ("" if case.weights else epilogue_macros(p))
        return text + define(
            V=f"{DTYPES[p.dtype].accumulator}{case.lanes}", LANES=case.lanes, NVL=self.nvl, MR=self.config["mr"],
            ACROSS=case.across, TILES_H=case.tiles[0], XS=case.strip, NB=self.blocks, E=case.products, C=case.c,
            N=case.n, LOCAL=case.local, SPREAD_C=ITEM_CHANNELS, **values,
        )  # fmt: skip

    def rendered(self, parts: Sequence[tuple[str, Mapping[str, Any]]], size: int, streams: bool) -> str:
        """The text of template files, each with its values and those that all share. A chunk's transformed tiles take
        ``size`` bytes; with ``streams`` stores of many bytes bypass the caches."""
        case = self.case
        store = "STREAMW" if streams and size > STREAMED_BYTES else "STOREW"
        common = {"lanes": case.lanes, "nhwc": case.nhwc, "groups": case.problem.g, "images": case.problem.mb}
        common |= {"strip": case.strip, "store": store, "transposed": transposed, "along_h": along_h}
        return "".join(kernel_text(__package__, file, **(common | dict(values))) for file, values in parts)

    def programs(self, name: str) -> dict[str, str]:
        """The OpenCL statements of products with matrix ``name`` along h and w."""
        dtype = self.case.problem.dtype
        program_h, program_w = (printed(getattr(transform, name), dtype) for transform in self.case.transforms)
        return {"program_h": program_h, "program_w": program_w}

    def spread(self, name: str) -> tuple[str, dict[str, Any]]:
        """(template, values) of the transform of the source, "x", or of dy in the weights' gradient, "d"."""
        case, x = self.case, name == "x"
        (h, w), (pad_h, pad_w), c = (case.source, case.pad, case.c) if x else (case.target, (0, 0), case.n)
        (patch_h, patch_w), (out_h, out_w) = case.patch if x else case.tile, case.patch
        values = {"name": name, "h": h, "w": w, "pad_h": pad_h, "pad_w": pad_w, "c": c, "out_h": out_h, "out_w": out_w}
        values |= {"patch_h": patch_h, "patch_w": patch_w, "step_h": case.tile[0], "step_w": case.tile[1]}
        return "spread.cl.mako", values | self.programs("bt" if x else "g")

    def launch(self, context: Any, name: str, items: Sequence[int], arguments: Sequence[Any]) -> Launch:
        """A launch of kernel ``name`` of this program over ``items`` work groups of one work item."""
        if self._program is None:
            self._program = build(context, self.text())
        return Launch(self._program, name, (*items, 1, 1)[:3], (1, 1, 1), arguments, names=OPERANDS)
