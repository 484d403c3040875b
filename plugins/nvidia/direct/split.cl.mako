## A float32 as the two numbers of a tensor core's type whose sum it is, all but the last bits.
% if depth == 16:
// Two values, in bfloat16: 8 bits and 8 more with a sign of their own.
inline void split2(float v0, float v1, uint *high, uint *low) {
  *high = cvt_bf16x2_f32(v0, v1);
  *low = cvt_bf16x2_f32(v0 - as_float(*high << 16), v1 - as_float(*high & 0xffff0000u));
}
% else:
// v = high + low as tensor cores read the two: 11 bits, and 11 more with a sign of their own. An infinity's low is NaN.
inline void split(float v, uint *high, uint *low) {
  *high = cvt_tf32_f32(v);
  *low = as_uint(v - as_float(*high));
}
% endif
