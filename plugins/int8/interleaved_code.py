"""Generates OpenCL functions for depthwise sums by AVX512-VNNI: four lines of x are interleaved into 32-bit words, and
one instruction sums a word's four products. A function contains only its assembly, as in ``instructions``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from convdispatch.api.cpu import assembly

from .vector_code import finish_lines, number_at, pack_lines

__all__ = ["Product", "depthwise_columns", "interleave"]

MAX_HELD_WEIGHTS = 18
"""Most vectors of weights that stay in registers while all columns are computed."""


class Product(NamedTuple):
    """A vector of words, ``slot_offset`` bytes after the first column's, times vector ``weights``, for row ``row``."""

    slot_offset: int
    weights: int
    row: int


def interleave(name: str, size: int, step: int, flip: bool) -> str:
    """OpenCL function ``name(a, b, c, d, to, count)``: interleaves the bytes of four lines into ``to[count][size][4]``.

    ``size`` is the number of contiguous bytes, a multiple of 16; the next ones are ``step`` bytes further. ``flip``
    turns signed bytes into unsigned bytes.
    """
    full_chunks, tail = divmod(size, 64)
    lines = []
    if flip:  # zmm31 = 0x80 in every byte, to flip the sign bits of int8
        lines += [
            "vpternlogd $255, %%zmm31, %%zmm31, %%zmm31",
            "vpabsb %%zmm31, %%zmm31",
            "vpsllw $7, %%zmm31, %%zmm31",
        ]
    if tail:
        lines += [f"mov ${(1 << tail) - 1}, %[k]", "kmovq %[k], %%k1"]

    def chunk(masks: str, vectors: int) -> list[str]:
        code = [f"vmovdqu8 (%[{line}]), %%zmm{i}{masks}" for i, line in enumerate("abcd")]
        code += [f"vpxord %%zmm31, %%zmm{i}, %%zmm{i}" for i in range(4)] if flip else []
        for word, pairs in (
            ("bw", ((4, 0, 1), (6, 2, 3))),  # vpunpckbw interleaves the bytes of two lines into pairs
            ("wd", ((0, 4, 6), (2, 5, 7))),  # vpunpckwd interleaves pairs into 32-bit words of four lines
        ):
            for target, left, right in pairs:
                code += [
                    f"vpunpck{half}{word} %%zmm{right}, %%zmm{left}, %%zmm{target + i}" for i, half in enumerate("lh")
                ]
        for target, word in ((4, 0x44), (5, 0xEE)):  # vshufi32x4 puts the 128-bit lanes in column order
            code += [f"vshufi32x4 ${word}, %%zmm{2 * i + 1}, %%zmm{2 * i}, %%zmm{target + 2 * i}" for i in range(2)]
        for i, (source, word) in enumerate(((4, 0x88), (4, 0xDD), (5, 0x88), (5, 0xDD))):
            code.append(f"vshufi32x4 ${word}, %%zmm{source + 2}, %%zmm{source}, %%zmm{i}")
        return code + [f"vmovdqu32 %%zmm{i}, {64 * i}(%[to])" for i in range(vectors)]

    lines.append("1:")
    if full_chunks:
        lines += [f"mov ${full_chunks}, %[k]", "2:", *chunk("", 4), *(f"add $64, %[{each}]" for each in "abcd")]
        lines += ["add $256, %[to]", "dec %[k]", "jnz 2b"]
    if tail:
        lines += [*chunk(" %{%%k1%}%{z%}", tail // 16), f"add ${4 * tail}, %[to]"]
    lines += [f"add ${step - 64 * full_chunks}, %[{each}]" for each in "abcd"]
    changed = ("a", "b", "c", "d", "to", "count")
    parameters = ", ".join(f"global const uchar *{each}" for each in changed[:4]) + ", global uchar *to, long count"
    return assembly(name, parameters, [*lines, "dec %[count]", "jnz 1b"], changed, {}, ("k",))


def depthwise_columns(
    name: str, columns: int, rows: int, products: Sequence[Product], pitch: int, channels: int, out: str
) -> str:
    """OpenCL function ``name(v, w, shifts, numbers, y0, y1, count)``: computes bytes of y for sixteen channels.

    It computes ``columns``, at most 4, of one or two rows at a time, ``count`` times. From column to column are
    ``pitch`` bytes of words and ``channels`` bytes of y. ``shifts`` is shift[16] and scale[16].
    """
    sums = range(columns * rows)
    in_registers = len({product.weights for product in products}) <= MAX_HELD_WEIGHTS
    loaded = sorted({product.weights for product in products}) if in_registers else []
    lines = [f"vmovdqu32 {64 * w}(%[w]), %%zmm{8 + w}" for w in loaded]
    lines += [f"vmovdqu32 {number_at('order')}, %%zmm31", "1:"]
    lines += [f"vmovdqu32 (%[shifts]), %%zmm{z}" for z in sums]
    products_by_offset: dict[int, list[tuple[int, int]]] = {}
    for product in products:
        for column in range(columns):
            pair = (rows * column + product.row, product.weights)
            products_by_offset.setdefault(product.slot_offset + column * pitch, []).append(pair)
    for i, (slot_offset, pairs) in enumerate(sorted(products_by_offset.items())):
        lines.append(f"vmovdqu32 {slot_offset}(%[v]), %%zmm{26 + i % 2}")
        for z, w in pairs:
            weights = f"%%zmm{8 + w}" if in_registers else f"{64 * w}(%[w])"
            lines.append(f"vpdpbusd {weights}, %%zmm{26 + i % 2}, %%zmm{z}")
    lines += finish_lines(sums, ["64(%[shifts])" for _ in sums], None)
    for row in range(rows):
        vectors = [rows * min(column, columns - 1) + row for column in range(4)]
        vectors = vectors if columns > 2 else vectors[:2] * 2
        lines += pack_lines(vectors, 31, out == "int8")
        lines.append(f"vmovdqu %%xmm{vectors[0]}, (%[y{row}])")
        for i in range(1, columns):
            lines.append(f"vextracti32x4 ${i}, %%zmm{vectors[0]}, {i * channels}(%[y{row}])")
    pointer_steps = {"v": columns * pitch, "y0": columns * channels, "y1": columns * channels}
    lines += [f"add ${size}, %[{product}]" for product, size in pointer_steps.items()]
    parameters = "global const uchar *v, global const uchar *w, global const int *shifts, global const int *numbers, "
    parameters += "global char *y0, global char *y1, long count"
    read = {each: each for each in ("w", "shifts", "numbers")}
    return assembly(name, parameters, [*lines, "dec %[count]", "jnz 1b"], ("v", "y0", "y1", "count"), read)
