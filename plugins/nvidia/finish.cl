// What follows the sum, for one element (the header's ``put``) and for two or eight neighbouring channels.
//
// PAIRS      1: two neighbouring columns are neighbouring channels in memory (channels last)
// OCTETS     1: so are eight, and they begin at a multiple of eight
#include <convdispatch/output.cl>
#include <convdispatch/vectors.cl>
#if PARTIAL
inline void put2(OUT_PARAMS, float v0, float v1, OUT_INDEX at, int row) {
  *(global float2 *)(out + PARTIAL_AT + at) = (float2)(v0, v1);
}
#if OCTETS
inline void put8(OUT_PARAMS, const float *v, OUT_INDEX at, int row) {
  global float4 *to = (global float4 *)(out + PARTIAL_AT + at);
  to[0] = (float4)(v[0], v[1], v[2], v[3]);
  to[1] = (float4)(v[4], v[5], v[6], v[7]);
}
#endif
#else
inline void put2(OUT_PARAMS, float v0, float v1, OUT_INDEX at, int row) {
  v0 = finished(OUT_ARGS, v0, at, row);
  v1 = finished(OUT_ARGS, v1, at + 1, row + 1);
  STORE2(out + at, (float2)(v0, v1));
}
#if OCTETS
// ``narrow`` comes before this text: its 16-bit type is the output's.
inline void put8(OUT_PARAMS, const float *v, OUT_INDEX at, int row) {
  float f[8];
#pragma unroll
  for (int e = 0; e < 8; ++e) f[e] = finished(OUT_ARGS, v[e], at + e, row + e);
#if FLOAT32
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
