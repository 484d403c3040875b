// Converts float32 to bfloat16, its upper half, and back: to nearest even, infinity beyond the largest, NaN to NaN.
//
// convert_bfloat16_as_ushort(v), convert_as_bfloat16_float(h)  for one number, and with 2, 4, 8, 16 for vectors
#ifndef BFLOAT16_CONVERSIONS
#define BFLOAT16_CONVERSIONS(n) \
  inline ushort##n convert_bfloat16_as_ushort##n(float##n v) { \
    const uint##n u = as_uint##n(v); \
    return convert_ushort##n((v != v ? u | 0x400000u : u + 0x7fffu + ((u >> 16) & 1u)) >> 16); \
  } \
  inline float##n convert_as_bfloat16_float##n(ushort##n h) { return as_float##n(convert_uint##n(h) << 16); }
BFLOAT16_CONVERSIONS()
BFLOAT16_CONVERSIONS(2)
BFLOAT16_CONVERSIONS(4)
BFLOAT16_CONVERSIONS(8)
BFLOAT16_CONVERSIONS(16)
#endif
