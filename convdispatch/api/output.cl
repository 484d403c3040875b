// Stores a sum v of channel row with its epilogue: out[at] = activation(v + bias[row] + residual[at]) [+ out[at]].
//
// OUT_PARAMS  parameters of a kernel or function: the output, then bias, residual, and norm and saved of a norm's
//             gradient, if the problem has them (``ConvProblem.epilogue_operands``)
// OUT_ARGS    the parameters' names, to pass them to a function
// finished    returns the element's value; put stores it
//
// OUT_INDEX   type of element offsets; long unless defined
// PARTIAL     1: put stores the sum in the workspace without an epilogue, for a kernel that adds the parts of sums
// PARTIAL_AT  offset in elements of out[0] in the workspace
#include <convdispatch/epilogue.cl>
#ifndef OUT_PARAMS
#include <convdispatch/norm.cl>
#ifndef OUT_INDEX
#define OUT_INDEX long
#endif
#if PARTIAL
#define OUT_PARAMS global ACC *out
#define OUT_ARGS out
inline void put(OUT_PARAMS, ACC v, OUT_INDEX at, int row) { (out + PARTIAL_AT)[at] = v; }
#else
#if BIAS
#define BIAS_PARAM_ , global const REAL *bias
#define BIAS_ARG_ , bias
#else
#define BIAS_PARAM_
#define BIAS_ARG_
#endif
#if RESIDUAL
#define RESIDUAL_PARAM_ , global const REAL *residual
#define RESIDUAL_ARG_ , residual
#else
#define RESIDUAL_PARAM_
#define RESIDUAL_ARG_
#endif
#if NORM_SLOPE
#define SLOPE_PARAMS_ , global const ACC *norm, global const REAL *saved
#define SLOPE_ARGS_ , norm, saved
#else
#define SLOPE_PARAMS_
#define SLOPE_ARGS_
#endif
#define OUT_PARAMS global REAL *out BIAS_PARAM_ RESIDUAL_PARAM_ SLOPE_PARAMS_
#define OUT_ARGS out BIAS_ARG_ RESIDUAL_ARG_ SLOPE_ARGS_
inline ACC finished(OUT_PARAMS, ACC v, OUT_INDEX at, int row) {
  EPILOGUE(ACC, v, LOAD(bias, row), LOAD(residual, at), LOAD(out, at))
  TIMES_SLOPE(v, at, row)
  return v;
}
inline void put(OUT_PARAMS, ACC v, OUT_INDEX at, int row) { STORE(out, at, finished(OUT_ARGS, v, at, row)); }
#endif
#endif
