// Elements as sums of PLANES bfloat16 (1, 2 or 3), each the nearest to what those before it leave.
//
// split(v, p)  p[0], p[1], ...: the planes of sixteen numbers. What is finite stays so; an infinity or a NaN is plane 0 alone.
#include <convdispatch/lanes.cl>
typedef ushort16 __attribute__((aligned(2))) upper16;
typedef uint16 __attribute__((aligned(4))) pairs16;
inline uint16 nearest(float16 v) {
  const uint16 u = as_uint16(v), m = u & 0x7fffffffu;
  return select(u + 0x7fffu + ((u >> 16) & 1u), u | 0x400000u, m >= 0x7f7f8000u && m != 0x7f800000u) & 0xffff0000u;
}
// The planes as the upper halves of words.
inline void split(float16 v, uint16 *p) {
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
// The first n of sixteen elements; the others 0.
inline float16 first_of(global const REAL *p, int n) {
  if (n >= 16) return LOADV(p);
  union { float16 v; float s[16]; } u;
  u.v = 0;
  ONCE for (int i = 0; i < n; ++i) u.s[i] = LOAD(p, i);
  return u.v;
}
