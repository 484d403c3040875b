## The instructions of ``product.cl.mako`` that OpenCL C has no name for, one small function each, and their plain C
## stand-ins.
##
## EMULATE  1: plain OpenCL C for devices without tensor cores (tests); one warp's lanes exchange what they hold through
##          a scratch area of local memory, and sums are rounded toward zero as tensor cores round them
## Local memory is named by byte offsets from the kernel's array.
<% halves = job.tile.depth == 16 %>\
#ifndef EMULATE
#define LOCAL_BASE(memory) ((uint)(ulong)(memory))
#define BARRIER() barrier(CLK_LOCAL_MEM_FENCE)

% for size in (4, 8, 16):
// ${size} bytes from global to local memory, without registers and without waiting; zeros where !exists.
inline void copy${size}(local uchar *memory, uint base, uint to, global const float *from, int exists) {
  asm volatile("cp.async.${"cg" if size == 16 else "ca"}.shared.global [%0], [%1], ${size}, %2;" ::"r"(base + to), "l"(from), "r"(exists ? ${size} : 0) : "memory");
}
% endfor
inline void copies_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
#define COPIES_WAIT(left) asm volatile("cp.async.wait_group " #left ";" ::: "memory")

// The nearest TF32 number: 11 significant bits, as a float32 whose lower 13 bits are 0.
inline uint rounded(float v) {
  uint u;
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(u) : "f"(v));
  return u;
}
// The nearest bfloat16 numbers, v0's in the lower half.
inline uint rounded2(float v0, float v1) {
  uint u;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(u) : "f"(v1), "f"(v0));
  return u;
}
% if halves:
// c (16x8, float32) += a (16x16) b (16x8), bfloat16, two a register.
% else:
// c (16x8, float32) += a (16x8) b (8x8), TF32: the lower 13 bits of a register count for nothing.
% endif
inline void mma(float *c, const uint *a, const uint *b) {
  asm volatile("mma.sync.aligned.${"m16n8k16.row.col.f32.bf16.bf16.f32" if halves else "m16n8k8.row.col.f32.tf32.tf32.f32"} {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
               : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
#define MMA(c, a, b) mma(c, a, b)
#else
#define LOCAL_BASE(memory) 0u
#define BARRIER() barrier(CLK_LOCAL_MEM_FENCE)
#define copies_commit()
#define COPIES_WAIT(left)
% for size in (4, 8, 16):
inline void copy${size}(local uchar *memory, uint base, uint to, global const float *from, int exists) {
  // A device refuses addresses that are not aligned.
  for (int i = 0; i < ${size // 4}; ++i)
    ((local float *)(memory + to))[i] = (ulong)from % ${size} || to % ${size} ? NAN : exists ? from[i] : 0;
}
% endfor
inline uint rounded(float v) {
  const uint u = as_uint(v);
  return (u & 0x7f800000u) == 0x7f800000u ? (v != v ? 0x7fffffffu : u) : (u + 0x1000u) & 0xffffe000u;
}
inline uint rounded1(float v) {
  const uint u = as_uint(v);
  return v != v ? u >> 16 | 64u : (u + 0x7fffu + (u >> 16 & 1u)) >> 16;
}
inline uint rounded2(float v0, float v1) { return rounded1(v0) | rounded1(v1) << 16; }
// A register of a lane: what lanes hold is exchanged through local memory, six registers a lane.
inline WIDE held(local const uint *scratch, int lane, int i, int upper) {
% if halves:
  return as_float(upper ? scratch[lane * 6 + i] & 0xffff0000u : scratch[lane * 6 + i] << 16);
% else:
  return as_float(scratch[lane * 6 + i] & 0xffffe000u);
% endif
}
inline void mma_emulated(float *c, local uint *scratch, const uint *a, const uint *b) {
  const int lane = get_local_id(0) % 32;
  local uint *mine = scratch + get_local_id(0) / 32 * 192;
  BARRIER();
  for (int i = 0; i < 4; ++i) mine[lane * 6 + i] = a[i];
  for (int i = 0; i < 2; ++i) mine[lane * 6 + 4 + i] = b[i];
  BARRIER();
  for (int i = 0; i < 4; ++i) {
    const int row = lane / 4 + (i & 2) * 4, column = lane % 4 * 2 + i % 2;
    WIDE sum = c[i];
% if halves:
    for (int k = 0; k < 16; ++k)
      sum += held(mine, row % 8 * 4 + k % 8 / 2, row / 8 + k / 8 * 2, k % 2) * held(mine, column * 4 + k % 8 / 2, 4 + k / 8, k % 2);
% else:
    for (int k = 0; k < 8; ++k)
      sum += held(mine, row % 8 * 4 + k % 4, row / 8 + k / 4 * 2, 0) * held(mine, column * 4 + k % 4, 4 + k / 4, 0);
% endif
    c[i] = TOWARD_ZERO(sum);
  }
}
#define MMA(c, a, b) mma_emulated(c, scratch, a, b)
#endif
// v = high + low as tensor cores read the two: 11 bits, and 11 more with a sign of their own. An infinity's low is NaN.
inline void split(float v, uint *high, uint *low) {
  *high = rounded(v);
  *low = as_uint(v - as_float(*high));
}
// The same of two values in bfloat16, 8 bits and 8 more.
inline void split2(float v0, float v1, uint *high, uint *low) {
  *high = rounded2(v0, v1);
  *low = rounded2(v0 - as_float(*high << 16), v1 - as_float(*high & 0xffff0000u));
}
