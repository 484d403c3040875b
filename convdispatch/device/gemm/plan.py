"""GemmPlan: one compiled matrix product: optional packing, the product, and the reduction of a split sum."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pyopencl as cl

from ...api.errors import InvalidArgument
from ..programs.kernels import Launch, build
from .layout import direct, packed_layout
from .source import gemm_text, packing, reduce_text
from .spec import GemmSpec

_ALIGN = 128  # bytes to which the start of each area of the workspace is aligned


class GemmPlan:
    """One matrix product, compiled for a context; ``config`` is one of ``configs(spec, device)``.

    ``workspace_size`` is the size of the scratch memory of ``enqueue``, ``packed_a_size`` and ``packed_b_size`` those
    of the packed operands (all in bytes). Safe to use from several threads.
    """

    workspace_size: int
    packed_a_size: int
    packed_b_size: int

    def __init__(self, context: cl.Context, spec: GemmSpec, config: Mapping[str, Any]) -> None:
        self.spec, self.config = spec, dict(config)
        self._context = context
        swap = bool(config.get("swap"))
        # From here on the product is C = A B with the operands in the order in which the kernel takes them.
        inner = (spec.swapped if swap else spec).simplified
        self._order = "ba" if swap else "ab"
        self._layouts = {letter: packed_layout(spec, config, letter) for letter in "ab"}
        self.packed_a_size, self.packed_b_size = self._layouts["a"].size, self._layouts["b"].size
        self._packers: dict[str, Launch] = {}
        self._inner, self._pack_lock = inner, threading.Lock()
        self._areas, self.workspace_size = _workspace_areas(spec, config)
        for letter in "ab":
            if letter in self._areas:
                self._packer(letter)
        split = config["split"]
        packed = {letter: caller in self._areas for letter, caller in zip("ab", self._order, strict=True)}
        kernel_spec = dataclasses.replace(
            inner, a_packed=inner.a_packed or packed["a"], b_packed=inner.b_packed or packed["b"]
        )
        out_count = 1 + (spec.epilogue.bias is not None) + spec.epilogue.residual
        program = build(context, gemm_text(kernel_spec, config))
        self._gemm = _launch(program, "gemm", *_gemm_sizes(kernel_spec, config), 3 if split > 1 else 2 + out_count)
        self._reduce = None
        if split > 1:
            lanes = config.get("lanes", 4)
            sizes = (-(-inner.n // lanes), inner.m, inner.batch)
            self._reduce = _launch(build(context, reduce_text(inner, config)), "reduce", sizes, None, 1 + out_count)

    def pack(
        self,
        letter: str,
        queue: cl.CommandQueue,
        source: Any,
        packed: Any,
        wait_for: Any = None,
        offsets: tuple[int, int] = (0, 0),
    ) -> cl.Event:
        """Write the packed form of A or B, by ``letter``; the offsets in source and packed form are in elements."""
        return self._packer(letter)(queue, (source, offsets[0], packed, offsets[1]), wait_for)

    def enqueue(
        self,
        queue: cl.CommandQueue,
        a: cl.MemoryObject,
        b: cl.MemoryObject,
        c: cl.MemoryObject,
        workspace: cl.MemoryObject | None = None,
        wait_for: Sequence[cl.Event] | None = None,
        *,
        bias: cl.MemoryObject | None = None,
        residual: cl.MemoryObject | None = None,
        a_offset: int = 0,
        b_offset: int = 0,
        c_offset: int = 0,
        bias_offset: int = 0,
        residual_offset: int = 0,
        workspace_offset: int = 0,
    ) -> cl.Event:
        """Enqueue the product and return the event of its last command. Never waits, never allocates.

        Offsets are in elements of their buffer, ``workspace_offset`` in bytes, a multiple of 128. ``c`` must not
        overlap ``a`` or ``b``; ``residual`` may be ``c``'s very elements.
        """
        spec = self.spec
        if spec.alignment > 1 and (a_offset | b_offset | c_offset | residual_offset) % spec.alignment:
            raise InvalidArgument(
                f"offsets must be multiples of {spec.alignment} elements as the spec promises, got a {a_offset}, "
                f"b {b_offset}, c {c_offset}, residual {residual_offset}"
            )
        out = (c, c_offset)
        if spec.epilogue.bias is not None:
            out += (bias, bias_offset)
        if spec.epilogue.residual:
            out += (residual, residual_offset)
        operands = {"a": (a, a_offset), "b": (b, b_offset)}
        if self._areas:
            unit = spec.accumulator_size
            for letter in "ab":
                if letter in self._areas:
                    area = (workspace, (workspace_offset + self._areas[letter]) // unit)
                    wait_for = [self._packers[letter](queue, operands[letter] + area, wait_for)]
                    operands[letter] = area
            if self._reduce is not None:
                partial = (workspace, (workspace_offset + self._areas["partial"]) // unit)
                first, second = self._order
                event = self._gemm(queue, operands[first] + operands[second] + partial, wait_for)
                return self._reduce(queue, partial + out, [event])
        first, second = self._order
        return self._gemm(queue, operands[first] + operands[second] + out, wait_for)

    def packing(self, packed_offset: int = 0) -> Callable[..., cl.Event]:
        """A step of a plan that packs A, which is w, into the workspace or the packed buffer; compiled here."""
        self._packer("a")
        return lambda queue, operands, wait_for=None: self.pack(
            "a", queue, operands[1], operands[3], wait_for, (0, packed_offset)
        )

    def _packer(self, letter: str) -> Launch:
        with self._pack_lock:
            if letter not in self._packers:
                kernel_letter = "ab"[self._order.index(letter)]
                text, sizes, local, numbers = packing(self._inner, self.config, kernel_letter)
                self._packers[letter] = _launch(build(self._context, text), "pack", sizes, local, 2, numbers)
            return self._packers[letter]


def workspace_size(spec: GemmSpec, config: Mapping[str, Any]) -> int:
    """Return the bytes of workspace that ``GemmPlan(context, spec, config)`` needs, without compiling it."""
    return _workspace_areas(spec, config)[1]


def _workspace_areas(spec: GemmSpec, config: Mapping[str, Any]) -> tuple[dict[str, int], int]:
    """The workspace's areas, byte offsets of operands to pack (``a``, ``b``) and of ``partial`` sums, and its size."""
    inner = (spec.swapped if config.get("swap") else spec).simplified
    packs = {"a": False, "b": False}
    if config["kind"] == "cpu":
        packs = {x: config["pack_" + x] or not direct(inner, x, config["lanes"]) for x in "ab"}
        packs = {x: packs[x] and config["pack_" + x] != "local" for x in "ab"}
    areas, size = {}, 0
    # ``letter`` names an operand in the kernel's order, ``caller_letter`` the same operand in the caller's order.
    for letter, caller_letter in zip("ab", "ba" if config.get("swap") else "ab", strict=True):
        if packs[letter] and not getattr(inner, letter + "_packed"):
            areas[caller_letter] = size
            size += -(-packed_layout(spec, config, caller_letter).size // _ALIGN) * _ALIGN
    if config["split"] > 1:
        areas["partial"] = size
        size += config["split"] * spec.batch * spec.m * spec.n * spec.accumulator_size
    return areas, size


def _launch(
    program: cl.Program,
    name: str,
    sizes: tuple[int, ...],
    local: tuple[int, ...] | None,
    pairs: int,
    numbers: Sequence[Any] = (),
) -> Launch:
    """A kernel whose operands are (memory, element offset) pairs; constant numbers may follow them."""
    names = [f"{part}{i}" for i in range(pairs) for part in ("memory", "offset")]
    dtypes = [None, np.int64] * pairs + [type(number) for number in numbers]
    return Launch(program, name, sizes, local, [*names, *numbers], names=names, dtypes=dtypes)


def _gemm_sizes(spec: GemmSpec, config: Mapping[str, Any]) -> tuple[tuple[int, int, int], tuple[int, int, int]]:
    """Return the global and local sizes of the launch of the product's kernel."""
    if config["kind"] == "cpu":
        panels = -(-spec.n // (config["nv"] * config["lanes"]))
        tiles = -(-spec.m // config["mr"])
        batches = -(-spec.batch // config["bt"]) * config["split"]
        return (-(-panels // config["np"]), -(-tiles // config["mt"]), batches), (1, 1, 1)
    items = (config["bm"] // config["tm"]) * (config["bn"] // config["tn"])
    groups = (-(-spec.n // config["bn"]), -(-spec.m // config["bm"]), spec.batch * config["split"])
    return (groups[0] * items, groups[1], groups[2]), (items, 1, 1)
