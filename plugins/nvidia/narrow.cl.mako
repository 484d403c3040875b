## float32 to and from the format's 16-bit type; rounded to nearest even, infinity beyond its range.
% if job.format.bfloat:
inline float widen(ushort h) { return as_float((uint)h << 16); }
inline ushort narrow(float v) {
  const uint u = as_uint(v);
  return v != v ? (ushort)((u >> 16) | 64u) : (ushort)((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
}
% else:
#ifndef EMULATE
inline float widen(ushort h) {
  float v;
  asm("cvt.f32.f16 %0, %1;" : "=f"(v) : "h"(h));
  return v;
}
inline ushort narrow(float v) {
  ushort h;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(h) : "f"(v));
  return h;
}
#else
inline float widen(ushort h) { return vload_half(0, (const half *)&h); }
inline ushort narrow(float v) {
  ushort h;
  vstore_half_rte(v, 0, (half *)&h);
  return h;
}
#endif
% endif
