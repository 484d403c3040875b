"""Generates OpenCL functions that multiply bfloat16 vectors by AVX512-BF16's ``vdpbf16ps`` in inline assembly.

``vdpbf16ps`` adds to each of sixteen sums the products of two neighbours along k, at twice the rate of float32's
multiply-adds. Sixteen of the 32 registers hold sums of 8 rows by 32 columns; a row's pair is broadcast for two of them.
Intel's compiler accepts only pointers as operands, so a function is one block of assembly that loads from memory and
stores to memory. Its caller keeps nothing in vector registers, which Linux's calling convention does not preserve. The
instructions are in volume 2 of Intel's manual.
"""

from __future__ import annotations

from convdispatch.api.cpu import assembly

NO_TILES = """
#define TILES_BEGIN()
#define TILES_END()
"""
"""Empty definitions of the macros that configure and release AMX tiles: vector kernels need neither."""

ROWS = 8
"""Rows of a block of sums: with two vectors of columns, sixteen sums hide the latency of ``vdpbf16ps``."""
_PAIRS = 16
"""Pairs of bfloat16 numbers in a step of 32 summed indices."""


def product(
    name: str,
    a: dict[str, int],
    b: dict[str, int],
    tall: int,
    columns: int,
    accumulates: bool = False,
    rounded: bool = False,
) -> str:
    """OpenCL function ``name(a, b, offsets, steps, sums, line)``: like ``instructions.product`` with one plane.

    It multiplies ``tall`` rows of A by ``columns`` vectors of B. ``a["pair"]``: bytes from pair to pair, if pairs are
    not contiguous. Without ``row`` an operand's rows are ``line`` bytes apart, which is a last parameter. ``rounded``:
    sums are stored as bfloat16 in rows that are ``pitch`` bytes apart, which is one more parameter.
    """
    text = _block(name, a, b, columns, accumulates, rounded)
    declared, arguments = _parameters(a, b, rounded)
    row, pitch = f"{a['row']}L" if "row" in a else "line", "pitch" if rounded else "32"
    return f"""{text}
void {name}({declared}) {{
  ONCE for (int i = 0; i < {tall}; i += {ROWS}, a += {ROWS} * {row}, sums += {ROWS} * {pitch})
    {name}_rows({arguments});
}}
"""


def _parameters(a: dict[str, int], b: dict[str, int], rounded: bool) -> tuple[str, str]:
    listed = "step" not in a or "step" not in b
    types = {"a": "global const uchar *", "b": "global const uchar *"}
    types |= {"offsets": "global const int *"} if listed else {}
    types |= {"steps": "long ", "sums": f"global {'uchar' if rounded else 'float'} *"}
    types |= {"line": "long "} if "row" not in a or "row" not in b else {}
    types |= {"pitch": "long "} if rounded else {}
    return ", ".join(kind + parameter for parameter, kind in types.items()), ", ".join(types)


def _block(name: str, a: dict[str, int], b: dict[str, int], columns: int, accumulates: bool, rounded: bool) -> str:
    sums = [(i, j) for i in range(ROWS) for j in range(columns)]
    register = {index: k for k, index in enumerate(sums)}
    first = {"a": "t" if "step" not in a else "a", "b": "t" if "step" not in b else "b"}
    begin = [f"%[{first['a']}]", "%[below]"]  # assembly operands with the addresses of rows 0 and 4 of A
    row_operands = [f"({begin[i // 4]}{('', ',%[row]', ',%[row],2', ',%[row3]')[i % 4]})" for i in range(ROWS)]
    if accumulates:
        lines = [f"vmovups {128 * i + 64 * j}(%[sums]), %%zmm{k}" for (i, j), k in register.items()]
    else:
        lines = [f"vpxord %%zmm{k}, %%zmm{k}, %%zmm{k}" for k in register.values()]
    lines += ["1:"]
    for side in (side for side, offset in first.items() if offset == "t"):
        lines += ["movslq (%[offsets]), %[t]", f"add %[{side}], %[t]", "add $4, %[offsets]"]
    lines += [f"lea ({begin[0]},%[row],4), %[below]"]
    for pair in range(_PAIRS):
        offset = pair * b.get("row", 0)
        lines += [f"vmovups {offset + j * b['tile']}(%[{first['b']}]), %%zmm{16 + j}" for j in range(columns)]
        for i in range(ROWS):
            lines += [f"vbroadcastss {pair * a.get('pair', 4)}{row_operands[i]}, %%zmm{18 + i}"]
            lines += [f"vdpbf16ps %%zmm{16 + j}, %%zmm{18 + i}, %%zmm{register[i, j]}" for j in range(columns)]
        lines += ["add %[line], %[t]"] if "row" not in b else []
    lines += [f"add ${side['step']}, %[{offset}]" for offset, side in (("a", a), ("b", b)) if "step" in side]
    lines += ["dec %[steps]", "jnz 1b"]
    if rounded:
        for i in range(ROWS):
            vector = f"%%zmm{register[i, 0]}"
            lines += (
                [f"vcvtne2ps2bf16 {vector}, %%zmm{register[i, 1]}, {vector}", f"vmovups {vector}, (%[sums])"]
                if columns == 2
                else [
                    f"vcvtneps2bf16 {vector}, {vector.replace('zmm', 'ymm')}",
                    f"vmovups {vector.replace('zmm', 'ymm')}, (%[sums])",
                ]
            )
            lines += ["add %[pitch], %[sums]"]
    else:
        lines += [f"vmovups %%zmm{k}, {128 * i + 64 * j}(%[sums])" for (i, j), k in register.items()]
    listed = ["t"] * ("t" in first.values())
    changed = ["a", "b", *["offsets"] * len(listed), "steps", *["sums"] * rounded]
    row = f"{a['row']}L" if "row" in a else "line"
    read = {"row": row, "row3": f"3 * {row}"} | ({} if "row" in b else {"line": "line"})
    read |= {"pitch": "pitch"} if rounded else {"sums": "sums"}
    return assembly(f"{name}_rows", _parameters(a, b, rounded)[0], lines, changed, read, [*listed, "below"])
