// What follows a sum, for one element (``put``) or for four neighbours: four channels for NHWC, else pixels of one.
#include <convdispatch/output.cl>
#include <convdispatch/vectors.cl>
#if PARTIAL
inline void put4(OUT_PARAMS, ACC4 v, OUT_INDEX at, int row) { *(global ACC4 *)(out + PARTIAL_AT + at) = v; }
#else
inline void put4(OUT_PARAMS, ACC4 v, OUT_INDEX at, int row) {
#if NHWC
  EPILOGUE(ACC4, v, LOAD4(bias + row), LOAD4(residual + at), LOAD4(out + at))
#else
  EPILOGUE(ACC4, v, LOAD(bias, row), LOAD4(residual + at), LOAD4(out + at))
#endif
  STORE4(out + at, v);
}
#endif
