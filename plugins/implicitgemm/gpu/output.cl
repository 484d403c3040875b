// y = activation(sum + bias + residual) [+ y], for one element or four neighbours: what follows the sum.
//
// PARTIAL    1: sums go to the workspace as they are; what follows them is done when the parts are added
// PARTIAL_AT elements of the workspace before them
// LOAD4, STORE4  four neighbouring elements, at an address that is a multiple of four
// BIAS4      1: four neighbours are four channels; 0: four pixels of one
#define ACC4_(T) T##4
#define ACC4_OF(T) ACC4_(T)
#define ACC4 ACC4_OF(ACC)
#if ELEMENT == 0
#define LOAD4(p) (*(global const ACC4 *)(p))
#define STORE4(p, v) (*(global ACC4 *)(p) = (v))
#elif ELEMENT == 1
#define LOAD4(p) vload_half4(0, p)
#define STORE4(p, v) vstore_half4_rte(v, 0, p)
#else
#define LOAD4(p) as_float4(convert_uint4(vload4(0, p)) << 16)
inline void store_bfloat16s(global ushort *p, float4 v) {
  const uint4 u = as_uint4(v);
  const uint4 rounded = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16, quiet = (u >> 16) | 64u;
  vstore4(convert_ushort4(v != v ? quiet : rounded), 0, p);
}
#define STORE4(p, v) store_bfloat16s(p, v)
#endif
#if PARTIAL
#define OUT_PARAMS global ACC *out
#define OUT_ARGS out
inline void put(global ACC *out, ACC v, OUT_INDEX at, int row) { (out + PARTIAL_AT)[at] = v; }
inline void put4(global ACC *out, ACC4 v, OUT_INDEX at, int row) { *(global ACC4 *)(out + PARTIAL_AT + at) = v; }
#else
#if BIAS && RESIDUAL
#define OUT_PARAMS global REAL *out, global const REAL *bias, global const REAL *residual
#define OUT_ARGS out, bias, residual
#elif BIAS
#define OUT_PARAMS global REAL *out, global const REAL *bias
#define OUT_ARGS out, bias
#elif RESIDUAL
#define OUT_PARAMS global REAL *out, global const REAL *residual
#define OUT_ARGS out, residual
#else
#define OUT_PARAMS global REAL *out
#define OUT_ARGS out
#endif
inline void put(OUT_PARAMS, ACC v, OUT_INDEX at, int row) {
#if BIAS
  v += LOAD(bias, row);
#endif
#if RESIDUAL
  v += LOAD(residual, at);
#endif
  v = ACTIVATION(ACC, v);
#if ACCUMULATE
  v += LOAD(out, at);
#endif
  STORE(out, at, v);
}
inline void put4(OUT_PARAMS, ACC4 v, OUT_INDEX at, int row) {
#if BIAS && BIAS4
  v += LOAD4(bias + row);
#elif BIAS
  v += LOAD(bias, row);
#endif
#if RESIDUAL
  v += LOAD4(residual + at);
#endif
  v = ACTIVATION(ACC4, v);
#if ACCUMULATE
  v += LOAD4(out + at);
#endif
  STORE4(out + at, v);
}
#endif
