// What follows the sum: out = activation(sum + bias + residual) [+ out], for one element or two neighbours.
//
// PARTIAL    1: sums go to the workspace as they are, and ``reduce`` does what follows
// PARTIAL_AT elements of the workspace before them
// PAIRS      1: two neighbouring columns are neighbouring channels in memory (channels last)
// OCTETS     1: so are eight, and they begin at a multiple of eight
#if PARTIAL
#define OUT_PARAMS global float *out
#define OUT_ARGS out
inline void put(global float *out, float v, OUT_INDEX at, int row) { (out + PARTIAL_AT)[at] = v; }
inline void put2(global float *out, float v0, float v1, OUT_INDEX at, int row) {
  *(global float2 *)(out + PARTIAL_AT + at) = (float2)(v0, v1);
}
#if OCTETS
inline void put8(global float *out, const float *v, OUT_INDEX at, int row) {
  global float4 *to = (global float4 *)(out + PARTIAL_AT + at);
  to[0] = (float4)(v[0], v[1], v[2], v[3]);
  to[1] = (float4)(v[4], v[5], v[6], v[7]);
}
#endif
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
inline float finished(OUT_PARAMS, float v, OUT_INDEX at, int row) {
#if BIAS
  v += LOAD(bias, row);
#endif
#if RESIDUAL
  v += LOAD(residual, at);
#endif
  v = ACTIVATION(float, v);
#if ACCUMULATE
  v += LOAD(out, at);
#endif
  return v;
}
inline void put(OUT_PARAMS, float v, OUT_INDEX at, int row) { STORE(out, at, finished(OUT_ARGS, v, at, row)); }
inline void put2(OUT_PARAMS, float v0, float v1, OUT_INDEX at, int row) {
  v0 = finished(OUT_ARGS, v0, at, row);
  v1 = finished(OUT_ARGS, v1, at + 1, row + 1);
#if ELEMENT == 0
  *(global float2 *)(out + at) = (float2)(v0, v1);
#elif ELEMENT == 1
  vstore_half2_rte((float2)(v0, v1), 0, out + at);
#else
  const uint u0 = as_uint(v0), u1 = as_uint(v1);
  const uint h0 = v0 != v0 ? (u0 >> 16) | 64u : (u0 + 0x7fffu + ((u0 >> 16) & 1u)) >> 16;
  const uint h1 = v1 != v1 ? (u1 >> 16) | 64u : (u1 + 0x7fffu + ((u1 >> 16) & 1u)) >> 16;
  *(global uint *)(out + at) = h0 | h1 << 16;
#endif
}
#if OCTETS
// ``narrow`` comes before this text: its 16-bit type is the output's.
inline void put8(OUT_PARAMS, const float *v, OUT_INDEX at, int row) {
  float f[8];
#pragma unroll
  for (int e = 0; e < 8; ++e) f[e] = finished(OUT_ARGS, v[e], at + e, row + e);
#if ELEMENT == 0
  global float4 *to = (global float4 *)(out + at);
  to[0] = (float4)(f[0], f[1], f[2], f[3]);
  to[1] = (float4)(f[4], f[5], f[6], f[7]);
#else
  uint pair[4];
#pragma unroll
  for (int e = 0; e < 4; ++e) pair[e] = narrow(f[2 * e]) | (uint)narrow(f[2 * e + 1]) << 16;
  *(global uint4 *)(out + at) = (uint4)(pair[0], pair[1], pair[2], pair[3]);
#endif
}
#endif
#endif
