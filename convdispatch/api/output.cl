// Stores a sum v of channel row with its epilogue: out[at] = activation(v + bias[row] + residual[at]) [+ out[at]].
//
// OUT_PARAMS  parameters of a kernel or function: the output, then bias and residual if the problem has them
// OUT_ARGS    the parameters' names, to pass them to a function
// finished    returns the element's value; put stores it
//
// OUT_INDEX   type of element offsets; long unless defined
// PARTIAL     1: put stores the sum in the workspace without an epilogue, for a kernel that adds the parts of sums
// PARTIAL_AT  offset in elements of out[0] in the workspace
#include <convdispatch/epilogue.cl>
#ifndef OUT_PARAMS
#ifndef OUT_INDEX
#define OUT_INDEX long
#endif
#if PARTIAL
#define OUT_PARAMS global ACC *out
#define OUT_ARGS out
inline void put(OUT_PARAMS, ACC v, OUT_INDEX at, int row) { (out + PARTIAL_AT)[at] = v; }
#else
#if BIAS && RESIDUAL
#define OUT_PARAMS global REAL *out, global const REAL *bias, global const REAL *residual
#define OUT_ARGS out, bias, residual
#elif BIAS
#define OUT_PARAMS global REAL *out, global const REAL *bias
#define OUT_ARGS out, bias
#elif RESIDUAL
#define OUT_PARAMS global REAL *out, global const REAL *residual
#define OUT_ARGS out, residual
#else
#define OUT_PARAMS global REAL *out
#define OUT_ARGS out
#endif
inline ACC finished(OUT_PARAMS, ACC v, OUT_INDEX at, int row) {
  EPILOGUE(ACC, v, LOAD(bias, row), LOAD(residual, at), LOAD(out, at))
  return v;
}
inline void put(OUT_PARAMS, ACC v, OUT_INDEX at, int row) { STORE(out, at, finished(OUT_ARGS, v, at, row)); }
#endif
#endif
