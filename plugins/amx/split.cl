// Splits elements into PLANES (1, 2 or 3) bfloat16 numbers, each the nearest to the remainder of the previous ones.
//
// SCALED  1: numbers are multiplied by a power of two before they are split, exactly, and the largest is noted: the
//         instructions take subnormal numbers for 0, and lower planes and products are subnormal first
//
// split(v, p)  p[0], p[1], ...: the planes of sixteen numbers. What is finite stays so; an infinity or a NaN is plane 0 alone.
// SCALE_IN SCALE  what brings the power of two to a function
#include <convdispatch/lanes.cl>
typedef ushort16 __attribute__((aligned(2))) upper16;
typedef uint16 __attribute__((aligned(4))) pairs16;
inline uint16 nearest(float16 v) {
  const uint16 u = as_uint16(v), m = u & 0x7fffffffu;
  return select(u + 0x7fffu + ((u >> 16) & 1u), u | 0x400000u, m >= 0x7f7f8000u && m != 0x7f800000u) & 0xffff0000u;
}
#if SCALED
typedef struct {
  float16 by;
  uint16 most;  // bits of the largest finite magnitude before it was multiplied
} Scale;
#define SCALE_IN Scale *scale,
#define SCALE scale,
// 2^k for k of -126 to 126, and k for which 2^k is nearest below a number's bits; NONE for those of 0
#define NONE (-1000)
// Exponents of weights that are near enough to 0; ints of a note (pack.cl)
#define FAR_ 60
#define NOTE_ 34
#define POWER(k) as_float(((k) + 127) << 23)
inline int exponent_of(uint m) { return m >= 0x800000u ? (int)(m >> 23) - 127 : m ? -118 - (int)clz(m) : NONE; }
inline int exponent_of_most(const Scale *scale) {
  const uint8 a = max(scale->most.lo, scale->most.hi);
  const uint4 b = max(a.lo, a.hi);
  const uint2 c = max(b.lo, b.hi);
  return exponent_of(max(c.s0, c.s1));
}
#else
#define SCALE_IN
#define SCALE
#endif
// Each plane is the upper half of a 32-bit word.
inline void split(SCALE_IN float16 v, uint16 *p) {
#if SCALED
  const uint16 m = as_uint16(v) & 0x7fffffffu;
  scale->most = max(scale->most, select((uint16)(0), m, m < 0x7f800000u));
  v *= scale->by;
#endif
#if BFLOAT16
  p[0] = as_uint16(v);
#else
  p[0] = nearest(v);
#endif
#if PLANES > 1
  // What is left is finite and far from the largest number; of two that are equally near, the one further from 0.
  const int16 whole = (as_uint16(v) & 0x7fffffffu) < 0x7f800000u;
  v = select((float16)(0), v - as_float16(p[0]), whole);
  p[1] = (as_uint16(v) + 0x8000u) & 0xffff0000u;
#endif
#if PLANES > 2
  p[2] = as_uint16(v - as_float16(p[1]));  // eight bits, or the first of them
#endif
}
// Loads the first n of sixteen elements; the others are 0.
inline float16 first_of(global const REAL *p, int n) {
  if (n >= 16) return LOADV(p);
  union { float16 v; float s[16]; } u;
  u.v = 0;
  ONCE for (int i = 0; i < n; ++i) u.s[i] = LOAD(p, i);
  return u.v;
}
