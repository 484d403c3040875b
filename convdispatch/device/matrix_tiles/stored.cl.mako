## Finishes and stores results, and returns them as they are stored: one (``put_stored``), or eight neighbouring channels
## (OCTETS: channels last, whole octets), 16 or 32 bytes at once. ``finish.cl`` and ``narrow`` precede.
##
## addend, before  the residual's and the saved tensor's numbers there, read before for many rows at once
% if form.returning:
#include <convdispatch/moments.cl>
% endif
#if PARTIAL
inline void put8_part(OUT_PARAMS, const float *v, OUT_INDEX at) {
  global float4 *to = (global float4 *)(out + PARTIAL_AT + at);
  to[0] = (float4)(v[0], v[1], v[2], v[3]);
  to[1] = (float4)(v[4], v[5], v[6], v[7]);
}
#define put8(v, at, row) put8_part(OUT_ARGS, v, at)
#else
// Eight neighbouring channels as stored, and as floats.
#if FLOAT32
#define RAW8 float8
#define NO_RAW8 ((float8)(0))
#define AS_STORED(v) (v)
inline RAW8 raw8(global const REAL *p) {
  global const float4 *from = (global const float4 *)p;
  return (float8)(from[0], from[1]);
}
#define WIDE8(v) (v)
#else
#define RAW8 uint4
#define NO_RAW8 ((uint4)(0))
#define AS_STORED(v) widen(narrow(v))
#define NARROW_PAIR(low, high) ${form.narrow_pair}
inline RAW8 raw8(global const REAL *p) { return *(global const uint4 *)p; }
inline float8 wide8(uint4 u) {
  return (float8)(widen((ushort)u.x), widen((ushort)(u.x >> 16)), widen((ushort)u.y), widen((ushort)(u.y >> 16)),
                  widen((ushort)u.z), widen((ushort)(u.z >> 16)), widen((ushort)u.w), widen((ushort)(u.w >> 16)));
}
#define WIDE8(v) wide8(v)
#endif
inline float put_stored(OUT_PARAMS, float v, OUT_INDEX at, int row) {
  v = finished(OUT_ARGS, v, at, row);
  STORE(out, at, v);
  return AS_STORED(v);
}
#if OCTETS
#if NORM_SLOPE
// The norm's gradient of four neighbouring channels, whose numbers in ``saved`` are x.
inline float4 times_slopes(float4 v, float4 x, global const float *norm) {
  const float4 mean = *(global const float4 *)norm, scale = *(global const float4 *)(norm + NORM_CHANNELS);
  const float4 shift = *(global const float4 *)(norm + 2 * NORM_CHANNELS);
  v.x = norm_gradient(v.x, fma(x.x - mean.x, scale.x, shift.x));
  v.y = norm_gradient(v.y, fma(x.y - mean.y, scale.y, shift.y));
  v.z = norm_gradient(v.z, fma(x.z - mean.z, scale.z, shift.z));
  v.w = norm_gradient(v.w, fma(x.w - mean.w, scale.w, shift.w));
  return v;
}
#endif
inline RAW8 put8_stored(OUT_PARAMS, const float *v, RAW8 addend, RAW8 before, OUT_INDEX at, int row) {
  float8 f = (float8)(v[0], v[1], v[2], v[3], v[4], v[5], v[6], v[7]);
  EPILOGUE(float8, f, WIDE8(raw8(bias + row)), WIDE8(addend), WIDE8(raw8(out + at)))
#if NORM_SLOPE
  const float8 x = WIDE8(before);
  f.lo = times_slopes(f.lo, x.lo, norm + row);
  f.hi = times_slopes(f.hi, x.hi, norm + row + 4);
#endif
#if FLOAT32
  global float4 *to = (global float4 *)(out + at);
  to[0] = f.lo;
  to[1] = f.hi;
  return f;
#else
  const uint4 stored = (uint4)(NARROW_PAIR(f.s0, f.s1), NARROW_PAIR(f.s2, f.s3), NARROW_PAIR(f.s4, f.s5), NARROW_PAIR(f.s6, f.s7));
  *(global uint4 *)(out + at) = stored;
  return stored;
#endif
}
#define put8(v, at, row) put8_stored(OUT_ARGS, v, NO_RAW8, NO_RAW8, at, row)
#endif
#endif
