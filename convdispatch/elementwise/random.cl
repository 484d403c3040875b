// out[4 b + j] = word j of Philox(counter first + b, key seed), as a uniform or normal number: one work item a block b.
//
// out    n elements
// low    least value (uniform) or mean (normal); scale: width or standard deviation

#include <pyopencl-random123/philox.cl>

inline uint4 block_of(ulong seed, ulong counter) {
  philox4x32_ctr_t c = {{(uint)counter, (uint)(counter >> 32), 0, 0}};
  philox4x32_key_t k = {{(uint)seed, (uint)(seed >> 32)}};
  philox4x32_ctr_t r = philox4x32(c, k);
  return (uint4)(r.v[0], r.v[1], r.v[2], r.v[3]);
}

// The upper 24 bits: every multiple of 2^-24 in [0, 1), all exact in float32.
inline float4 unit(uint4 words) { return convert_float4(words >> 8) * 0x1p-24f; }

inline void put(global float *out, ulong n, ulong b, float4 v) {
  const ulong i = b * 4;
  if (i < n) out[i] = v.s0;
  if (i + 1 < n) out[i + 1] = v.s1;
  if (i + 2 < n) out[i + 2] = v.s2;
  if (i + 3 < n) out[i + 3] = v.s3;
}

kernel void uniform(global float *out, ulong n, ulong seed, ulong first, float low, float scale) {
  const ulong b = get_global_id(0);
  put(out, n, b, low + scale * unit(block_of(seed, first + b)));
}

kernel void normal(global float *out, ulong n, ulong seed, ulong first, float low, float scale) {
  const ulong b = get_global_id(0);
  const float4 u = unit(block_of(seed, first + b));
  const float2 radius = sqrt(-2.0f * log(u.s02 + 0x1p-24f));  // (0, 1]: no logarithm of zero
  const float2 angle = 6.283185307179586f * u.s13;
  put(out, n, b, low + scale * (float4)(radius * cos(angle), radius * sin(angle)));
}
