// The epilogue of a quantized sum: y[at] = saturate(round(multiplier[n] * (sum + bias[n]) [+ residual]) + y_zero).
//
// FLOAT8             1: y[at] = saturate(round((multiplier[n] * sum + bias[n] [+ residual]) / y_scale)), in float32
// OUT, OUT_INT8 ...  y's type, and its name
// RESIDUAL           1: a residual of y's type is added
// OC                 channels
// TABLE_PARAMS       parameters of a kernel or function: the table, which replaces the bias, and the residual
// TABLE_ARGS         the parameters' names, to pass them to a function
//
// The product, the sum and the quotient are rounded one after the other, on every device. NVIDIA's compiler may divide
// less exactly and fuse operations, so the PTX instructions are written out for it.
#pragma OPENCL FP_CONTRACT OFF
#ifdef __NV_CL_C_VERSION
inline float mul_rn(float a, float b) { float v; asm("mul.rn.f32 %0, %1, %2;" : "=f"(v) : "f"(a), "f"(b)); return v; }
inline float add_rn(float a, float b) { float v; asm("add.rn.f32 %0, %1, %2;" : "=f"(v) : "f"(a), "f"(b)); return v; }
inline float div_rn(float a, float b) { float v; asm("div.rn.f32 %0, %1, %2;" : "=f"(v) : "f"(a), "f"(b)); return v; }
#else
#define mul_rn(a, b) ((a) * (b))
#define add_rn(a, b) ((a) + (b))
#define div_rn(a, b) ((a) / (b))
#endif
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
#elif OUT_BFLOAT16
#define LOAD_OUT(p, i) convert_as_bfloat16_float((p)[i])
#define STORE_OUT(p, i, v) ((p)[i] = convert_bfloat16_as_ushort(v))
#elif OUT_FLOAT8
#define CONVERT_(before, name, after) before##name##after
#define CONVERT(before, name, after) CONVERT_(before, name, after)
#define LOAD_OUT(p, i) CONVERT(convert_as_, OUT_NAME, _float)((p)[i])
#define STORE_OUT(p, i, v) ((p)[i] = CONVERT(convert_, OUT_NAME, _as_uchar)(v))
#else
#define LOAD_OUT(p, i) ((p)[i])
#define STORE_OUT(p, i, v) ((p)[i] = (OUT)(v))
#endif

#if FLOAT8
// Stores y[at] from the sum of output channel n, where the sum and its bias are floats.
inline void put_sum(global OUT *y, TABLE_PARAMS, float sum, long at, int n) {
  float v = add_rn(mul_rn(sum, MULTIPLIERS(table)[n]), WORD(16 + n));
#if RESIDUAL
  v = add_rn(v, mul_rn(LOAD_OUT(residual, at), WORD(4)));
#endif
  v = v < WORD(6) ? WORD(6) : v > WORD(7) ? WORD(7) : v;  // comparisons keep NaN
#if OUT_FLOAT8
  v = div_rn(v, WORD(12));
#endif
  STORE_OUT(y, at, v);
}
#else
// Adds a multiplied sum v and a residual r in the float type F, and divides by y's scale if y has 8 bits.
#if OUT_BYTES
#define OVER_SCALE(F, v) v = div_rn(v, (F)(WORD(12)));
#else
#define OVER_SCALE(F, v)
#endif
#define FINISHED_RESIDUAL(F, v, r)                                                          \
  v = clamp(table[3] ? rint(v) : v, (F)(WORD(8)), (F)(WORD(9)));                            \
  v = mul_rn(v, (F)(WORD(5)));                                                              \
  v = add_rn(v, mul_rn(r - (F)((float)table[2]), (F)(WORD(4))));                            \
  OVER_SCALE(F, v)
#define FINISHED(F, v) v = clamp(v, (F)(WORD(6)), (F)(WORD(7)));

// Converts a sum with its bias to y's integer range or to a float; r is the residual's element.
#if OUT_INT32 || OUT_BYTES
#define FINISHED_TYPE int
#else
#define FINISHED_TYPE float
#endif
#if OUT_INT32
#define ADDED_TYPE int
inline int finish_sum(global const int *table, int whole, float multiplier, int r) {
#if RESIDUAL
  whole = (int)((uint)whole + (uint)r);
#endif
  return clamp(whole, table[10], table[11]);
}
#else
#define ADDED_TYPE float
inline FINISHED_TYPE finish_sum(global const int *table, int whole, float multiplier, float r) {
  float v = mul_rn((float)whole, multiplier);
#if RESIDUAL
  FINISHED_RESIDUAL(float, v, r)
#endif
  FINISHED(float, v)
#if OUT_BYTES
  return convert_int_rte(v) + table[1];
#else
  return v;
#endif
}
#endif

// Stores y[at] from the sum of output channel n, to which the bias is not added yet.
inline void put_sum(global OUT *y, TABLE_PARAMS, int sum, long at, int n) {
  const int whole = (int)((uint)sum + (uint)BIASES(table)[n]);
#if RESIDUAL
  const ADDED_TYPE r = LOAD_OUT(residual, at);
#else
  const ADDED_TYPE r = 0;
#endif
  STORE_OUT(y, at, finish_sum(table, whole, MULTIPLIERS(table)[n], r));
}
#endif
