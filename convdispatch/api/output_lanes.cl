// Stores out[at] = activation(v + b + residual[at]) [+ out[at]] for one element and for LANES neighbours; b is the bias
// of v's channels, which is ignored if the problem has none.
#include <convdispatch/lanes.cl>
#include <convdispatch/output.cl>
inline void put_one(OUT_PARAMS, long at, ACC v, ACC b) {
  EPILOGUE(ACC, v, b, LOAD(residual, at), LOAD(out, at))
  STORE(out, at, v);
}
inline void put_vector(OUT_PARAMS, long at, V v, V b) {
  EPILOGUE(V, v, b, LOADV(residual + at), LOADV(out + at))
  STOREV(out + at, v);
}
