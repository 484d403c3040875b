"""The processor's instructions for bytes as OpenCL text: inline assembly, which Intel's compiler takes with pointers.

A function is nothing but its assembly: the compiler is told of memory alone and knows neither tiles nor the vectors'
names, so nothing of its own may live there. A product sums over taps, each of which begins where ``offsets`` says, and
in each over ``steps`` of bytes that follow each other.
"""

from __future__ import annotations

__all__ = ["CONFIGURE", "tile_product", "vector_product"]

CONFIGURE = """
// Eight tiles of 16 rows of 64 bytes; the first four hold sums.
constant ulong TILES[8] = {1, 0, 0x0040004000400040ul, 0x0040004000400040ul, 0, 0, 0x1010101010101010ul, 0};
#define TILES_BEGIN() __asm__ volatile("ldtilecfg (%0)" ::"r"(TILES) : "memory")
#define TILES_END() __asm__ volatile("tilerelease" ::: "memory")
"""


def tile_product(name: str, tiles: tuple[int, int], row: int, steps: int, signed: bool) -> str:
    """OpenCL function ``name(a, b, offsets, taps, sums)`` by matrix registers: ``sums[32][32] = A B``.

    ``tiles`` of 16 positions and of 16 channels, one or two of each; a step is 64 bytes. Positions of A lie ``row``
    bytes apart, B is ``[step][16][32][4]``.
    """
    rows, columns = tiles
    sums = [(i, j) for i in range(rows) for j in range(columns)]
    inner = [f"tileloadd {16 * row * i}(%[t],%[row],1), %%tmm{4 + i}" for i in range(rows)]
    inner += [f"tileloadd {64 * j}(%[b],%[pitch],1), %%tmm{6 + j}" for j in range(columns)]
    word = "tdpbssd" if signed else "tdpbusd"
    inner += [f"{word} %%tmm{6 + j}, %%tmm{4 + i}, %%tmm{2 * i + j}" for i, j in sums]
    begin = [f"tilezero %%tmm{2 * i + j}" for i, j in sums]
    end = [f"tilestored %%tmm{2 * i + j}, {2048 * i + 64 * j}(%[sums],%[pitch],1)" for i, j in sums]
    return _function(name, begin, inner, end, steps, (64, 2048), f', [row] "r"({row}L), [pitch] "r"(128L)')


def vector_product(name: str, positions: int, row: int, steps: int) -> str:
    """The same by vectors (AVX512-VNNI): ``sums[positions][32] = A B``, 14 positions at most; a step is 4 bytes.

    A is unsigned; B is ``[step][32][4]``.
    """
    begin = [f"vpxord %%zmm{i}, %%zmm{i}, %%zmm{i}" for i in range(2 * positions)]
    inner = ["vmovdqu32 (%[b]), %%zmm28", "vmovdqu32 64(%[b]), %%zmm29"]
    for i in range(positions):
        inner.append(f"vpbroadcastd {row * i}(%[t]), %%zmm{30 + i % 2}")
        inner += [f"vpdpbusd %%zmm{28 + j}, %%zmm{30 + i % 2}, %%zmm{2 * i + j}" for j in range(2)]
    end = [f"vmovdqu32 %%zmm{2 * i + j}, {128 * i + 64 * j}(%[sums])" for i in range(positions) for j in range(2)]
    return _function(name, begin, inner, end, steps, (4, 128), "")


def _function(
    name: str, begin: list[str], inner: list[str], end: list[str], steps: int, moves: tuple[int, int], inputs: str
) -> str:
    lines = [*begin, "1:", "movslq (%[offsets]), %[t]", "add %[a], %[t]", "add $4, %[offsets]", f"mov ${steps}, %[k]"]
    lines += ["2:", *inner, f"add ${moves[0]}, %[t]", f"add ${moves[1]}, %[b]", "dec %[k]", "jnz 2b"]
    body = "\\n".join([*lines, "dec %[taps]", "jnz 1b", *end])
    return f"""
__attribute__((noinline))
void {name}(global const uchar *a, global const uchar *b, constant int *offsets, long taps, global int *sums) {{
  long t, k;
  __asm__ volatile("{body}"
                   : [b] "+r"(b), [offsets] "+r"(offsets), [taps] "+r"(taps), [t] "=&r"(t), [k] "=&r"(k)
                   : [a] "r"(a), [sums] "r"(sums){inputs}
                   : "memory");
}}
"""
