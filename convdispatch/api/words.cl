// Reads and writes vectors of neighbouring stored numbers at once; addresses are multiples of the vectors' size.
//
// VECTOR     numbers of a vector: 1, 2, 4 or 8
// Raw        the type of a vector in memory; RAW(p) reads it, RAW_NONE is zeros
// Part       4 sums or fewer; PARTS of them are a vector. PART(raw, i) converts to one, WRITE(p, parts...) rounds them
#include <convdispatch/vectors.cl>
#if VECTOR >= 4
#define Part ACC4
#define PARTS (VECTOR / 4)
#elif VECTOR == 2
#define Part ACC2
#define PARTS 1
#else
#define Part ACC
#define PARTS 1
#endif
#if VECTOR == 1
#define Raw ACC
#define RAW(p) LOAD(p, 0)
#define RAW_NONE 0
#define PART(raw, i) (raw)
#define WRITE(p, a) STORE(p, 0, a)
#elif FLOAT16 || BFLOAT16
#if FLOAT16 && defined(cl_nv_pragma_unroll)
// Halves are read as integers, because NVIDIA's compiler may read the halves of a vector one by one.
inline float widen1(ushort h) {
  float v;
  asm("cvt.f32.f16 %0, %1;" : "=f"(v) : "h"(h));
  return v;
}
inline uint narrow2(float2 v) {
  uint u;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(u) : "f"(v.y), "f"(v.x));
  return u;
}
inline float2 widen2(uint u) { return (float2)(widen1((ushort)(u & 0xffffu)), widen1((ushort)(u >> 16))); }
#elif FLOAT16
inline float2 widen2(uint u) { return vload_half2(0, (const half *)&u); }
inline uint narrow2(float2 v) {
  uint u;
  vstore_half2_rte(v, 0, (half *)&u);
  return u;
}
#else
inline float2 widen2(uint u) { return (float2)(as_float(u << 16), as_float(u & 0xffff0000u)); }
inline uint narrow1(float v) {
  const uint u = as_uint(v);
  return v != v ? (u >> 16) | 64u : (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
}
inline uint narrow2(float2 v) { return narrow1(v.x) | narrow1(v.y) << 16; }
#endif
inline float4 widen4(uint2 u) { return (float4)(widen2(u.x), widen2(u.y)); }
inline uint2 narrow4(float4 v) { return (uint2)(narrow2(v.lo), narrow2(v.hi)); }
#if VECTOR == 2
#define Raw uint
#define RAW_NONE 0u
#define PART(raw, i) widen2(raw)
#define WRITE(p, a) (*(global uint *)(p) = narrow2(a))
#elif VECTOR == 4
#define Raw uint2
#define RAW_NONE ((uint2)(0u))
#define PART(raw, i) widen4(raw)
#define WRITE(p, a) (*(global uint2 *)(p) = narrow4(a))
#else
#define Raw uint4
#define RAW_NONE ((uint4)(0u))
#define PART(raw, i) ((i) == 0 ? widen4((raw).lo) : widen4((raw).hi))
#define WRITE(p, a, b) (*(global uint4 *)(p) = (uint4)(narrow4(a), narrow4(b)))
#endif
#define RAW(p) (*(global const Raw *)(p))
#elif VECTOR == 8
#define Raw ACC_OF(ACC, 8)
#define RAW_NONE ((Raw)(0))
#define RAW(p) ((Raw)(((global const ACC4 *)(p))[0], ((global const ACC4 *)(p))[1]))
#define PART(raw, i) ((i) == 0 ? (raw).lo : (raw).hi)
#define WRITE(p, a, b) (((global ACC4 *)(p))[0] = (a), ((global ACC4 *)(p))[1] = (b))
#else
#define Raw Part
#define RAW_NONE ((Raw)(0))
#define RAW(p) (*(global const Raw *)(p))
#define PART(raw, i) (raw)
#define WRITE(p, a) (*(global Raw *)(p) = (a))
#endif
