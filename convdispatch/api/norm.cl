// The norm of x: activation((v - mean) scale + shift); norm holds rows of means, scales and shifts, one number a channel.
//
// NORM        1: the problem has a norm; NORM_CHANNELS channels of x, NORM_ACTIVATION(T, v)
// NORM_SLOPE  1: a data gradient, which TIMES_SLOPE multiplies by the activation's slope at the norm of saved[at]
//
// The multiply-add is one operation, so that all kernels have the same bits.
// normed(norm, v, c)   one element of channel c
// normed4(norm, v, c)  four elements of channel c; normed4_channels: of channels c to c + 3
#if NORM && !defined(NORMED)
#define NORMED 1
inline ACC affine(global const ACC *norm, ACC v, int c) {
  return fma(v - norm[c], norm[NORM_CHANNELS + c], norm[2 * NORM_CHANNELS + c]);
}
inline ACC normed(global const ACC *norm, ACC v, int c) {
  v = affine(norm, v, c);
  return NORM_ACTIVATION(ACC, v);
}
#ifdef ACC4
inline ACC4 normed4(global const ACC *norm, ACC4 v, int c) {
  v = fma(v - norm[c], (ACC4)(norm[NORM_CHANNELS + c]), (ACC4)(norm[2 * NORM_CHANNELS + c]));
  return NORM_ACTIVATION(ACC4, v);
}
inline ACC4 normed4_channels(global const ACC *norm, ACC4 v, int c) {
  const ACC4 mean = vload4(0, norm + c), scale = vload4(0, norm + NORM_CHANNELS + c);
  v = fma(v - mean, scale, vload4(0, norm + 2 * NORM_CHANNELS + c));
  return NORM_ACTIVATION(ACC4, v);
}
#endif
#endif
#if NORM_SLOPE
#define TIMES_SLOPE(v, at, c) v = norm_gradient(v, affine(norm, LOAD(saved, at), c));
#else
#define TIMES_SLOPE(v, at, c)
#endif
