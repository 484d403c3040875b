// What follows a sum, for one element (``put``) or for four neighbours: four channels for NHWC, else pixels of one.
#include <convdispatch/output.cl>
#include <convdispatch/vectors.cl>
#if PARTIAL
inline void put4(OUT_PARAMS, ACC4 v, OUT_INDEX at, int row) { *(global ACC4 *)(out + PARTIAL_AT + at) = v; }
#else
inline void put4(OUT_PARAMS, ACC4 v, OUT_INDEX at, int row) {
#if BIAS && NHWC
  v += LOAD4(bias + row);
#elif BIAS
  v += LOAD(bias, row);
#endif
#if RESIDUAL
  v += LOAD4(residual + at);
#endif
  v = ACTIVATION(ACC4, v);
#if ACCUMULATE
  v += LOAD4(out + at);
#endif
  STORE4(out + at, v);
}
#endif
