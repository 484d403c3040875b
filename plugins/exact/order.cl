// What every kernel here has in common: no contraction, one fused multiply-add, one NaN.
//
// Sums are chains of fma(), which OpenCL C rounds once. NaNs differ between devices in sign and payload, so results hold
// one NaN, that of NumPy.
#pragma OPENCL FP_CONTRACT OFF
#include <convdispatch/epilogue.cl>
#undef EPILOGUE
#if FLOAT64
#define ONE_NAN_ as_double(0x7ff8000000000000UL)
#else
#define ONE_NAN_ as_float(0x7fc00000u)
#endif
#define EPILOGUE(T, v, bias, residual, old) \
  { ADD_BIAS_(v, bias) ADD_RESIDUAL_(v, residual) v = ACTIVATION(T, v); ADD_OLD_(v, old) v = v == v ? v : (T)(ONE_NAN_); }
