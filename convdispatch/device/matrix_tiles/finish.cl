// The epilogue of the sum, for one element (the header's ``put``) and for two neighbouring columns that are neighbouring
// channels in memory (channels last).
#include <convdispatch/output.cl>
#include <convdispatch/vectors.cl>
inline void put2(OUT_PARAMS, float v0, float v1, OUT_INDEX at, int row) {
#if PARTIAL
  *(global float2 *)(out + PARTIAL_AT + at) = (float2)(v0, v1);
#else
  float2 v = (float2)(v0, v1);
  EPILOGUE(float2, v, LOAD2(bias + row), LOAD2(residual + at), LOAD2(out + at))
  STORE2(out + at, v);
#endif
}
