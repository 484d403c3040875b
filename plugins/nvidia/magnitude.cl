// The scale of tensors whose values become float16: a power of two that brings the largest finite magnitude to 2^14.
//
// Work groups of 256 items look for it side by side (``largest``), and every group that needs it takes the largest of
// theirs. A place for scales holds its inverse, then what each of the 256 groups found.
#define SEARCHERS 256
inline float largest_of_all(local float *shared, int tid) {
  for (int reach = 128; reach > 0; reach /= 2) {
    barrier(CLK_LOCAL_MEM_FENCE);
    if (tid < reach) shared[tid] = max(shared[tid], shared[tid + reach]);
  }
  barrier(CLK_LOCAL_MEM_FENCE);
  return shared[0];
}
// The largest finite magnitude among every SEARCHERS-th 256 elements.
inline float largest_of(global const float *from, long elements, int group, int tid) {
  float most = 0;
  for (long i = group * 256 + tid; i < elements; i += 256 * SEARCHERS) {
    const float v = fabs(from[i]);
    if (v <= 3.4028235e38f) most = max(most, v);
  }
  return most;
}
// The exponent of a largest magnitude; it stays in what a float and its inverse can hold.
inline int exponent_of(float most) {
  return most > 0 ? clamp((int)(as_uint(most) >> 23) - 127, -112, 127) : 14;
}
// 2^(14 - margin - exponent), and its inverse.
inline float scale_of(int exponent, int margin) { return as_float((uint)(127 + 14 - margin - exponent) << 23); }
inline float unscale_of(int exponent, int margin) { return as_float((uint)(127 - 14 + margin + exponent) << 23); }
