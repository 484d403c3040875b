## relu_pair: expression that clamps at zero and rounds ``low`` and ``high``, where the norm's activation is that; or empty
// Normalises 16 bytes of neighbouring channels in local memory: their means, scales and shifts are the table's rows.
% if tiling.format.tf32:
inline uint normed_word(uint u, float mean, float scale, float shift) {
  float v = fma(as_float(u) - mean, scale, shift);
  v = NORM_ACTIVATION(float, v);
  return cvt_tf32_f32(v);
}
inline uint4 normed_chunk(uint4 u, const float4 *mean, const float4 *scale, const float4 *shift) {
  return (uint4)(normed_word(u.x, mean->x, scale->x, shift->x), normed_word(u.y, mean->y, scale->y, shift->y),
                 normed_word(u.z, mean->z, scale->z, shift->z), normed_word(u.w, mean->w, scale->w, shift->w));
}
% else:
inline uint normed_pair(uint u, float2 mean, float2 scale, float2 shift) {
  float low = fma(widen((ushort)u) - mean.x, scale.x, shift.x), high = fma(widen((ushort)(u >> 16)) - mean.y, scale.y, shift.y);
% if relu_pair:
  return ${relu_pair};
% else:
  low = NORM_ACTIVATION(float, low);
  high = NORM_ACTIVATION(float, high);
  return ${tiling.narrow_pair};
% endif
}
inline uint4 normed_chunk(uint4 u, const float4 *mean, const float4 *scale, const float4 *shift) {
#define PAIR_OF(row, half) half ? (float2)((row).z, (row).w) : (float2)((row).x, (row).y)
#define NORMED_PAIR(u, four, half) normed_pair(u, PAIR_OF(mean[four], half), PAIR_OF(scale[four], half), PAIR_OF(shift[four], half))
  return (uint4)(NORMED_PAIR(u.x, 0, 0), NORMED_PAIR(u.y, 0, 1), NORMED_PAIR(u.z, 1, 0), NORMED_PAIR(u.w, 1, 1));
}
% endif
