// The epilogue of the sum, for one element (the header's ``put``) and for two or eight neighbouring channels.
//
// PAIRS      1: two neighbouring columns are neighbouring channels in memory (channels last)
// OCTETS     1: eight neighbouring columns are too, and they begin at a multiple of eight
//
// A work item writes 16 bytes at once: four float32 numbers, or eight of 16 bits.
#include <convdispatch/output.cl>
#include <convdispatch/vectors.cl>
#if PARTIAL
inline void put2(OUT_PARAMS, float v0, float v1, OUT_INDEX at, int row) {
  *(global float2 *)(out + PARTIAL_AT + at) = (float2)(v0, v1);
}
#if OCTETS
inline void put8_part(OUT_PARAMS, const float *v, OUT_INDEX at) {
  global float4 *to = (global float4 *)(out + PARTIAL_AT + at);
  to[0] = (float4)(v[0], v[1], v[2], v[3]);
  to[1] = (float4)(v[4], v[5], v[6], v[7]);
}
#define put8(v, at, row) put8_part(OUT_ARGS, v, at)
#endif
#else
inline void put2(OUT_PARAMS, float v0, float v1, OUT_INDEX at, int row) {
  float2 v = (float2)(v0, v1);
  EPILOGUE(float2, v, LOAD2(bias + row), LOAD2(residual + at), LOAD2(out + at))
  STORE2(out + at, v);
}
#if OCTETS
// Eight neighbouring channels as stored, and as floats. ``narrow``, which precedes this text, has the output's type.
#if FLOAT32
#define RAW8 float8
#define NO_RAW8 ((float8)(0))
inline RAW8 raw8(global const REAL *p) {
  global const float4 *from = (global const float4 *)p;
  return (float8)(from[0], from[1]);
}
#define WIDE8(v) (v)
#else
#define RAW8 uint4
#define NO_RAW8 ((uint4)(0))
inline RAW8 raw8(global const REAL *p) { return *(global const uint4 *)p; }
inline float8 wide8(uint4 u) {
  return (float8)(widen((ushort)u.x), widen((ushort)(u.x >> 16)), widen((ushort)u.y), widen((ushort)(u.y >> 16)),
                  widen((ushort)u.z), widen((ushort)(u.z >> 16)), widen((ushort)u.w), widen((ushort)(u.w >> 16)));
}
#define WIDE8(v) wide8(v)
#endif
// ``addend`` is the residual, read before for many rows at once, so that each row does not wait for its own read.
inline void put8_addend(OUT_PARAMS, const float *v, RAW8 addend, OUT_INDEX at, int row) {
  float8 f = (float8)(v[0], v[1], v[2], v[3], v[4], v[5], v[6], v[7]);
  EPILOGUE(float8, f, WIDE8(raw8(bias + row)), WIDE8(addend), WIDE8(raw8(out + at)))
#if FLOAT32
  global float4 *to = (global float4 *)(out + at);
  to[0] = f.lo;
  to[1] = f.hi;
#else
  *(global uint4 *)(out + at) = (uint4)(narrow(f.s0) | (uint)narrow(f.s1) << 16, narrow(f.s2) | (uint)narrow(f.s3) << 16,
                                        narrow(f.s4) | (uint)narrow(f.s5) << 16, narrow(f.s6) | (uint)narrow(f.s7) << 16);
#endif
}
#if RESIDUAL
#define put8(v, at, row) put8_addend(OUT_ARGS, v, raw8(residual + (at)), at, row)
#else
#define put8(v, at, row) put8_addend(OUT_ARGS, v, NO_RAW8, at, row)
#endif
#endif
#endif
