// Converts floats of 8 bits (a sign, a biased exponent, M bits of mantissa) exactly to float32, and rounds back.
//
// convert_as_float8_e4m3_float(b)  to float32; e4m3 has no infinities, its NaN is 0x7f or 0xff
// convert_float8_e4m3_as_uchar(v)  to the nearest, ties to even; larger numbers and infinity to the largest, NaN to NaN
// The same functions exist for e5m2, whose infinities are read but not written.
#define FLOAT8_CONVERSIONS(name, M, BIAS, LARGEST, IS_NAN, IS_INFINITE)                            \
  inline float convert_as_##name##_float(uchar b) {                                                 \
    const uint low = b & 0x7fu;                                                                     \
    const float small = (float)low * as_float((128 - BIAS - M) << 23);                              \
    float v = low >> M ? as_float((low << (23 - M)) + ((127 - BIAS) << 23)) : small;                \
    v = IS_NAN ? NAN : IS_INFINITE ? INFINITY : v;                                                  \
    return b & 0x80u ? -v : v;                                                                      \
  }                                                                                                 \
  inline uchar convert_##name##_as_uchar(float v) {                                                 \
    const uint sign = as_uint(v) >> 24 & 0x80u;                                                     \
    const float size = min(fabs(v), LARGEST);                                                       \
    const uint u = as_uint(size);                                                                   \
    const uint near = (u + ((1u << (22 - M)) - 1u) + (u >> (23 - M) & 1u)) >> (23 - M);             \
    const uint small = (uint)rint(size * as_float((126 + BIAS + M) << 23));                         \
    const uint bits = u >> 23 < 128 - BIAS ? small : near - ((127 - BIAS) << M);                    \
    return (uchar)(sign | (v != v ? 0x7fu : bits));                                                 \
  }
FLOAT8_CONVERSIONS(float8_e4m3, 3, 7, 448.0f, low == 0x7fu, false)
FLOAT8_CONVERSIONS(float8_e5m2, 2, 15, 57344.0f, low > 0x7cu, low == 0x7cu)
