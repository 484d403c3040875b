// What every kernel here has in common: no contraction, one fused multiply-add, one NaN; A's packing, C's places.
//
//     C[m, n] = sum over blocks of (chain of fma over the block's k of A[m, k] B[k, n])
//
// m are target channels. Forward and data gradient: n are places of images, k (tap, channel) of a block of channels.
// Weights' gradient: n are (channel, tap), or (tap, channel) in NHWC; k are places of a block of rows.
//
// Sums are chains of fma(), which OpenCL C rounds once. NaNs differ between devices in sign and payload, so results hold
// one NaN, that of NumPy.
//
// BM, MB       m's of a tile of packed A, tiles a group
// COLUMNS, KA  n's of a group, k's of a row of A
// TAPS, PLACES taps of the pass, places of an image; WEIGHTS: 1 for a weights' gradient
// BLOCKS       blocks of k, of which IMAGE are an image's (weights' gradient), or all
#pragma OPENCL FP_CONTRACT OFF
#include <convdispatch/epilogue.cl>
#undef EPILOGUE
#if FLOAT64
#define ONE_NAN_ as_double(0x7ff8000000000000UL)
#else
#define ONE_NAN_ as_float(0x7fc00000u)
#endif
#define EPILOGUE(T, v, bias, residual, old) \
  { ADD_BIAS_(v, bias) ADD_RESIDUAL_(v, residual) v = ACTIVATION(T, v); ADD_OLD_(v, old) v = v == v ? v : (T)(ONE_NAN_); }
#define PLANE ((long)ZD * ZH * ZW)

// packed[g][tile][k][BM] = A[m, k], zeros beyond the last m: a work item packs one m of a run.
kernel void pack(global const ACC *restrict a, global ACC *restrict packed, long packed_off) {
  const int m = get_global_id(0) + get_global_id(2) % MB * BM, g = get_global_id(2) / MB, run = get_global_id(1);
#if WEIGHTS
  const int k = run * YW, count = YW, image = run / (YD * YH), place = k % PLACES;
  const long step = NHWC ? N * G : 1, from = NHWC ? (long)k * (N * G) + g * N + m : ((long)(image * G + g) * N + m) * PLACES + place;
#else
  const int c = run / TAPS * PACKED_RUN, cb = c / CB * CB, count = min(PACKED_RUN, C - c), tap = run % TAPS;
  const int k = cb * TAPS + tap * min(CB, C - cb) + c - cb;
  const int at = ((AD + tap / (TW * TH) * BD) * KH + AH + tap / TW % TH * BH) * KW + AW + tap % TW * BW;
  const long step = WC, from = g * W_GROUP + (long)m * WN + (long)c * WC + (long)at * WT;
#endif
  packed += packed_off + ((long)get_global_id(2) * KA + k) * BM + get_global_id(0);
  for (int i = 0; i < count; ++i) packed[(long)i * BM] = m < N ? a[from + i * step] : (ACC)0;
}

#if WEIGHTS
#define TAP_OF(n) (NHWC ? (n) / C : (n) % TAPS)
#define CHANNEL_OF(n) (NHWC ? (n) % C : (n) / TAPS)
#endif
// The target's element of C[m, n].
inline long target_at(int g, int m, int n) {
#if WEIGHTS
  return g * W_GROUP + (long)m * WN + (long)CHANNEL_OF(n) * WC + (long)TAP_OF(n) * WT;
#else
  const int image = n / PLACES, p = n % PLACES;
  const long at = ((long)(p / (YW * YH) * UD + FD) * ZH + p / YW % YH * UH + FH) * ZW + p % YW * UW + FW;
  return NHWC ? (image * PLANE + at) * (N * G) + g * N + m : ((long)(image * G + g) * N + m) * PLANE + at;
#endif
}
