// The epilogue of one element (``put``) or of four consecutive ones: four channels (NHWC) or four pixels of a channel.
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
