"""Generates OpenCL functions that multiply bytes in AMX tiles and convert sums to bytes, by inline assembly.

A function contains only its assembly: the compiler is not told which tiles and vector registers it changes, so nothing
of the compiler's may be in them. A product sums over taps, whose byte offsets are in ``offsets``, and in each tap over
``steps`` of contiguous bytes.
"""

from __future__ import annotations

from convdispatch.api.cpu import assembly

__all__ = ["byte_finish", "tile_product"]


def tile_product(name: str, tiles: tuple[int, int], row: int, steps: int, signed: bool) -> str:
    """OpenCL function ``name(a, b, offsets, taps, sums)`` by matrix registers: ``sums[32][32] = A B``.

    ``tiles``: number of tiles of 16 positions and of tiles of 16 channels, one or two each; a step is 64 bytes.
    Positions of A are ``row`` bytes apart, B is ``[step][16][32][4]``.
    """
    rows, columns = tiles
    sums = [(i, j) for i in range(rows) for j in range(columns)]
    step_lines = [f"tileloadd {16 * row * i}(%[t],%[row],1), %%tmm{4 + i}" for i in range(rows)]
    step_lines += [f"tileloadd {64 * j}(%[b],%[pitch],1), %%tmm{6 + j}" for j in range(columns)]
    instruction = "tdpbssd" if signed else "tdpbusd"
    step_lines += [f"{instruction} %%tmm{6 + j}, %%tmm{4 + i}, %%tmm{2 * i + j}" for i, j in sums]
    lines = [f"tilezero %%tmm{2 * i + j}" for i, j in sums]
    lines += ["1:", "movslq (%[offsets]), %[t]", "add %[a], %[t]", "add $4, %[offsets]", f"mov ${steps}, %[k]"]
    lines += ["2:", *step_lines, "add $64, %[t]", "add $2048, %[b]", "dec %[k]", "jnz 2b", "dec %[taps]", "jnz 1b"]
    lines += [f"tilestored %%tmm{2 * i + j}, {2048 * i + 64 * j}(%[sums],%[pitch],1)" for i, j in sums]
    parameters = "global const uchar *a, global const uchar *b, constant int *offsets, long taps, global int *sums"
    read = {"a": "a", "sums": "sums", "row": f"{row}L", "pitch": "128L"}
    return assembly(name, parameters, lines, ("b", "offsets", "taps"), read, ("t", "k"))


def byte_finish(name: str, residual: str | None) -> str:
    """OpenCL function ``name(sums, numbers, to, count, y[, residual])``: converts ``sums[count][32]`` to bytes of y.

    The channels of position i that the masks select are stored at ``y + to[i]``, unless ``to[i]`` is negative; a
    residual (``"int8"`` or ``"uint8"``) is read at the same offset. ``numbers`` holds shift[32], scale[32] and what
    ``finish.cl`` writes. The quotient by y's scale is exact: a product with the reciprocal, corrected by its error
    (Markstein's step).
    """
    offsets = {"low": 0, "high": 1, "zero": 2, "sum_low": 3, "sum_high": 4, "sum_scale": 5, "r_zero": 6, "r_scale": 7}
    offsets |= {"y_scale": 8, "inverse": 9, "mask0": 10, "mask1": 11, "rounds": 12}
    operand = {word: f"{256 + 4 * number}(%[numbers])" for word, number in offsets.items()}
    registers = {"low": 16, "high": 17, "zero": 18}
    if residual is not None:
        names = ("sum_low", "sum_high", "sum_scale", "r_zero", "r_scale", "y_scale", "inverse")
        registers |= {word: 19 + number for number, word in enumerate(names)}
    lines = [f"vbroadcastss {operand[word]}, %%zmm{number}" for word, number in registers.items()]
    lines += [f"kmovw {operand[word]}, %%k{number}" for number, word in enumerate(("mask0", "mask1", "rounds"), 1)]
    # The shifts of 32 channels are loaded into zmm12 and zmm13, the scales into zmm14 and zmm15.
    lines += [f"vmovdqu32 {64 * j}(%[numbers]), %%zmm{12 + j}" for j in range(4)]
    lines += ["1:", "mov (%[to]), %[t]", "add $8, %[to]", "test %[t], %[t]", "js 3f"]

    def for_each_half(text: str) -> list[str]:
        """Expand an instruction for each half of the channels: @S sums, @R residual, @Q temporary, and constants."""
        first_registers = {"SHIFT": 12, "SCALE": 14, "S": 0, "R": 2, "Q": 4}
        expanded = []
        for j in range(2):
            line = text
            for word, number in first_registers.items():
                line = line.replace(f"@{word}", f"%%zmm{number + j}")
            for word, number in registers.items():
                line = line.replace(f"@{word}", f"%%zmm{number}")
            expanded.append(line.replace("@J", str(j)))
        return expanded

    lines += [f"vmovdqu32 {64 * j}(%[sums]), %%zmm{j}" for j in range(2)]
    steps = ["vpaddd @SHIFT, @S, @S", "vcvtdq2ps @S, @S", "vmulps @SCALE, @S, @S"]
    if residual is not None:
        lines += ["mov %[residual], %[u]", "add %[t], %[u]"]
        widen = "vpmovsxbd" if residual == "int8" else "vpmovzxbd"
        lines += [f"{widen} {16 * j}(%[u]), %%zmm{2 + j} %{{%%k{1 + j}%}}%{{z%}}" for j in range(2)]
        steps += ["vcvtdq2ps @R, @R", "vsubps @r_zero, @R, @R", "vmulps @r_scale, @R, @R"]
        steps += ["vrndscaleps $8, @S, @S %{%%k3%}", "vmaxps @sum_low, @S, @S", "vminps @sum_high, @S, @S"]
        steps += ["vmulps @sum_scale, @S, @S", "vaddps @R, @S, @S", "vmulps @inverse, @S, @Q"]
        steps += ["vfnmadd231ps @Q, @y_scale, @S", "vfmadd213ps @Q, @inverse, @S"]
    steps += ["vmaxps @low, @S, @S", "vminps @high, @S, @S", "vcvtps2dq @S, @S", "vpaddd @zero, @S, @S"]
    for step in steps:
        lines += for_each_half(step)
    lines += ["add %[y], %[t]", *(f"vpmovdb %%zmm{j}, {16 * j}(%[t]) %{{%%k{1 + j}%}}" for j in range(2))]
    lines += ["3:", "add $128, %[sums]", "dec %[count]", "jnz 1b"]
    parameters = "global const int *sums, global const int *numbers, global const long *to, long count, global char *y"
    read, temporaries = {"numbers": "numbers", "y": "y"}, ["t"]
    if residual is not None:
        parameters += ", global const char *residual"
        read |= {"residual": "residual"}
        temporaries.append("u")
    return assembly(name, parameters, lines, ("sums", "to", "count"), read, temporaries)
