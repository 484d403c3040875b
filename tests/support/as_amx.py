"""Matrix registers in plain C: the inline assembly of a kernel's text becomes calls, for processors without.

Each instruction becomes the call that Intel's manual (volume 2, ``TDPBF16PS`` and its neighbours) writes as a loop,
over the same memory. Registers begin as NaN, and an instruction that stands here nowhere is an error: what is tested is
the text that matrix registers get.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import processors
import pytest
from as_gpu import hurried
from convdispatch_amx import convolve, weights
from convdispatch_int8 import tiles

from convdispatch.api import ConvProblem
from convdispatch.device import runtime
from convdispatch.device.programs import kernels
from convdispatch.selection.plugins.loader import plugins


def native(device: Any, solver: str = "amx.tiles") -> str | None:
    """Why a device does not run a solver's kernels as they are, or None."""
    if processors.absent:
        return processors.DESCRIBED
    return plugins().solvers[solver].rejects(ConvProblem.parse("bf16_mb1ic16ih8oc16kh3"), runtime.device_info(device))


@contextmanager
def plain_c(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Kernels in plain C, compiled in a hurry; no program from before is used, nor one of these later."""
    compiled = kernels._compile

    def compile_plain(context, text, options):
        return compiled(context, translated(text), hurried(context, options))

    monkeypatch.setattr(kernels, "_compile", compile_plain)
    for module in (convolve, weights, tiles):
        monkeypatch.setattr(module, "require", lambda *given, **named: None)
    kernels._programs.drop()
    yield
    kernels._programs.drop()


TILES = r"""
typedef uint16 __attribute__((aligned(1))) tile_row;
inline uint16 flushed(uint16 v) { return select(v & 0x80000000u, v, (v & 0x7f800000u) != 0); }
void tile_fill(uint16 *t, uint v) { for (int m = 0; m < 16; ++m) t[m] = v; }
void tile_load(uint16 *t, ulong at, ulong pitch) {
  for (int m = 0; m < 16; ++m) t[m] = *(global const tile_row *)(at + m * pitch);
}
void tile_store(const uint16 *t, ulong at, ulong pitch) {
  for (int m = 0; m < 16; ++m) *(global tile_row *)(at + m * pitch) = t[m];
}
// Subnormal numbers count as zero, and each product is added by one rounding.
#define TILE_ADD(sum, a, b) sum = as_float16(flushed(as_uint16(fma(as_float16((uint16)(a)), as_float16(b), sum))))
void tile_product(uint16 *c, const uint16 *a, const uint16 *b) {
  uint16 even[16], odd[16];
  for (int k = 0; k < 16; ++k) even[k] = flushed(b[k] << 16), odd[k] = flushed(b[k] & 0xffff0000u);
  for (int m = 0; m < 16; ++m) {
    union { uint16 v[2]; uint s[2][16]; } u;
    u.v[0] = flushed(a[m] << 16), u.v[1] = flushed(a[m] & 0xffff0000u);
    float16 sums[2] = {0, 0};
    for (int k = 0; k < 16; ++k) {
      TILE_ADD(sums[0], u.s[0][k], even[k]);
      TILE_ADD(sums[1], u.s[1][k], odd[k]);
    }
    const float16 both = as_float16(flushed(as_uint16(sums[0] + sums[1])));
    c[m] = flushed(as_uint16(as_float16(flushed(c[m])) + both));
  }
}

// Whole products of bytes, four a word, of which the first factor's and the second's are signed or not.
void tile_bytes(uint16 *c, const uint16 *a, const uint16 *b, const bool a_signed, const bool b_signed) {
  for (int m = 0; m < 16; ++m) {
    union { uint16 v; uint s[16]; } u;
    u.v = a[m];
    int16 sum = as_int16(c[m]);
    for (int k = 0; k < 16; ++k)
      for (int byte = 0; byte < 32; byte += 8) {
        const int first = a_signed ? (int)(char)(u.s[k] >> byte) : (int)(u.s[k] >> byte & 255u);
        const uint16 second = b[k] >> (uint16)(byte) & 255u;
        sum += first * (b_signed ? as_int16(second ^ 128u) - 128 : as_int16(second));
      }
    c[m] = as_uint16(sum);
  }
}

// Vectors, as sixteen words, and bytes of them where a mask says so.
void bytes_load(uint16 *z, ulong at, uint mask, const bool is_signed) {
  union { uint16 v; uint s[16]; } u;
  for (int i = 0; i < 16; ++i)
    if (!(mask >> i & 1)) u.s[i] = 0;
    else u.s[i] = is_signed ? (uint)(int)((global const char *)at)[i] : ((global const uchar *)at)[i];
  *z = u.v;
}
void bytes_store(uint16 z, ulong at, uint mask) {
  union { uint16 v; uint s[16]; } u;
  u.v = z;
  for (int i = 0; i < 16; ++i)
    if (mask >> i & 1) ((global uchar *)at)[i] = (uchar)u.s[i];
}
inline uint16 whole_where(uint16 v, uint16 old, uint mask) {
  const uint16 bits = ((uint16)(mask) >> (uint16)(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15)) & 1u;
  return select(old, as_uint16(rint(as_float16(v))), bits != 0u);
}
typedef uint8 __attribute__((aligned(1))) half_row;
typedef uint __attribute__((aligned(1))) one_word;
inline uint16 row_at(ulong at) { return *(global const tile_row *)at; }
// Of each pair the odd product is added first.
void vector_pairs(uint16 *c, uint16 a, uint16 b) {
  float16 sum = as_float16(flushed(*c));
  TILE_ADD(sum, flushed(a & 0xffff0000u), flushed(b & 0xffff0000u));
  TILE_ADD(sum, flushed(a << 16), flushed(b << 16));
  *c = as_uint16(sum);
}
inline ushort16 rounded_words(uint16 v) {
  const uint16 u = flushed(v), m = u & 0x7fffffffu;
  return convert_ushort16(select(u + 0x7fffu + ((u >> 16) & 1u), u | 0x400000u, m > 0x7f800000u) >> 16);
}
"""
_NAME, _TILE = r"%\[(\w+)\]", r"%%tmm(\d)"
_VECTOR = r"%%[yz]mm(\d+)"
_AT = r"@\{([^}]*)\}"
_MASK, _KEPT = r"%\{%%k(\d)%\}", r"%\{%%k(\d)%\}%\{z%\}"
_WHERE = rf"(-?\d+)?\({_NAME},{_NAME},1\)"
_FLOATS = [rf"as_float16(zmm[\{place}])" for place in (1, 2, 3)]
MEANINGS = [
    (r"ldtilecfg \(%0\)|tilerelease", ""),
    (rf"tilezero {_TILE}", r"tile_fill(tmm[\1], 0);"),
    (rf"tileloadd {_WHERE}, {_TILE}", r"tile_load(tmm[\4], \2_ + (\1), \3_);"),
    (rf"tilestored {_TILE}, {_WHERE}", r"tile_store(tmm[\1], \3_ + (\2), \4_);"),
    (rf"tdpbf16ps {_TILE}, {_TILE}, {_TILE}", r"tile_product(tmm[\3], tmm[\2], tmm[\1]);"),
    (rf"vpxord {_VECTOR}, {_VECTOR}, {_VECTOR}", r"zmm[\3] = zmm[\1] ^ zmm[\2];"),
    (rf"vmovups {_AT}, %%zmm(\d+)", r"zmm[\2] = row_at(\1);"),
    (rf"vmovups %%zmm(\d+), {_AT}", r"*(global tile_row *)(\2) = zmm[\1];"),
    (rf"vmovups %%ymm(\d+), {_AT}", r"*(global half_row *)(\2) = zmm[\1].lo;"),
    (rf"vbroadcastss {_AT}, %%zmm(\d+)", r"zmm[\2] = *(global const one_word *)(\1);"),
    (rf"vdpbf16ps {_VECTOR}, {_VECTOR}, {_VECTOR}", r"vector_pairs(zmm + \3, zmm[\2], zmm[\1]);"),
    (rf"vcvtneps2bf16 {_VECTOR}, {_VECTOR}", r"zmm[\2].lo = as_uint8(rounded_words(zmm[\1]));"),
    (
        rf"vcvtne2ps2bf16 {_VECTOR}, {_VECTOR}, {_VECTOR}",
        r"zmm[\3] = (uint16)(as_uint8(rounded_words(zmm[\1])), as_uint8(rounded_words(zmm[\2])));",
    ),
    (rf"lea {_AT}, {_NAME}", r"\2_ = \1;"),
    (rf"movslq \({_NAME}\), {_NAME}", r"\2_ = *(global const int *)\1_;"),
    (rf"mov {_NAME}, {_NAME}", r"\2_ = \1_;"),
    (rf"add \$(-?\d+), {_NAME}", r"\2_ += \1;"),
    (rf"add {_NAME}, {_NAME}", r"\2_ += \1_;"),
    (rf"dec {_NAME}", r"zero_ = --\1_ == 0;"),
    (r"[12]:", "do {"),
    (r"jnz [12]b", "} while (!zero_);"),
    # int8's
    (
        rf"tdpb([su])([su])d {_TILE}, {_TILE}, {_TILE}",
        r"tile_bytes(tmm[\5], tmm[\4], tmm[\3], '\1' == 's', '\2' == 's');",
    ),
    (rf"mov \$(-?\d+), {_NAME}", r"\2_ = \1;"),
    (rf"mov \({_NAME}\), {_NAME}", r"\2_ = *(global const ulong *)\1_;"),
    (rf"test {_NAME}, {_NAME}", r"NEGATIVE = (long)\1_ < 0;"),
    (r"js 3f", "if (!NEGATIVE) {"),
    (r"3:", "}"),
    (rf"kmovw {_AT}, %%k(\d)", r"MASKS[\2] = *(global const one_word *)(\1) & 0xffffu;"),
    (rf"vmovdqu32 {_AT}, %%zmm(\d+)", r"zmm[\2] = row_at(\1);"),
    (rf"vpmov([sz])xbd {_AT}, {_VECTOR} {_KEPT}", r"bytes_load(zmm + \3, \2, MASKS[\4], '\1' == 's');"),
    (rf"vpmovdb {_VECTOR}, {_AT} {_MASK}", r"bytes_store(zmm[\1], \2, MASKS[\3]);"),
    (rf"vrndscaleps \$8, {_VECTOR}, {_VECTOR} {_MASK}", r"zmm[\2] = whole_where(zmm[\1], zmm[\2], MASKS[\3]);"),
    (rf"vpaddd {_VECTOR}, {_VECTOR}, {_VECTOR}", r"zmm[\3] = zmm[\2] + zmm[\1];"),
    (rf"vcvtdq2ps {_VECTOR}, {_VECTOR}", r"zmm[\2] = as_uint16(convert_float16(as_int16(zmm[\1])));"),
    (rf"vcvtps2dq {_VECTOR}, {_VECTOR}", r"zmm[\2] = as_uint16(convert_int16_rte(as_float16(zmm[\1])));"),
    *((rf"v{word}ps {_VECTOR}, {_VECTOR}, {_VECTOR}", rf"zmm[\3] = as_uint16({text});") for word, text in {
        "mul": rf"{_FLOATS[1]} * {_FLOATS[0]}", "add": rf"{_FLOATS[1]} + {_FLOATS[0]}",
        "sub": rf"{_FLOATS[1]} - {_FLOATS[0]}", "max": rf"fmax({_FLOATS[1]}, {_FLOATS[0]})",
        "min": rf"fmin({_FLOATS[1]}, {_FLOATS[0]})",
        "fnmadd231": rf"fma(-{_FLOATS[1]}, {_FLOATS[0]}, {_FLOATS[2]})",
        "fmadd213": rf"fma({_FLOATS[2]}, {_FLOATS[1]}, {_FLOATS[0]})",
    }.items()),
]  # fmt: skip
"""Instructions, and what stands for them; ``NAME_`` is the 64-bit register of an operand."""


def _sum(found: re.Match[str]) -> str:
    offset, base, index, scale = found.groups()
    return f"@{{{base}_{f' + {index}_ * {scale or 1}' if index else ''} + ({offset or 0})}}"


@functools.cache
def _meaning(line: str) -> str:
    """A line of C; kernels are unrolled, so that few lines make up all of a test's thousands."""
    placed = re.sub(rf"(-?\d+)?\({_NAME}(?:,{_NAME})?(?:,(\d))?\)", _sum, line)
    for pattern, meaning in MEANINGS:
        found = re.fullmatch(pattern, line) or re.fullmatch(pattern, placed)
        if found:
            return found.expand(meaning).replace(" + ()", "")
    raise AssertionError(f"as_amx.py does not know the instruction {line!r}")


def _block(found: re.Match[str]) -> str:
    lines = [_meaning(line) for line in re.sub(r'"\s*"', "", found[1]).strip().strip('"').split("\\n")]
    if not any(lines):
        return "do {} while (0)"
    outputs, inputs = (re.findall(r'\[(\w+)\] "([=+&r]+)"\(([^()]*)\)', each) for each in (found[2], found[3]))
    text = "uint16 zmm[32]; for (int i = 0; i < 32; ++i) zmm[i] = 0xffffffffu;\n" * ("zmm" in found[1])
    text += "uint16 tmm[8][16]; for (int i = 0; i < 8; ++i) tile_fill(tmm[i], 0xffffffffu);\n" * ("tmm" in found[1])
    text += "bool zero_ = false, NEGATIVE = false;\nuint MASKS[8] = {0};\n"
    text += "".join(f"ulong {name}_ = (ulong)({value});\n" for name, how, value in outputs + inputs if how[0] != "=")
    text += "".join(f"ulong {name}_;\n" for name, how, _ in outputs if how[0] == "=")
    text += "\n".join(lines) + "\n"
    return "{" + text + "".join(f"*(ulong *)&{value} = {name}_;\n" for name, _, value in outputs) + "}"


def translated(text: str) -> str:
    """Kernel text without inline assembly."""
    strings = r'((?:"[^"]*"\s*)+)'
    plain, count = re.subn(
        rf"__asm__ volatile\({strings}:([^:]*):([^:]*):[^:;]*?\)(?=;|$)", _block, text, flags=re.MULTILINE
    )
    assert count == text.count("__asm__"), "inline assembly in another form than as_amx.py knows"
    return TILES + plain + "\n" if count else text
