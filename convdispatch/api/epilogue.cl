// The epilogue of a sum: v = activation(v + bias + residual) + old, with the parts that the problem has.
//
// BIAS, RESIDUAL, ACCUMULATE  1: the problem has this part; the argument of a missing part is not compiled
// T                           type of v: ACC, or a vector of it
#ifndef EPILOGUE
#if BIAS
#define ADD_BIAS_(v, bias) v += bias;
#else
#define ADD_BIAS_(v, bias)
#endif
#if RESIDUAL
#define ADD_RESIDUAL_(v, residual) v += residual;
#else
#define ADD_RESIDUAL_(v, residual)
#endif
#if ACCUMULATE
#define ADD_OLD_(v, old) v += old;
#else
#define ADD_OLD_(v, old)
#endif
#define EPILOGUE(T, v, bias, residual, old) \
  { ADD_BIAS_(v, bias) ADD_RESIDUAL_(v, residual) v = ACTIVATION(T, v); ADD_OLD_(v, old) }
#endif
