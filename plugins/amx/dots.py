"""Products of bfloat16 in vectors as OpenCL text: AVX512-BF16's ``vdpbf16ps`` in inline assembly.

An instruction adds to each of sixteen sums the products of a pair of neighbours, at twice the rate of float32's
multiply-adds. Sixteen of 32 registers hold sums, of 8 rows by 32 columns; a row's pair is broadcast for two of them.
Intel's compiler takes pointers alone as operands, so a function is one block that begins and ends in memory; its
caller has nothing in vector registers, which Linux's calling convention does not preserve. Intel's manual, volume 2,
has the instructions.
"""

from __future__ import annotations

NOTHING = """
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
    goes_on: bool = False,
    rounded: bool = False,
) -> str:
    """OpenCL function ``name(a, b, offsets, steps, sums, line)``: as of ``instructions.product`` of one plane.

    ``tall`` rows of A by ``columns`` vectors of B. ``pair`` of A: bytes from pair to pair, where these are no
    neighbours. An operand without ``row`` has its rows ``line`` bytes apart, a last parameter. ``rounded``: sums are
    written as bfloat16, to rows that are ``pitch`` bytes apart, one more parameter.
    """
    text = _block(name, a, b, columns, goes_on, rounded)
    given, passed = _parameters(a, b, rounded)
    row, pitch = f"{a['row']}L" if "row" in a else "line", "pitch" if rounded else "32"
    return f"""{text}
void {name}({given}) {{
  ONCE for (int i = 0; i < {tall}; i += {ROWS}, a += {ROWS} * {row}, sums += {ROWS} * {pitch})
    {name}_rows({passed});
}}
"""


def _parameters(a: dict[str, int], b: dict[str, int], rounded: bool) -> tuple[str, str]:
    listed = "step" not in a or "step" not in b
    given = {"a": "global const uchar *", "b": "global const uchar *"}
    given |= {"offsets": "global const int *"} if listed else {}
    given |= {"steps": "long ", "sums": f"global {'uchar' if rounded else 'float'} *"}
    given |= {"line": "long "} if "row" not in a or "row" not in b else {}
    given |= {"pitch": "long "} if rounded else {}
    return ", ".join(kind + each for each, kind in given.items()), ", ".join(given)


def _block(name: str, a: dict[str, int], b: dict[str, int], columns: int, goes_on: bool, rounded: bool) -> str:
    sums = [(i, j) for i in range(ROWS) for j in range(columns)]
    number = {place: k for k, place in enumerate(sums)}
    first = {"a": "t" if "step" not in a else "a", "b": "t" if "step" not in b else "b"}
    begin = [f"%[{first['a']}]", "%[below]"]  # assembly operands with the addresses of rows 0 and 4 of A
    where = [f"({begin[i // 4]}{('', ',%[row]', ',%[row],2', ',%[row3]')[i % 4]})" for i in range(ROWS)]
    if goes_on:
        lines = [f"vmovups {128 * i + 64 * j}(%[sums]), %%zmm{k}" for (i, j), k in number.items()]
    else:
        lines = [f"vpxord %%zmm{k}, %%zmm{k}, %%zmm{k}" for k in number.values()]
    lines += ["1:"]
    for side in (side for side, at in first.items() if at == "t"):
        lines += ["movslq (%[offsets]), %[t]", f"add %[{side}], %[t]", "add $4, %[offsets]"]
    lines += [f"lea ({begin[0]},%[row],4), %[below]"]
    for pair in range(_PAIRS):
        at = pair * b.get("row", 0)
        lines += [f"vmovups {at + j * b['tile']}(%[{first['b']}]), %%zmm{16 + j}" for j in range(columns)]
        for i in range(ROWS):
            lines += [f"vbroadcastss {pair * a.get('pair', 4)}{where[i]}, %%zmm{18 + i}"]
            lines += [f"vdpbf16ps %%zmm{16 + j}, %%zmm{18 + i}, %%zmm{number[i, j]}" for j in range(columns)]
        lines += ["add %[line], %[t]"] if "row" not in b else []
    lines += [f"add ${side['step']}, %[{at}]" for at, side in (("a", a), ("b", b)) if "step" in side]
    lines += ["dec %[steps]", "jnz 1b"]
    if rounded:
        for i in range(ROWS):
            low = f"%%zmm{number[i, 0]}"
            lines += (
                [f"vcvtne2ps2bf16 {low}, %%zmm{number[i, 1]}, {low}", f"vmovups {low}, (%[sums])"]
                if columns == 2
                else [
                    f"vcvtneps2bf16 {low}, {low.replace('zmm', 'ymm')}",
                    f"vmovups {low.replace('zmm', 'ymm')}, (%[sums])",
                ]
            )
            lines += ["add %[pitch], %[sums]"]
    else:
        lines += [f"vmovups %%zmm{k}, {128 * i + 64 * j}(%[sums])" for (i, j), k in number.items()]
    given, _ = _parameters(a, b, rounded)
    listed = "t" in first.values()
    moved = ["a", "b", *["offsets"] * listed, "steps", *["sums"] * rounded]
    outputs = [f'[{each}] "+r"({each})' for each in moved]
    outputs += [f'[{each}] "=&r"({each})' for each in [*["t"] * listed, "below"]]
    row = f"{a['row']}L" if "row" in a else "line"
    inputs = [f'[row] "r"({row})', f'[row3] "r"(3 * {row})', *['[line] "r"(line)'] * ("row" not in b)]
    inputs += ['[pitch] "r"(pitch)'] if rounded else ['[sums] "r"(sums)']
    body = "\\n".join(lines)
    return f"""
__attribute__((noinline))
void {name}_rows({given}) {{
  long {"t, " * listed}below;
  __asm__ volatile("{body}"
                   : {", ".join(outputs)}
                   : {", ".join(inputs)}
                   : "memory");
}}"""
