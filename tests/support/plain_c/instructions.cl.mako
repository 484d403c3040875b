## What kernels call of ``plugins/nvidia/ptx.cl.mako`` in plain OpenCL C, for devices without tensor cores; its arguments
## are explained there. Of the group ``bulk`` nothing is here: kernels without the copy engine have another loop.
##
## One warp's lanes exchange what they hold through a scratch area of local memory, and tensor cores' sums are rounded
## toward zero, as theirs are; those of float8 keep 14 bits, as Hopper's do; those of integers are exact.
<%
integers, float8 = type in ("s8", "u8"), type in ("e4m3", "e5m2")
each = {"tf32": 1, "f16": 2, "bf16": 2}.get(type, 4)
result = "sum_of_14_bits(terms)" if float8 else "TOWARD_ZERO(sum)"

def begin(sum):
    return f"float terms[33]; terms[32] = {sum}" if float8 else f"WIDE sum = {sum}"
%>\
% if integers:
#define WIDE int
#define TOWARD_ZERO(v) (v)
#define SUM int
% else:
#define SUM float
#ifdef cl_khr_fp64
#define WIDE double
#define TOWARD_ZERO(v) convert_float_rtz(v)
#else
#define WIDE float
#define TOWARD_ZERO(v) (v)
#endif
% endif
#define LOCAL_BASE(memory) 0u
// A kernel has dozens of these calls: inlined, a compiler for CPUs took up to nine times as long over it.
#define CALLED __attribute__((noinline))
#define SCRATCH(items) local uint scratch[(items) / 32 * 192]

// --- numbers: of a register, and of B's where those are others
% if integers or float8 or type == "f16":
inline float cvt_f32_f16(ushort h) { return vload_half(0, (const half *)&h); }
inline ushort cvt_f16_f32(float v) {
  ushort h;
  vstore_half_rte(v, 0, (half *)&h);
  return h;
}
% endif
% if integers or float8:
inline float reciprocal(float v) { return 1.0f / v; }
% endif
% if integers:
inline WIDE value_of(uint u, int place) { return (${"uchar" if type == "u8" else "char"})(u >> 8 * place); }
inline WIDE value_of_b(uint u, int place) { return (char)(u >> 8 * place); }
inline float byte_over_2_23(uint word, int which) { return as_float(0x4b000000u | (word >> 8 * which & 255)); }
inline int round_plus(float v, int z) { return max((int)rint(clamp(v, -1e6f, 1e6f)) + z, 0); }
inline uint saturated_bytes(int a, int b, int c, int d) {
  const uint4 v = convert_uint4(clamp((int4)(a, b, c, d), 0, 255));
  return v.x | v.y << 8 | v.z << 16 | v.w << 24;
}
% elif float8:
#if OUT_BFLOAT16
inline uint cvt_bf16x2_f32(float v0, float v1) { return convert_bfloat16_as_ushort(v0) | (uint)convert_bfloat16_as_ushort(v1) << 16; }
#endif
inline float bounded(float v, float low, float high) { return v < low ? low : v > high ? high : v; }
% for name in ("e4m3", "e5m2"):
inline ushort cvt_${name}x2_f32(float v0, float v1) {
  return convert_float8_${name}_as_uchar(v0) | convert_float8_${name}_as_uchar(v1) << 8;
}
inline uint cvt_f16x2_${name}x2(ushort pair) {
  return cvt_f16_f32(convert_as_float8_${name}_float((uchar)pair)) | (uint)cvt_f16_f32(convert_as_float8_${name}_float((uchar)(pair >> 8))) << 16;
}
% endfor
inline float value_of(uint u, int place) { return convert_as_float8_${type}_float((uchar)(u >> 8 * place)); }
// The sum of a sum and 32 products, each cut off after 13 bits below the largest one's leading bit.
inline float sum_of_14_bits(const float *terms) {
  float largest = 0, plain = 0, sum = 0;
  for (int k = 0; k < 33; ++k) largest = fmax(largest, fabs(terms[k])), plain += terms[k];
  if (largest == 0 || !(fabs(plain) < INFINITY)) return plain;
  const float unit = ldexp(1.0f, ilogb(largest) - 13);
  for (int k = 0; k < 33; ++k) sum += trunc(terms[k] / unit);
  return sum * unit;
}
% elif type == "f16":
inline WIDE value_of(uint u, int upper) { return cvt_f32_f16((ushort)(upper ? u >> 16 : u)); }
% elif type == "bf16":
#include <convdispatch/bfloat16.cl>
inline uint cvt_bf16_f32(float v) { return convert_bfloat16_as_ushort(v); }
inline uint cvt_bf16x2_f32(float v0, float v1) { return cvt_bf16_f32(v0) | cvt_bf16_f32(v1) << 16; }
inline WIDE value_of(uint u, int upper) { return as_float(upper ? u & 0xffff0000u : u << 16); }
% else:
inline uint cvt_tf32_f32(float v) {
  const uint u = as_uint(v);
  return (u & 0x7f800000u) == 0x7f800000u ? (v != v ? 0x7fffffffu : u) : (u + 0x1000u) & 0xffffe000u;
}
inline WIDE value_of(uint u, int upper) { return as_float(u & 0xffffe000u); }
% endif
% if type in ("f16", "bf16"):
inline uint cvt_relu_${type}x2_f32(float v0, float v1) {
  v0 = v0 < 0 ? 0 : v0, v1 = v1 < 0 ? 0 : v1;
  return ${"cvt_bf16x2_f32(v0, v1)" if type == "bf16" else "cvt_f16_f32(v0) | (uint)cvt_f16_f32(v1) << 16"};
}
% endif
% if not integers:
#define value_of_b value_of
% endif
% if "copies" in groups:

// --- copies
% for size in (4, 8, 16):
CALLED void copy${size}(local uchar *memory, uint base, uint to, global const void *from, int exists) {
  // A device refuses addresses that are not aligned; here they give NaN, in numbers of any size.
  const int aligned = (ulong)from % ${size} == 0 && to % ${size} == 0;
  for (int i = 0; i < ${size // 4}; ++i)
    ((local uint *)(memory + to))[i] = !aligned ? 0xffffffffu : exists ? ((global const uint *)from)[i] : 0;
}
% endfor
#define prefetch_line(at)
#define copies_commit()
#define COPIES_WAIT(left)
% endif
% if "mma" in groups or "rows" in groups:

// --- a warp's matrices in registers
// What ldmatrix gives, from where its lanes point: each lane gathers its own two numbers a register.
CALLED void gather(uint *r, local uchar *memory, local uint *scratch, uint at, int transposed) {
  const int lane = get_local_id(0) % 32;
  local uint *rows = scratch + get_local_id(0) / 32 * 32;
  barrier(CLK_LOCAL_MEM_FENCE);
  rows[lane] = at;
  barrier(CLK_LOCAL_MEM_FENCE);
  for (int i = 0; i < 4; ++i) {
    const int r0 = lane / 4, c0 = lane % 4 * 2;
    const ushort low = transposed ? ((local ushort *)(memory + rows[i * 8 + c0]))[r0] : ((local ushort *)(memory + rows[i * 8 + r0]))[c0];
    const ushort high = transposed ? ((local ushort *)(memory + rows[i * 8 + c0 + 1]))[r0] : ((local ushort *)(memory + rows[i * 8 + r0]))[c0 + 1];
    r[i] = low | (uint)high << 16;
  }
}
#define LDMATRIX(r, at) gather(r, memory, scratch, at, 0)
#define LDMATRIX_TRANS(r, at) gather(r, memory, scratch, at, 1)
% endif
% if "mma" in groups:

// --- tensor cores of Ampere
CALLED void mma(SUM *c, local uint *scratch, const uint *a, const uint *b) {
  const int lane = get_local_id(0) % 32;
  local uint *mine = scratch + get_local_id(0) / 32 * 192;
  barrier(CLK_LOCAL_MEM_FENCE);
  for (int i = 0; i < 4; ++i) mine[lane * 6 + i] = a[i];
  for (int i = 0; i < 2; ++i) mine[lane * 6 + 4 + i] = b[i];
  barrier(CLK_LOCAL_MEM_FENCE);
  for (int i = 0; i < 4; ++i) {
    const int row = lane / 4 + (i & 2) * 4, column = lane % 4 * 2 + i % 2;
    ${begin("c[i]")};
    for (int k = 0; k < ${8 * each}; ++k) {
      const int place = k / ${each} % 4, half_k = k / ${4 * each};
      const uint of_a = mine[(row % 8 * 4 + place) * 6 + row / 8 + half_k * 2], of_b = mine[(column * 4 + place) * 6 + 4 + half_k];
      ${"terms[k] =" if float8 else "sum +="} value_of(of_a, k % ${each}) * value_of_b(of_b, k % ${each});
    }
    c[i] = ${result};
  }
}
#define MMA(c, a, b) mma(c, scratch, a, b)
% endif
% if wgmma:

// --- tensor cores of Hopper
#define VISIBLE_TO_WGMMA()
#define WGMMA_BEGIN()
#define WGMMA_COMMIT()
#define WGMMA_WAIT(left)
#define wgmma_finish(c)
inline ${{1: "uint", 2: "ushort", 4: "uchar"}[each]} element(local const uchar *memory, int row_bytes, uint at) {
  at ^= (at >> 7 & (row_bytes == 128 ? 7 : 3)) << 4;  // the swizzle
  return *(local const ${{1: "uint", 2: "ushort", 4: "uchar"}[each]} *)(memory + at);
}
// Where element (row or column x, k) of a matrix lies, with k along rows or, transposed, down them (numbers of two bytes).
inline uint matrix_at(int transposed, int row_bytes, uint at, uint lbo, uint sbo, int x, int k) {
  return transposed ? at + x / (row_bytes / 2) * lbo + x % (row_bytes / 2) * 2 + k % 8 * row_bytes + k / 8 * sbo : at + x / 8 * sbo + x % 8 * row_bytes + k * ${4 // each};
}
CALLED void wgmma(SUM *c, local const uchar *memory, uint a, uint b, uint lbo, uint sbo, uint b_lbo, uint b_sbo, int add) {
  const int lane = get_local_id(0) % 32, warp = get_local_id(0) / 32 % 4;
  for (int i = 0; i < ${wgmma.sums}; ++i) {
    const int row = warp * 16 + lane / 4 + (i & 2) * 4, column = i / 4 * 8 + lane % 4 * 2 + i % 2;
    ${begin("add ? c[i] : 0")};
    for (int k = 0; k < ${8 * each}; ++k)
      ${"terms[k] =" if float8 else "sum +="} value_of(element(memory, ${wgmma.rows[0]}, matrix_at(${int(wgmma.a_transposed)}, ${wgmma.rows[0]}, a, lbo, sbo, row, k)), 0) * value_of_b(element(memory, ${wgmma.rows[1]}, matrix_at(${int(wgmma.b_transposed)}, ${wgmma.rows[1]}, b, b_lbo, b_sbo, column, k)), 0);
    c[i] = ${result};
  }
}
#define WGMMA(c, a, b, add) wgmma(c, memory, a, b, LBO, SBO, B_LBO, B_SBO, add)
% if "rows" in groups:
CALLED void wgmma_rows(SUM *c, local const uchar *memory, local uint *scratch, const uint *a, uint b, uint b_lbo, uint b_sbo, int add) {
  const int lane = get_local_id(0) % 32;
  local uint *mine = scratch + get_local_id(0) / 32 * 192;
  barrier(CLK_LOCAL_MEM_FENCE);
  for (int i = 0; i < 4; ++i) mine[lane * 6 + i] = a[i];
  barrier(CLK_LOCAL_MEM_FENCE);
  for (int i = 0; i < ${wgmma.sums}; ++i) {
    const int row = lane / 4 + (i & 2) * 4, column = i / 4 * 8 + lane % 4 * 2 + i % 2;
    ${begin("add ? c[i] : 0")};
#pragma nounroll  // unrolled, a compiler for CPUs took two indices for one address
    for (int k = 0; k < ${8 * each}; ++k)
      ${"terms[k] =" if float8 else "sum +="} value_of(mine[(row % 8 * 4 + k / ${each} % 4) * 6 + row / 8 + k / ${4 * each} * 2], k % ${each}) * value_of_b(element(memory, ${wgmma.rows[1]}, matrix_at(${int(wgmma.b_transposed)}, ${wgmma.rows[1]}, b, b_lbo, b_sbo, column, k)), 0);
    c[i] = ${result};
  }
}
#define WGMMA_ROWS(c, a, b, add) wgmma_rows(c, memory, scratch, a, b, B_LBO, B_SBO, add)
% endif
% endif
% if "parts" in groups:

// --- between warps of a work group, and between work groups
#pragma OPENCL EXTENSION cl_khr_int64_base_atomics : enable
#define warps_meet(items) barrier(CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE)
inline ulong word_exchange(global ulong *word, ulong expected, ulong next) {
  mem_fence(CLK_GLOBAL_MEM_FENCE);
  const ulong old = atom_cmpxchg((volatile global ulong *)word, expected, next);
  mem_fence(CLK_GLOBAL_MEM_FENCE);
  return old;
}
inline ulong word_load(global ulong *word) { return word_exchange(word, 0, 0); }
inline float4 load_written(global const float4 *from) { return *from; }
% endif
