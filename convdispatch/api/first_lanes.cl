// Stores the first n lanes of vectors, with the epilogue, to out[at], out[at + 1], ...; b is their bias.
#ifndef PUT_PART_
#include <convdispatch/output_lanes.cl>
typedef WITH_LANES(ACC, 2, ) __attribute__((aligned(sizeof(ACC)))) first2;
typedef WITH_LANES(ACC, 4, ) __attribute__((aligned(sizeof(ACC)))) first4;
typedef WITH_LANES(ACC, 8, ) __attribute__((aligned(sizeof(ACC)))) first8;
#define PUT_PART_(size) \
  if (n & size) { \
    *(global first##size *)(out + at + from) = *(first##size *)(u.s + from); \
    from += size; \
  }
// Stores the first n of a vector's LANES lanes.
inline void put_first(OUT_PARAMS, long at, V v, int n, ACC b) {
  union { V v; ACC s[LANES]; } u;
#if FLOAT32 || FLOAT64
  if (n >= LANES) {
    put_vector(OUT_ARGS, at, v, b);
    return;
  }
#if !RESIDUAL && !ACCUMULATE
  EPILOGUE(V, v, b, 0, 0)
  u.v = v;
  int from = 0;
#if LANES > 8
  PUT_PART_(8)
#endif
#if LANES > 4
  PUT_PART_(4)
#endif
  PUT_PART_(2)
  if (n & 1) out[at + from] = u.s[from];
  return;
#endif
#endif
  u.v = v;
  ONCE for (int j = 0; j < n; ++j) put_one(OUT_ARGS, at + j, u.s[j], b);
}
// Stores the first n of 2 LANES elements, which alternate between the lanes of two vectors.
inline void put_pairs(OUT_PARAMS, long at, V even, V odd, int n, ACC b) {
  V low, high;
  low.even = even.lo, low.odd = odd.lo;
  high.even = even.hi, high.odd = odd.hi;
  put_first(OUT_ARGS, at, low, min(n, LANES), b);
  if (n > LANES) put_first(OUT_ARGS, at + LANES, high, n - LANES, b);
}
#endif
