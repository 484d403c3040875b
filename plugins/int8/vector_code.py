"""Generates OpenCL functions that multiply by AVX512-VNNI and convert the sums to bytes in registers.

A function contains only its assembly, as in ``instructions``. ``numbers`` is memory with the numbers that all channels
share (``vectors.cl`` fills it); ``channels`` holds shift[32] and scale[32] of a panel.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from convdispatch.api.cpu import assembly

__all__ = ["NUMBERS", "Tile", "finish_lines", "number_at", "number_macros", "pack_lines", "vector_tile"]

NUMBERS = {
    "zero": 0, "order": 16, "low": 32, "high": 33, "sum_low": 34, "sum_high": 35, "sum_scale": 36, "r_zero": 37,
    "r_scale": 38, "y_scale": 39, "inverse": 40, "bounded": 42, "rounds": 44, "slow": 46, "sums": 64,
}  # fmt: skip
"""Offsets in ``numbers``, in 32-bit words. ``zero``: y's zero point as a vector of 16-bit numbers; ``order``: the
permutation of words after four vectors of sums are packed; ``sums``: memory for sums; the others are single numbers."""


class Tile(NamedTuple):
    """A tile of output positions: the byte offset of each in A and in y, and the channels of its panel, at most 32."""

    a: tuple[int, ...]
    y: tuple[int, ...]
    channels: int = 32

    @property
    def halves(self) -> int:
        """Vectors of sums per output position."""
        return 2 if self.channels > 16 else 1


def number_macros() -> str:
    """OpenCL macros ``NUMBER_<name>``, the offsets for the kernel that fills ``numbers``."""
    return "".join(f"#define NUMBER_{name} {offset}\n" for name, offset in NUMBERS.items())


def number_at(word: str, more: int = 0) -> str:
    """Assembly operand for a word of ``numbers``, ``more`` bytes further."""
    return f"{4 * NUMBERS[word] + more}(%[numbers])"


def splat(word: str) -> str:
    return f"{number_at(word)}%{{1to16%}}"


def finish_lines(sums: Sequence[int], scales: Sequence[str], residual: Sequence[str] | None) -> list[str]:
    """Assembly that multiplies int32 sums by their scales, clamps and rounds them, before y's zero point is added.

    ``residual``: for each vector the instruction that loads its residual into ``@R``; registers 28 to 31 are free then.
    The quotient by y's scale is exact: a product with the reciprocal, corrected by its error (Markstein's step).
    """
    lines = []
    for z, scale in zip(sums, scales, strict=True):
        lines += [f"vcvtdq2ps %%zmm{z}, %%zmm{z}", f"vmulps {scale}, %%zmm{z}, %%zmm{z}"]
    instructions = (
        "vcvtdq2ps @R, @R", f"vsubps {splat('r_zero')}, @R, @R", f"vmulps {splat('r_scale')}, @R, @R",
        "vrndscaleps $8, @S, @S %{%%k3%}", f"vmaxps {splat('sum_low')}, @S, @S", f"vminps {splat('sum_high')}, @S, @S",
        f"vmulps {splat('sum_scale')}, @S, @S", "vaddps @R, @S, @S", f"vmulps {splat('inverse')}, @S, @Q",
        f"vfnmadd231ps {splat('y_scale')}, @Q, @S", f"vfmadd132ps {splat('inverse')}, @Q, @S",
    )  # fmt: skip
    if residual is not None:
        for first_sum in range(0, len(sums), 2):
            pair = list(zip(sums[first_sum : first_sum + 2], residual[first_sum : first_sum + 2], strict=True))
            for step in range(-1, len(instructions)):
                for i, (z, load) in enumerate(pair):
                    text = (load if step < 0 else instructions[step]).replace("@S", f"%%zmm{z}")
                    lines.append(text.replace("@R", f"%%zmm{28 + i}").replace("@Q", f"%%zmm{30 + i}"))
    lines += [f"testq $1, {number_at('bounded')}", "jz 3f"]
    for word, operand in (("vmaxps", "low"), ("vminps", "high")):
        lines += [f"{word} {splat(operand)}, %%zmm{z}, %%zmm{z}" for z in sums]
    return [*lines, "3:", *(f"vcvtps2dq %%zmm{z}, %%zmm{z}" for z in sums)]


def pack_lines(four: Sequence[int], order: int, signed: bool) -> list[str]:
    """Assembly that adds y's zero point to four vectors of int32, and packs their saturated bytes into the first.

    The last two vectors may be the first two again. ``order`` is the register with the permutation of words.
    """
    lines = []
    for a, b in (four[:2],) if four[2] == four[0] else (four[:2], four[2:]):
        lines += [f"vpackssdw %%zmm{b}, %%zmm{a}, %%zmm{a}", f"vpaddsw {number_at('zero')}, %%zmm{a}, %%zmm{a}"]
    saturate, a = "vpacksswb" if signed else "vpackuswb", four[0]
    return [*lines, f"{saturate} %%zmm{four[2]}, %%zmm{a}, %%zmm{a}", f"vpermd %%zmm{a}, %%zmm{order}, %%zmm{a}"]


def _as_bytes(tile: Tile, signed: bool, residual: str | None) -> list[str]:
    """Assembly that converts the sums in registers to bytes of y and stores them."""
    halves, positions, ragged = tile.halves, len(tile.a), tile.channels % 16 != 0
    sums = range(halves * positions)
    lines, masks, residual_loads = [], ["", ""], None
    if ragged:
        lines += [f"mov ${(1 << tile.channels) - 1}, %[k]", "kmovq %[k], %%k1", "shr $16, %[k]", "kmovq %[k], %%k2"]
        masks = [" %{%%k1%}", " %{%%k2%}"]
    if residual is not None:
        lines += [f"testq $1, {number_at('slow')}", "jz 4f"]
        lines += [f"vmovdqu32 %%zmm{z}, {number_at('sums', 128 * (z // halves) + 64 * (z % halves))}" for z in sums]
        lines += ["jmp 9f", "4:", f"kmovw {number_at('rounds')}, %%k3"]
        widen, zeroed = "vpmovsxbd" if residual == "int8" else "vpmovzxbd", ["%{z%}" if each else "" for each in masks]
        residual_loads = [
            f"{widen} {tile.y[z // halves] + 16 * (z % halves)}(%[residual]), @R{masks[z % halves]}{zeroed[z % halves]}"
            for z in sums
        ]
    lines += finish_lines(sums, [f"{128 + 64 * (z % halves)}(%[channels])" for z in sums], residual_loads)
    lines.append(f"vmovdqu32 {number_at('order')}, %%zmm31")
    positions_per_vector, extract, part = (2, "vextracti64x4", "ymm") if halves == 2 else (4, "vextracti32x4", "xmm")
    for first_position in range(0, positions, positions_per_vector):
        group = [min(first_position + i, positions - 1) for i in range(positions_per_vector)]
        vectors = [halves * p + j for p in group for j in range(halves)]
        lines += pack_lines(vectors, 31, signed)
        for i, position in enumerate(range(first_position, min(first_position + positions_per_vector, positions))):
            target, packed_vector = f"{tile.y[position]}(%[y])", f"%%zmm{vectors[0]}"
            if i and not ragged:
                lines.append(f"{extract} ${i}, {packed_vector}, {target}")
                continue
            lines += [f"{extract} ${i}, {packed_vector}, %%{part}30"] if i else []
            lines.append(f"vmovdqu8 %%{part}{30 if i else vectors[0]}, {target}{masks[0]}")
    return [*lines, "9:"] if residual is not None else lines


def vector_tile(name: str, tile: Tile, steps: int, out: str | None, residual: str | None, ahead: int = 0) -> str:
    """OpenCL function ``name(a, b, ahead, offsets, taps, channels, numbers, y[, residual])``, or with ``out=None``
    ``name(a, b, ahead, offsets, taps, sums)``, which stores int32 sums, 32 per position. Each step prefetches ``ahead``
    more bytes from the address ``ahead`` on.

    A is unsigned; B is ``[step][32][4]``; a step is 4 bytes. A tile has at most 14 positions. ``out`` and ``residual``
    are ``"int8"`` or ``"uint8"``.
    """
    halves = tile.halves
    sums = [(p, j, f"%%zmm{halves * p + j}") for p in range(len(tile.a)) for j in range(halves)]
    begin = [f"vpxord {z}, {z}, {z}" if out is None else f"vmovdqu32 {64 * j}(%[channels]), {z}" for _, j, z in sums]
    lines = [*begin, "1:", "movslq (%[offsets]), %[t]", "add %[a], %[t]", "add $4, %[offsets]", f"mov ${steps}, %[k]"]
    lines += ["2:", *(f"vmovdqu32 {64 * j}(%[b]), %%zmm{28 + j}" for j in range(halves))]
    for p, offset in enumerate(tile.a):
        lines.append(f"vpbroadcastd {offset}(%[t]), %%zmm{30 + p % 2}")
        lines += [f"vpdpbusd %%zmm{28 + j}, %%zmm{30 + p % 2}, %%zmm{halves * p + j}" for j in range(halves)]
    if ahead:
        lines += [*(f"prefetcht1 {line}(%[ahead])" for line in range(0, ahead, 64)), f"add ${ahead}, %[ahead]"]
    lines += ["add $4, %[t]", "add $128, %[b]", "dec %[k]", "jnz 2b", "dec %[taps]", "jnz 1b"]
    if out is None:
        lines += [f"vmovdqu32 {z}, {128 * p + 64 * j}(%[sums])" for p, j, z in sums]
        written = {"sums": "global int *"}
    else:
        lines += _as_bytes(tile, out == "int8", residual)
        written = {"channels": "global const int *", "numbers": "global int *", "y": "global char *"}
        written |= {} if residual is None else {"residual": "global const char *"}
    parameters = "global const uchar *a, global const uchar *b, global const uchar *ahead, constant int *offsets, "
    parameters += "long taps" + "".join(f", {kind}{each}" for each, kind in written.items())
    read = {each: each for each in ("a", *written)}
    return assembly(name, parameters, lines, ("b", "ahead", "offsets", "taps"), read, ("t", "k"))
