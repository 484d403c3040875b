// The epilogue of one element (``put``) or of four consecutive ones: four channels (NHWC) or four pixels of a channel.
#include <convdispatch/vectors.cl>
#include <convdispatch/output.cl>
#if PARTIAL
inline void put4(OUT_PARAMS, ACC4 v, OUT_INDEX at, int row) { *(global ACC4 *)(out + PARTIAL_AT + at) = v; }
#else
inline void put4(OUT_PARAMS, ACC4 v, OUT_INDEX at, int row) {
#if NHWC
  EPILOGUE(ACC4, v, LOAD4(bias + row), LOAD4(residual + at), LOAD4(out + at))
#else
  EPILOGUE(ACC4, v, LOAD(bias, row), LOAD4(residual + at), LOAD4(out + at))
#endif
#if MASK
#if NHWC
  MASKED(v.s0, at, row) MASKED(v.s1, at + 1, row + 1) MASKED(v.s2, at + 2, row + 2) MASKED(v.s3, at + 3, row + 3)
#else
  MASKED(v.s0, at, row) MASKED(v.s1, at + 1, row) MASKED(v.s2, at + 2, row) MASKED(v.s3, at + 3, row)
#endif
#endif
  STORE4(out + at, v);
}
#endif
