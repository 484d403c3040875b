// y[c] = x[c] * d[c]^-BETA,  d[c] = BIAS + SCALE * sum of x[j]^2 over the SIZE channels from c - SIZE / 2.
// One work item takes RUN channels of a pixel: each d and its powers are computed once for all who need them,
// but at a run's ends.
//
// Values the host defines:
//   CHANNELS PIXELS   c; pixels of all images
//   INNER         elements between two channels
//   SIZE SCALE BETA BIAS
//   ROOTS         3 if BETA is 3/4, 2 if it is 1/2, else 0
//   RUN           channels of a work item
//   FLAT          1 to count work items in one dimension (GPUs); INDEX, uint or ulong, holds any element's number
//   REAL ACC LOAD STORE   the element type (convdispatch.api.dtypes)

// d^-BETA; roots where they do, for a power costs ten times as much. rsqrt and sums that may be fused or not have other
// bits in a compiler's vectors than in what its vectors leave over, which depends on how work items are shared out.
#if ROOTS == 3
#define POWER(d) ((ACC)1 / sqrt((d) * sqrt(d)))
#elif ROOTS == 2
#define POWER(d) ((ACC)1 / sqrt(d))
#else
#define POWER(d) pow(d, -BETA)
#endif

#define RUNS ((CHANNELS + RUN - 1) / RUN)
// This work item's first channel c and its element; neighbours in memory are neighbours along dimension 0.
#if FLAT
#define ITEM                                                  \
  const INDEX item = get_global_id(0);                        \
  if (item >= (INDEX)RUNS * PIXELS) return;
#endif
#if INNER == 1 && FLAT
#define PLACE ITEM const int run = item % RUNS; const long pixel = item / RUNS;
#elif INNER == 1
#define PLACE const int run = get_global_id(0); const long pixel = get_global_id(1);
#elif FLAT
#define PLACE                                                 \
  ITEM                                                        \
  const int inner = item % INNER, run = item / INNER % RUNS;  \
  const long image = item / INNER / RUNS;
#else
#define PLACE                                                 \
  const int inner = get_global_id(0), run = get_global_id(1); \
  const long image = get_global_id(2);
#endif
#if INNER == 1
#define FIRST (pixel * CHANNELS + run * RUN)
#else
#define FIRST ((image * CHANNELS + run * RUN) * INNER + inner)
#endif
#define EACH(n, count) _Pragma("unroll") for (int n = 0; n < (count); ++n)

// The value of channel c + j of what p points to for channel c; 0 outside. The nearest channel is read there: a read
// that is skipped would be a masked one to a CPU's compiler.
inline ACC take(global const REAL *p, const int c, const int j) {
  const ACC v = LOAD(p, (long)(clamp(c + j, 0, CHANNELS - 1) - c) * INNER);
  return c + j >= 0 && c + j < CHANNELS ? v : (ACC)0;
}

// d of the window that begins at value n of `xs`.
inline ACC window(const ACC *xs, const int n) {
  ACC sum = 0;
  EACH(j, SIZE) sum = fma(xs[n + j], xs[n + j], sum);
  return fma((ACC)SCALE, sum, (ACC)BIAS);
}

kernel void lrn(global const REAL *restrict x, const long offset, global REAL *restrict y) {
  PLACE
  const int c = run * RUN;
  x += offset + FIRST;
  y += FIRST;
  ACC xs[RUN + SIZE - 1];  // from channel c - SIZE / 2 on
  EACH(n, RUN + SIZE - 1) xs[n] = take(x, c, n - SIZE / 2);
  EACH(n, RUN) {
    if (c + n < CHANNELS) STORE(y, (long)n * INNER, xs[n + SIZE / 2] * POWER(window(xs, n)));
  }
}
