// y[at] = saturate(round(multiplier[n] * (sum + bias[n]) [+ residual]) + y_zero): what follows a quantized sum.
//
// OUT, OUT_INT8 ...  y's type, and its name
// RESIDUAL           1: a residual of y's type is added
// OC                 channels
// TABLE_PARAMS       parameters of a kernel or function: the table that stands in the place of a bias, the residual
// TABLE_ARGS         their names, to hand them on
//
// The product and the sum are rounded one after the other, on every device.
#pragma OPENCL FP_CONTRACT OFF
#if OUT_INT8 || OUT_UINT8
#define OUT_BYTES 1
#endif
#if RESIDUAL
#define TABLE_PARAMS global const int *table, global const OUT *residual
#define TABLE_ARGS table, residual
#else
#define TABLE_PARAMS global const int *table
#define TABLE_ARGS table
#endif
#define X_ZERO(table) ((table)[0])
#define BIASES(table) ((table) + 16)
#define MULTIPLIERS(table) ((global const float *)(table) + 16 + OC)
#define WORD(i) (((global const float *)table)[i])

#if OUT_FLOAT16
#ifdef cl_khr_fp16
#define LOAD_OUT(p, i) ((float)(p)[i])
#define STORE_OUT(p, i, v) ((p)[i] = (half)(v))
#else
#define LOAD_OUT(p, i) vload_half(i, p)
#define STORE_OUT(p, i, v) vstore_half_rte(v, i, p)
#endif
#else
#define LOAD_OUT(p, i) ((p)[i])
#define STORE_OUT(p, i, v) ((p)[i] = (OUT)(v))
#endif

// What of a float type F becomes of a sum v that is multiplied, and of a residual r: numbers are added, and divided by
// the scale of y where y is of bytes.
#if OUT_BYTES
#define OVER_SCALE(F, v) v = v / (F)(WORD(12));
#else
#define OVER_SCALE(F, v)
#endif
#define FINISHED_RESIDUAL(F, v, r)                                                          \
  v = clamp(table[3] ? rint(v) : v, (F)(WORD(8)), (F)(WORD(9)));                            \
  v = v * (F)(WORD(5));                                                                     \
  v = v + (r - (F)((float)table[2])) * (F)(WORD(4));                                        \
  OVER_SCALE(F, v)
#define FINISHED(F, v) v = clamp(v, (F)(WORD(6)), (F)(WORD(7)));

// y[at] from the sum of output channel n, whose bias is not added yet.
inline void put_sum(global OUT *y, TABLE_PARAMS, int sum, long at, int n) {
  const int whole = (int)((uint)sum + (uint)BIASES(table)[n]);
#if OUT_INT32
#if RESIDUAL
  y[at] = clamp((int)((uint)whole + (uint)residual[at]), table[10], table[11]);
#else
  y[at] = clamp(whole, table[10], table[11]);
#endif
#else
  float v = (float)whole * MULTIPLIERS(table)[n];
#if RESIDUAL
  const float r = (float)LOAD_OUT(residual, at);
  FINISHED_RESIDUAL(float, v, r)
#endif
  FINISHED(float, v)
#if OUT_BYTES
  y[at] = (OUT)((int)rint(v) + table[1]);
#else
  STORE_OUT(y, at, v);
#endif
#endif
}
