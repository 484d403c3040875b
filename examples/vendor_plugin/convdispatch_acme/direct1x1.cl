// y[mb, oc, p] = sum_ic w[oc, ic] * x[mb, ic, p] (+ bias[oc]), p over the pixels.  Macros: ConvProblem.macros().
// BLOCK: output channels of a work item, which reads each pixel once for all of them.
#define PIXELS ((long)OD * OH * OW)
#if BIAS
#define BIAS_ARGUMENT , global const REAL *bias
#define START(o) LOAD(bias, o)
#else
#define BIAS_ARGUMENT
#define START(o) 0
#endif

kernel void direct1x1(global const REAL *x, global const REAL *w, global REAL *y BIAS_ARGUMENT) {
  const long p = get_global_id(0), mb = get_global_id(2);
  const int first = get_global_id(1) * BLOCK, last = min(first + BLOCK, OC);
  ACC sum[BLOCK];
  for (int o = first; o < last; ++o)
    sum[o - first] = START(o);
  for (int ic = 0; ic < IC; ++ic) {
    const ACC pixel = LOAD(x, (mb * IC + ic) * PIXELS + p);
    for (int o = first; o < last; ++o)
      sum[o - first] += LOAD(w, (long)o * IC + ic) * pixel;
  }
  for (int o = first; o < last; ++o)
    STORE(y, (mb * OC + o) * PIXELS + p, sum[o - first]);
}
