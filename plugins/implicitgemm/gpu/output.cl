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
#if NORM_SLOPE
#if NHWC
#define NEXT_ROW 1
#else
#define NEXT_ROW 0
#endif
  TIMES_SLOPE(v.s0, at, row)
  TIMES_SLOPE(v.s1, at + 1, row + NEXT_ROW)
  TIMES_SLOPE(v.s2, at + 2, row + 2 * NEXT_ROW)
  TIMES_SLOPE(v.s3, at + 3, row + 3 * NEXT_ROW)
#endif
  STORE4(out + at, v);
}
#endif
