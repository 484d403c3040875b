## float32 to and from the format's 16-bit type; rounded to nearest even, infinity beyond its range.
% if job.format.bfloat:
inline float widen(ushort h) { return as_float((uint)h << 16); }
inline ushort narrow(float v) {
  const uint u = as_uint(v);
  return v != v ? (ushort)((u >> 16) | 64u) : (ushort)((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
}
% else:
inline float widen(ushort h) { return cvt_f32_f16(h); }
inline ushort narrow(float v) { return cvt_f16_f32(v); }
% endif
