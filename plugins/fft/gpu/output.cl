// out[at] = activation(v * SCALE + bias[channel] + residual[at]) [+ out[at]]
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
inline void put(OUT_PARAMS, long at, ACC v, int channel) {
  v *= SCALE;
#if BIAS
  v += LOAD(bias, channel);
#endif
#if RESIDUAL
  v += LOAD(residual, at);
#endif
  v = ACTIVATION(ACC, v);
#if ACCUMULATE
  v += LOAD(out, at);
#endif
  STORE(out, at, v);
}
