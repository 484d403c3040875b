"""Generates a product's OpenCL text from its specification and configuration: sizes, index macros, kernel files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from ...api.activations import activation_macro
from ...api.cpu import LINE, transposed
from ...api.dtypes import DTYPES, storage_macros
from ..programs.kernels import define, kernel_text
from .layout import far_columns, far_packed, far_rows, far_steps, packed_layout
from .spec import Axis, GemmSpec

ITEM_ELEMENTS = 1 << 14
"""The fewest elements that a work item of a packing kernel should pack, because starting it takes time."""
GROUP_ELEMENTS = 64
"""Neighbouring elements of a row that a work item packs if panels are narrow, so that it reads a cache line once."""


def _split_k(spec: GemmSpec, config: Mapping[str, Any]) -> tuple[int, int]:
    """Return the number of parts of the sum over k and the length of a part; the last may be shorter, none is empty."""
    return config["split"], config["ks"] if config["split"] > 1 else spec.k


def _types(spec: GemmSpec, lanes: int) -> str:
    acc = DTYPES[spec.dtype].accumulator
    return storage_macros(spec.dtype) + define(V=f"{acc}{lanes}", ACC4=f"{acc}4", LANES=lanes)


def _epilogue(
    spec: GemmSpec, config: Mapping[str, Any], lanes: int, partial: bool, tail: tuple[int, int] | None = None
) -> str:
    """Macros and functions that write C, or with ``partial`` its partial sums as dense ``[part, batch, m, n]``. Of a
    row's last vector they write the lanes from ``tail[0]`` to before ``tail[1]``."""
    split, ks = _split_k(spec, config)
    text = _types(spec, lanes) + activation_macro(spec.epilogue.activation)
    # The macro ACCUMULATE is 0 here: the kernel argument FLAGS (ADD) says whether C's old values are added.
    text += define(BIAS=int(spec.epilogue.bias is not None), RESIDUAL=int(spec.epilogue.residual), ACCUMULATE=0)
    text += define(M=spec.m, N=spec.n, K=spec.k, BATCH=spec.batch, SPLIT=split, KS=ks)
    text += define(FLAGS="ADD" if spec.epilogue.accumulate and not partial else 0)
    row, col, batch = (Axis(spec.n), Axis(1), Axis(0)) if partial else (spec.c.row, spec.c.col, spec.c.batch)
    text += f"#define C_ROW(m) {row.text('m')}\n#define C_COL(n) {col.text('n')}\n"
    text += f"#define C_BATCH(z) {batch.text('z')}\n"
    text += f"#define BIAS_BATCH(z) {spec.epilogue.bias_batch.text('z')}\n"
    aligned = not DTYPES[spec.dtype].widened and _wide_c(spec, lanes, partial)
    values = {"dtype": spec.dtype, "lanes": lanes, "partial": partial, "epilogue": spec.epilogue, "c_col": col}
    values |= {"unroll": config["kind"] == "gpu", "tail": tail, "pieces": _pieces, "aligned": aligned}
    return text + kernel_text(__package__, "epilogue.cl.mako", acc=DTYPES[spec.dtype].accumulator, **values)


def _pieces(first: int, end: int) -> Iterator[tuple[int, int]]:
    """Cut a range of lanes into vectors of a power of two, each at a multiple of its size: yields (lane, lanes)."""
    while first < end:
        width = 1 << ((end - first).bit_length() - 1)
        while first % width:
            width >>= 1
        yield first, width
        first += width


def _tail(spec: GemmSpec, lanes: int, padded: bool, partial: bool) -> tuple[int, int] | None:
    """The lanes of the last vector of a row of C that hold columns: the first lanes, or if B is read in place without
    padding the last lanes. None if C's rows have whole vectors, or are not written as vectors."""
    remainder = spec.n % lanes
    unit = partial or (spec.c.col.stride == 1 and spec.c.col.plain and not DTYPES[spec.dtype].widened)
    if not remainder or not unit:
        return None
    return (0, remainder) if padded else (lanes - remainder, lanes)


def _wide_c(spec: GemmSpec, lanes: int, partial: bool) -> bool:
    """Whether every vector of C starts at a multiple of its size, by the caller's promise and the strides."""
    if partial:
        return False
    strides = [spec.c.row.stride, spec.c.row.outer, spec.c.batch.stride, spec.c.batch.outer, spec.c.col.outer]
    return spec.alignment % lanes == 0 and not any(stride % lanes for stride in strides)


def gemm_text(spec: GemmSpec, config: Mapping[str, Any]) -> str:
    """The product's program; ``spec`` is simplified, and swapped where the configuration says so.

    ``a_packed`` and ``b_packed`` of ``spec`` say whether the kernel reads packed operands, whoever packed them.
    """
    return (_cpu_text if config["kind"] == "cpu" else _gpu_text)(spec, config)


def _batches(spec: GemmSpec, config: Mapping[str, Any]) -> str:
    text = ""
    for letter in "ab":
        matrix, layout = getattr(spec, letter), packed_layout(spec, {**config, "swap": False}, letter)
        text += f"#define {letter.upper()}_BATCH(z) {matrix.batch.text('z')}\n"
        text += f"#define {letter.upper()}_PACKED(z) ({layout.batch.text('z')})\n"
    return text


def _cpu_text(spec: GemmSpec, config: Mapping[str, Any]) -> str:
    lanes, partial = config["lanes"], config["split"] > 1
    b_local = config["pack_b"] == "local" and not spec.b_packed
    tail = _tail(spec, lanes, spec.b_packed or b_local, partial)
    text = _epilogue(spec, config, lanes, partial, tail)
    text += define(MR=config["mr"], KC=config["kc"], MT=config["mt"], NP=config["np"], BT=config["bt"])
    text += _batches(spec, config)
    text += f"#define A_ROW(m) {spec.a.row.text('m')}\n#define A_COL(k) {spec.a.col.text('k')}\n"
    text += f"#define B_ROW(k) {spec.b.row.text('k')}\n#define B_COL(n) {spec.b.col.text('n')}\n"
    nr = config["nv"] * lanes
    k, n = spec.b.row, spec.b.col
    far_a, far_b = far_packed(spec, nr)
    line = LINE // spec.accumulator_size
    tiles = min(config["mt"], -(-spec.m // config["mr"]))
    values = {"m": spec.m, "n": spec.n, "k": spec.k, "lanes": lanes, "mr": config["mr"], "nv": config["nv"]}
    values |= {"ku": config["ku"], "tail": tail, "a_packed": spec.a_packed, "b_packed": spec.b_packed, "line": line}
    values |= {
        "far_a": far_a,
        "far_b": far_b,
        "far_rows": line if far_rows(spec, spec.a_packed, config["nv"]) else 0,
        "far_columns": line if far_columns(spec, lanes) else 0,
        "far_steps": far_steps(spec),
        "fetched": -(-nr // (line * tiles)) if far_b and tiles > 1 else 0,
        "a_step": spec.a.col.stride,
        "a_local": config["pack_a"] == "local" and not spec.a_packed,
        "b_step": nr if spec.b_packed or b_local else k.stride,
        "b_local": b_local,
        "b_k_unit": k.plain and k.stride == 1 and n.stride != 1,
        "b_run": (spec.n if n.plain else n.inner) if n.stride == 1 and spec.n > 1 else 0,
    }
    return text + kernel_text(__package__, "cpu.cl.mako", **values)


class _Operand:
    def __init__(self, spec: GemmSpec, config: Mapping[str, Any], letter: str) -> None:
        matrix = getattr(spec, letter)
        self.letter = letter
        self.packed = getattr(spec, letter + "_packed")
        self.size = spec.m if letter == "a" else spec.n
        self.tile = config["bm"] if letter == "a" else config["bn"]
        self.group = f"get_group_id({1 if letter == 'a' else 0})"
        self.origin = "m0" if letter == "a" else "n0"
        self.panels = -(-self.size // self.tile)
        i, k = (matrix.row, matrix.col) if letter == "a" else (matrix.col, matrix.row)
        self.i_text, self.k_text, self.i_stride, self.k_stride = i.text, k.text, i.stride, k.stride
        self.k_unit = not self.packed and k.stride == 1 and i.stride != 1
        self.k_split = not self.packed and not k.plain
        self.ragged = self.size % self.tile != 0
        split, ks = _split_k(spec, config)
        self.k_guard = spec.k % config["bk"] != 0 or (split > 1 and ks % config["bk"] != 0)
        self.vec = 4 if spec.alignment % 4 == 0 and self._quads(spec, config, matrix, i, k) else 1
        self.stored = "ACC" if self.packed else "REAL"
        items = (config["bm"] // config["tm"]) * (config["bn"] // config["tn"])
        # The number of vector loads along the contiguous axis of a K-slice.
        self.run = (config["bk"] if self.k_unit else self.tile) // self.vec
        self.total = self.tile * config["bk"] // self.vec  # vector loads of the whole K-slice
        self.slots = -(-self.total // items)  # vector loads of the K-slice that one work item makes
        self._items = items
        assert self.slots == 1 or self.run % items == 0 or items % self.run == 0, "a slice must divide among the items"
        # The address of each load is the first load's address plus a literal, unless its index i is clamped or on a
        # split axis.
        moves = any(self.place(s)[1] for s in range(self.slots))
        self.offsets = not self.packed and moves and (self.ragged or not i.plain)

    def place(self, slot: int) -> tuple[int, int]:
        """Return (k, i) of a work item's load number ``slot`` in the K-slice, relative to its first load."""
        if self._items >= self.run:
            fast, slow = 0, slot * (self._items // self.run)
        else:
            across = self.run // self._items
            fast, slow = slot % across * self._items * self.vec, slot // across
        return (fast, slow) if self.k_unit else (slow, fast)

    def _quads(self, spec: GemmSpec, config: Mapping[str, Any], matrix: Any, i: Axis, k: Axis) -> bool:
        """Whether the slices' quads along the fast axis are whole and start at multiples of 4 elements."""
        if self.packed:
            return True
        fast, slow = (k, i) if self.k_unit else (i, k)
        length = spec.k if self.k_unit else self.size
        split, ks = _split_k(spec, config)
        multiples = [slow.stride, slow.outer, fast.outer, matrix.batch.stride, matrix.batch.outer, length]
        multiples += [fast.inner or 0, ks if self.k_unit and split > 1 else 0]
        return fast.stride == 1 and not any(number % 4 for number in multiples)


def _gpu_text(spec: GemmSpec, config: Mapping[str, Any]) -> str:
    operands = [_Operand(spec, config, letter) for letter in "ab"]
    text = _epilogue(spec, config, 4, partial=config["split"] > 1) + _batches(spec, config)
    values = {name: config[name] for name in ("bm", "bn", "bk", "tm", "tn", "ln", "stages")}
    values |= {"m": spec.m, "n": spec.n, "k": spec.k, "dtype": spec.dtype, "accsize": spec.accumulator_size}
    values |= {"wide": spec.alignment % 4 == 0, "pad": {x.letter: 4 if x.k_unit else 0 for x in operands}}
    return text + kernel_text(__package__, "gpu.cl.mako", operands=operands, **values)


class Packing(NamedTuple):
    """The kernel that packs one operand: its program, its launch size and its numeric arguments."""

    text: str
    """OpenCL text of the packing program."""
    sizes: tuple[int, int, int]
    """Work items of the packing kernel's launch along each axis."""
    local: tuple[int, int, int] | None
    numbers: tuple[Any, ...]
    """Sizes that are passed as kernel arguments where that costs nothing, so that many operands share one program."""


def packing(spec: GemmSpec, config: Mapping[str, Any], letter: str) -> Packing:
    """The packing of operand ``letter`` of ``spec``, which is simplified, and swapped if the configuration says so."""
    config = {**config, "swap": False}
    matrix, layout = getattr(spec, letter), packed_layout(spec, config, letter)
    i, k = (matrix.row, matrix.col) if letter == "a" else (matrix.col, matrix.row)
    lanes = config.get("lanes", 4)
    axis = layout.batch  # The macro Z maps the index z of a distinct operand to the first batch that uses it.
    first_batch = f"((z) * {axis.inner})" if not axis.plain and axis.outer else "(z)"
    narrow_lanes = 0 if config["kind"] == "gpu" else _narrow(spec, i, layout.width, lanes)
    group = max(1, GROUP_ELEMENTS // layout.width) if narrow_lanes else 1
    depth = max(16, ITEM_ELEMENTS // (layout.width * group) // 16 * 16)
    text = _types(spec, lanes) + define(W=layout.width, KCHUNK=depth, GROUP=group)
    text += f"#define X_BATCH(z) {matrix.batch.text('z')}\n#define X_K(k) {k.text('k')}\n#define Z(z) {first_batch}\n"
    size, numbers = spec.m if letter == "a" else spec.n, ()
    k_unit = k.stride == 1 and i.stride != 1
    # Reads run along k, so no loop depends on I_STEP, and the sizes can be kernel arguments.
    if k_unit and k.plain and i.plain and config["kind"] == "cpu":
        text += "#define SIZES , int I, int K, int PANELS, long I_STEP\n#define X_I(i) ((long)(i) * I_STEP)\n"
        numbers = (np.int32(size), np.int32(spec.k), np.int32(layout.panels), np.int64(i.stride))
    else:
        text += define(I=size, K=spec.k, PANELS=layout.panels, SIZES="") + f"#define X_I(i) {i.text('i')}\n"
    values = {"elementwise": config["kind"] == "gpu", "lanes": lanes, "narrow": narrow_lanes, "width": layout.width}
    values |= {"accsize": spec.accumulator_size, "k_unit": k_unit, "k_run": 0 if k.plain else k.inner}
    values |= {"vectors": i.stride == 1 and layout.width % lanes == 0, "run": 0 if i.plain else i.inner}
    text += kernel_text(__package__, "pack.cl.mako", transposed=transposed, **values)
    if config["kind"] == "gpu":
        return Packing(text, (layout.width, layout.k, layout.panels * layout.batches), None, numbers)
    sizes = (-(-layout.k // depth), -(-layout.panels // group), layout.batches)
    return Packing(text, sizes, (1, 1, 1), numbers)


def _narrow(spec: GemmSpec, axis: Axis, width: int, lanes: int) -> int:
    """The vector size for packing narrow panels, of which no vector reaches further than the next k; 0 for others."""
    fits = [n for n in (2, 4, 8, 16) if width <= n <= lanes]
    if DTYPES[spec.dtype].widened or not axis.plain or axis.stride != 1 or width < 2:
        return 0
    return fits[0] if fits and width % lanes else 0


def reduce_text(spec: GemmSpec, config: Mapping[str, Any]) -> str:
    """Return the text of the program that adds the parts of a split sum."""
    lanes = config.get("lanes", 4)
    return _epilogue(spec, config, lanes, partial=False) + kernel_text(__package__, "reduce.cl.mako")
